"""Script of a matrix at each place. On this machine it runs in the user's folder, elsewhere in a copy of the folder.

The hash of the script's files enters the run keys.
"""

import hashlib
import importlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from launcher.backends import BACKENDS
from launcher.images import build
from launcher.jobs.commands import Script
from launcher.kinds import Runtime
from launcher.machine.script_process import Workplace
from launcher.script import files, local_script
from launcher.script.command import HereOptions, ThereOptions
from launcher.script.files import ScriptFiles
from launcher.sweep.matrix import Matrix, PlaceMatrix
from workload.contract.errors import UsageError
from workload.contract.text import counted, si

EXAMPLE = "launch sweep matrix.toml, from the folder of its script"
# Documentation files do not change what a script does.
NOTES = (".md", ".rst")


@dataclass(frozen=True, kw_only=True)
class PlacedScript:
    """Script at a place. `workplace`: only for this machine; `script_files`: only for other machines.

    `code`: hash of the files that the script may run. `options`: the place's `HereOptions` or `ThereOptions`; `text`: a
    line for the plan.
    """

    options: Any
    workplace: Workplace | None = None
    script_files: ScriptFiles | None = None
    code: str
    text: str


def placed(matrix: Matrix, *, file: Path, folder: Path, environment: Mapping[str, str]) -> Matrix:
    """Matrix with its script at every place. Raises `UsageError` if a place cannot run the script."""
    places = []
    for place in matrix.places:
        with_script = _on_this_machine if isinstance(place.place.script, HereOptions) else _on_other_machines
        try:
            places.append(with_script(place, file, folder, environment) if place.place.script else place)
        except UsageError as error:
            raise UsageError(f"{file}: [[on]] {place.place.name}: {error}", hint=error.hint) from error
    return replace(matrix, places=tuple(places))


def _on_this_machine(place: PlaceMatrix, file: Path, folder: Path, environment: Mapping[str, str]) -> PlaceMatrix:
    """Place on this machine with the script, which runs in the user's current folder."""
    options: HereOptions = place.place.script
    commands = [configuration.spec.script for configuration in place.configurations]
    workplace = Workplace(folder=folder)
    for words in commands:
        workplace = local_script.workplace_of(words, options, folder, environment, example=EXAMPLE)
        workplace.require(words)
        if getattr(place.place.options, "runtime", None) is Runtime.PROCESS:
            local_script.require_module(words, folder)
    requirements = build.read(options.requirements) if options.requirements else b""
    code = _digest(folder, _code_files(folder, commands), file, requirements)
    script = PlacedScript(options=options, workplace=workplace, code=code, text="runs in this folder")
    return replace(place, place=replace(place.place, script=script))


def _on_other_machines(place: PlaceMatrix, file: Path, folder: Path, environment: Mapping[str, str]) -> PlaceMatrix:
    """Place on other machines with the script, which runs in a copy of the current folder, with relative paths."""
    options: ThereOptions = place.place.script
    backend = place.place.backend
    is_fresh: bool = importlib.import_module(f"{BACKENDS[backend]}.options").COMMAND.is_fresh
    typed = [configuration.spec.script for configuration in place.configurations]
    script = Script(words=typed[0], options=options, is_fresh=is_fresh)
    _, sent = script.packed(backend, folder, environment)
    words_of = {}
    for words in typed:
        words_of[words] = files.relative_words(words, folder, example=EXAMPLE)
        files.place_of_data(options.data, words_of[words], is_fresh=is_fresh)
        files.require_script(words_of[words], sent.files, options.include)
    configurations = tuple(
        replace(each, spec=replace(each.spec, script=words_of[each.spec.script])) for each in place.configurations
    )
    text = "; ".join((f"sends {counted(len(sent.files), 'file')}, {si(len(sent.content), 'B')}", *sent.notes))
    placed_script = PlacedScript(
        options=options, script_files=sent, code=_digest(folder, sent.files, file, sent.requirements), text=text
    )
    return replace(place, place=replace(place.place, script=placed_script), configurations=configurations)


# --- what identifies a script


def _code_files(folder: Path, commands: Iterable[Sequence[str]]) -> list[str]:
    """Files that a script may read as code or settings: all files that git tracks, and every other Python file."""
    tracked = files.names_in_git(folder)
    if tracked is None:
        names = {path.relative_to(folder).as_posix() for path in folder.rglob("*.py") if path.is_file()}
        names = {name for name in names if not any(part.startswith(".") for part in name.split("/"))}
        names = {name for name in names if "site-packages" not in name.split("/")}
    else:
        names = {*tracked, *(name for name in files.names_in_git(folder, others=True) or () if name.endswith(".py"))}
    return sorted({*names, *(words[0] for words in commands if words[0] != "-m")})


def _digest(folder: Path, names: Iterable[str], matrix: Path, requirements: bytes) -> str:
    """Hash of the names and contents of the files and of the `requirements`; notes and the matrix are left out."""

    def rows() -> Iterator[str]:
        for name in sorted(names):
            path = folder / name
            if path.is_file() and path.suffix not in NOTES and path.resolve() != matrix.resolve():
                yield f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n"

    return hashlib.sha256("".join(rows()).encode() + requirements).hexdigest()[:16]

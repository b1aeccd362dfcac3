"""Facts that identify a script in the bundle: arguments without secrets, file hashes, commit, packages.

Standard library only.
"""

import hashlib
import importlib.metadata
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from workload.contract.record import ScriptFacts
from workload.contract.script_words import redacted
from workload.environment.machine import HostSystem
from workload.environment.software import checked_out
from workload.steps.program import ROOT

# A repository of thousands of modules is identified by its commit.
MOST_FILES = 500
PACKAGE_FOLDERS = {"site-packages", "dist-packages"}


def collect(words: Sequence[str], folder: Path, main: Path | None, *, machine: HostSystem) -> ScriptFacts:
    """Facts of the script `main` in `folder`, after its imports; `words`: script and arguments as given."""
    argv = redacted(words)
    files = {name: sha256_of(path) for name, path in sorted(_files(folder, main).items())}
    packages = dict(sorted(_packages()))
    commit, dirty = checked_out(machine, folder, "--untracked-files=no")
    return ScriptFacts(
        argv=argv,
        command=shlex.join(argv),
        files=files,
        sha256=_digest(files),
        commit=commit,
        dirty=dirty,
        packages=packages,
        packages_sha256=_digest(packages),
    )


def _digest(rows: Mapping[str, str]) -> str:
    return hashlib.sha256("".join(f"{name} {value}\n" for name, value in rows.items()).encode()).hexdigest()[:16]


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _files(folder: Path, main: Path | None) -> dict[str, Path]:
    """The script and the modules that it imported from its own folder, by relative path."""
    paths = {main} if main else set()
    for module in list(sys.modules.values()):
        name = getattr(module, "__file__", None)
        path = Path(name) if isinstance(name, str) and name.endswith(".py") else None
        if path and path.is_absolute() and path.is_relative_to(folder) and not PACKAGE_FOLDERS & set(path.parts):
            paths.add(path)
    ours = ROOT / "rooflaunch", ROOT / "workload"
    kept = sorted(path for path in paths if path.is_file() and not any(map(path.is_relative_to, ours)))[:MOST_FILES]
    return {path.relative_to(folder).as_posix() if path.is_relative_to(folder) else path.name: path for path in kept}


def _packages() -> Iterator[tuple[str, str]]:
    """Name and version of every installed distribution from which the script imported a module."""
    loaded = {name.partition(".")[0] for name in list(sys.modules)}
    by_module = importlib.metadata.packages_distributions()
    names = {distribution for module in loaded for distribution in by_module.get(module, ())}
    for name in names:
        try:
            yield name, importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue

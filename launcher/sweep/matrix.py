"""Reads and checks the file of `launch sweep`, and combines it into each place's configurations. Uses no network.

An error in the file is a `UsageError` that names the file and the key, with the nearest valid key.
"""

import importlib
import itertools
import json
import math
import re
import shlex
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import typer

from launcher.backends import BACKENDS
from launcher.script.options import HereOptions, LocalOptions, ThereOptions
from launcher.sweep.places import ARGUMENT, LOCAL, Configuration, Exclude, Place, as_text
from launcher.typer_options import instances_from
from launcher.values import flag_of
from workload.contract.errors import UsageError
from workload.contract.program import plain_message
from workload.contract.script_words import DATA, Line, read_typed
from workload.contract.spec import SCRIPT_OPTIONS, Option, Origin, options, resolve, why_not_for_script
from workload.contract.text import counted, did_you_mean
from workload.environment import gpu_index

# One run has no confidence interval. The interval of two runs is 4 times as wide as that of three runs (Student t).
USUAL_REPEATS = 3
# More runs are most likely a typing error: at half a minute each, 10,000 runs take one machine three days.
MANY_RUNS = 10_000
# Placeholder of an axis in a script's command: `{lr}`.
PLACEHOLDER = re.compile(r"\{([A-Za-z_][\w.-]*)\}")


COMMAND_EXAMPLE = 'command = ["train.py", "--epochs", "1"]'
# Form of names, which become part of job names and of labels in a store.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
TOP = ("name", "repeats", "seed", "script", "defaults", "matrix", "exclude", "on")
OWN_OF_PLACE = ("backend", "name", "machines")
# Options of a place that change no measurement: cost, time limits and the location of results. The image is among them,
# because it enters a run's key as the run's code, and the GPU's index: to compare alike GPUs, name their places.
NOT_MEASURED = frozenset(
    {
        *("max_run_time_s", "rerun_preempted", "time_s", "queue_time_s", "at_a_time", "requeue"),
        *("max_cost_usd", "usd_per_h", "project", "service_account", "account", "qos"),
        *("bucket", "repository", "folder", "image", "gpu_index"),
    }
)


@dataclass(frozen=True, kw_only=True)
class PlaceMatrix:
    """Place with its configurations, in the order of the file; `origin`: source of each option's value."""

    place: Place
    configurations: tuple[Configuration, ...]
    origin: Mapping[str, Origin]


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """Content of a matrix file. `warnings`: messages about entries without an effect."""

    name: str
    repeats: int
    seed: int
    places: tuple[PlaceMatrix, ...]
    warnings: tuple[str, ...] = ()

    @property
    def runs(self) -> int:
        """Number of runs of all places and blocks."""
        return self.repeats * sum(len(place.configurations) for place in self.places)


def load(path: Path) -> Mapping[str, Any]:
    """Content of a TOML file. Raises `UsageError` if it cannot be read."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UsageError(f"there is no matrix '{path}'", hint=f"launch sweep --example first > {path.name}") from error
    except OSError as error:
        raise UsageError(f"'{path}' cannot be read: {error.strerror}", hint="name a TOML file") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"'{path}' is no TOML: {error}", hint="launch sweep --example first shows a matrix") from error


def read(table: Mapping[str, Any], *, file: Path, environment: Mapping[str, str], config_folder: Path | None) -> Matrix:
    """Matrix of a file's content. Raises `UsageError` for any mistake."""
    return _Reader(table, file, environment, config_folder).read()


def require_places(matrix: Matrix, names: Sequence[str]) -> None:
    """Raise `UsageError` for a name that no place has."""
    known = [place.place.name for place in matrix.places]
    for name in names:
        if name not in known:
            raise UsageError(f"no place is named '{name}'", hint=_nearest(name, known, "--on is one of"))


@dataclass(frozen=True, kw_only=True)
class Command:
    """Script with the arguments that all runs share. `options`: further keys of [script], such as `data`."""

    parts: tuple[str, ...]
    options: Mapping[str, Any]

    @property
    def placeholders(self) -> tuple[str, ...]:
        """Names of the axes in the command: `{lr}` gives `lr`."""
        names = (match[1] for part in self.parts for match in PLACEHOLDER.finditer(part.replace(DATA, "")))
        return tuple(dict.fromkeys(names))

    def words(self, values: Mapping[str, Any]) -> tuple[str, ...]:
        """Command with one combination of values, filled into their placeholders or else appended as `--lr 0.1`.

        A value without a placeholder is appended as the option alone if it is True, and left out if it is False.
        """
        arguments = {name.removeprefix(ARGUMENT): value for name, value in values.items() if name.startswith(ARGUMENT)}
        # Keep `{data}`: the folder of the script's data is not known yet.
        filled = {DATA.strip("{}"): DATA, **{name: as_text(value) for name, value in arguments.items()}}
        parts = [PLACEHOLDER.sub(lambda found: filled[found[1]], part) for part in self.parts]
        for name, value in arguments.items():
            if name not in self.placeholders and value is not False:
                parts += [f"--{name}"] if value is True else [f"--{name}", as_text(value)]
        return tuple(parts)


class _Reader:
    def __init__(
        self, table: Mapping[str, Any], file: Path, environment: Mapping[str, str], config_folder: Path | None
    ) -> None:
        self._table, self._file = table, file
        self._environment, self._config_folder = environment, config_folder
        self._command: Command | None = None
        # Repeats are blocks of the whole matrix, so their key is at the top of the file. `machines` of an [[on]] table
        # is the number of machines that share the blocks.
        self._options = {option.name: option for option in options() if option.name not in ("repeats", "machines")}

    def read(self) -> Matrix:
        self._known(self._table, TOP, where="")
        name = self._require_name(self._table.get("name", self._file.stem), example="night-1")
        self._command = self._script()
        defaults = self._run_options(self._section("defaults"), "[defaults]")
        axes = self._axes()
        for placeholder in self._command.placeholders if self._command else ():
            if f"{ARGUMENT}{placeholder}" not in axes:
                raise self._error(
                    f"[script] command has {{{placeholder}}}, and [matrix] has no {ARGUMENT}{placeholder}",
                    hint=f"{ARGUMENT}{placeholder} = [0.1, 0.01]",
                )
        places = [(entry, self._place(entry, number)) for number, entry in enumerate(self._tables("on"), start=1)]
        if not places:
            raise self._error("no place to run", hint='[[on]] with backend = "local", or "gcp" and gpu')
        names = [place.name for _, place in places]
        for twice in (name for name in names if names.count(name) > 1):
            raise self._error(f"two places are named '{twice}'", hint=f'name = "{twice}-2" in one of the [[on]]')
        excludes = self._excludes(axes, names)
        repeats = self._repeats()
        # Before combining: a typing error can ask for more combinations than memory holds.
        if (runs := math.prod(map(len, axes.values())) * repeats * len(places)) > MANY_RUNS:
            raise self._error(f"{runs:,} runs before [[exclude]], more than {MANY_RUNS:,}", hint="fewer values")
        used: set[int] = set()
        matrices = tuple(self._at(entry, place, defaults, axes, excludes, used) for entry, place in places)
        unused = [rule.text for number, rule in enumerate(excludes) if number not in used]
        warnings = tuple(f"{self._file}: an [[exclude]] matches nothing: {text}" for text in unused)
        seed = self._table.get("seed", 0)
        if not isinstance(seed, int) or isinstance(seed, bool):
            raise self._error(f"seed must be an integer; got '{seed}'", hint="seed = 0")
        return Matrix(name=name, repeats=repeats, seed=seed, places=matrices, warnings=warnings)

    # Methods that read keys at the top level of the file.

    def _repeats(self) -> int:
        if "repeats" in self._table:
            [option] = [option for option in options() if option.name == "repeats"]
            return int(self._parsed(option, self._table["repeats"], ""))
        resolved = resolve({}, self._environment, self._config_folder)
        return resolved.spec.repeats if "repeats" in resolved.origin else USUAL_REPEATS

    def _script(self) -> Command | None:
        if "script" not in self._table:
            return None
        section = self._section("script")
        keys = {**_keys(HereOptions), **_keys(ThereOptions)}
        self._known(section, ["command", *keys], where="[script] ", kind="command, nor an option of a script")
        parts = section.get("command")
        if not isinstance(parts, list) or not parts or not all(isinstance(part, str) and part for part in parts):
            got = "nothing" if parts is None else f"'{parts}'"
            raise self._error(
                f"[script] command must be a list of texts, the script first; got {got}", hint=COMMAND_EXAMPLE
            )
        words, devices = read_typed(parts, Path.cwd(), line_of_matrix(self._file), is_here=False)
        if devices:
            hint = f"[defaults] with devices = {devices}, and {_command(words)}"
            raise self._error(f"[script] command starts {counted(devices, 'process')}", hint=hint)
        return Command(parts=words, options={key: value for key, value in section.items() if key != "command"})

    def _flat(self, section: Mapping[str, Any], where: str) -> dict[str, Any]:
        arguments = section.get("args", {})
        if "args" in section and self._command is None:
            raise self._error(
                f"{where} args: arguments are for a script, but there is no [script]",
                hint='[script] with command = ["train.py"]',
            )
        if not isinstance(arguments, dict):
            raise self._error(f"{where} args must be a table; got '{arguments}'", hint="args.lr = [0.1, 0.01]")
        flat: dict[str, Any] = {}
        for name, value in section.items():
            flat |= {f"{ARGUMENT}{key}": each for key, each in value.items()} if name == "args" else {name: value}
        return flat

    def _axes(self) -> dict[str, tuple[Any, ...]]:
        section = self._flat(self._section("matrix"), "[matrix]")
        if not section:
            usual = "args.lr = [0.1, 0.01]" if self._command else 'model = ["resnet18"]'
            raise self._error("the matrix is empty: no option varies", hint=f"[matrix] with {usual}")
        axes = {}
        for name, values in section.items():
            if not name.startswith(ARGUMENT):
                self._option(name, "[matrix]")
            if isinstance(values, dict):
                argument = f"{name.removeprefix(ARGUMENT)}.{next(iter(values), 'NAME')}"
                raise self._error(
                    f"[matrix] {name} must be a list; got a table",
                    hint=f'args."{argument}" = […] for an argument with a dot in its name',
                )
            if not isinstance(values, list):
                raise self._error(
                    f"[matrix] {name} must be a list; got '{values}'",
                    hint=f"{name} = [{_toml(values)}], or {'command of [script]' if self._command else '[defaults]'}",
                )
            if not values:
                example = "0.1" if name.startswith(ARGUMENT) else _example(self._options[name])
                raise self._error(f"the matrix is empty: {name} has no values", hint=f"{name} = [{example}]")
            parsed = [self._value(name, value, f"[matrix] {name}: ") for value in values]
            texts = [_toml(value) for value in parsed]
            repeated = next((text for text in texts if texts.count(text) > 1), None)
            if repeated is not None:
                raise self._error(f"[matrix] {name} has {repeated} twice", hint="leave one of them out")
            axes[name] = tuple(parsed)
        return axes

    def _value(self, name: str, value: object, where: str) -> Any:
        """Value of an axis, checked by the rule of the option `name`; a script's argument may be any single value."""
        if not name.startswith(ARGUMENT):
            return self._parsed(self._options[name], value, where)
        if not isinstance(value, str | int | float):
            raise self._error(
                f"{where}a value must be text, a number, true or false; got '{value}'", hint=f"{name} = [0.1, 0.01]"
            )
        return value

    def _excludes(self, axes: Mapping[str, tuple[Any, ...]], places: Sequence[str]) -> list[Exclude]:
        rules = []
        for number, table in enumerate(self._tables("exclude"), start=1):
            where = f"[[exclude]] {number}"
            entry = self._flat(table, where)
            values = {key: value if isinstance(value, list) else [value] for key, value in entry.items()}
            self._known(values, [*axes, "on"], where=f"{where}: ", kind="an option of [matrix], nor the key 'on'")
            if not values.keys() - {"on"}:
                raise self._error(f"{where} names no option of [matrix]", hint=f"{next(iter(axes))} = …")
            names = values.pop("on", [])
            for name in names:
                if name not in places:
                    raise self._error(
                        f"{where}: no place is named '{name}'", hint=_nearest(str(name), places, "the places are")
                    )
            parsed = {
                key: tuple(self._value(key, value, f"{where} {key}: ") for value in listed)
                for key, listed in values.items()
            }
            text = ", ".join(f"{key} = {_toml(value)}" for key, value in entry.items())
            rules.append(Exclude(values=parsed, on=tuple(names), text=text))
        return rules

    # Places.

    def _place(self, entry: Mapping[str, Any], number: int) -> Place:
        where = f"[[on]] {entry.get('name') or number}"
        backend = entry.get("backend")
        known = (LOCAL, *BACKENDS)
        if backend not in known:
            problem = "has no backend" if backend is None else f"has the unknown backend '{backend}'"
            raise self._error(f"{where} {problem}", hint=_nearest(str(backend or ""), known, "backend is one of"))
        kinds, is_one_machine = _kinds_of(str(backend))
        script_kinds = (HereOptions if backend == LOCAL else ThereOptions,) if self._command else ()
        keys = {key: item for kind in (*kinds, *script_kinds) for key, item in _keys(kind).items()}
        if self._command:
            entry = {**{key: value for key, value in self._command.options.items() if key in keys}, **entry}
        self._known(entry, [*OWN_OF_PLACE, *keys, *self._options], where=f"{where}: ", kind=f"an option of {backend}")
        words = [
            word for key, value in entry.items() if key in keys for word in self._words(keys[key], key, value, where)
        ]
        instances = self._instances(str(backend), (*kinds, *script_kinds), words, where)
        script = instances.pop() if script_kinds else None
        measured = {
            item.name: list(value) if isinstance(value, tuple) else value
            for instance in instances
            for item in fields(instance)
            if (value := getattr(instance, item.name)) != item.default and item.name not in NOT_MEASURED
        }
        hardware = measured.get("gpu") or measured.get("host") or entry.get("device") or ""
        usual_name = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{backend}-{hardware}".strip("-"))
        name = self._require_name(entry.get("name", usual_name), where=f"{where}: ", example="t4")
        return Place(
            name=name,
            backend=str(backend),
            options=instances[0],
            where=instances[1] if len(instances) > 1 else None,
            asked={"name": name, "backend": backend, **measured},
            machines=self._machines(entry, where, str(backend), is_one_machine=is_one_machine),
            script=script,
        )

    def _require_name(self, name: object, *, where: str = "", example: str) -> str:
        if not isinstance(name, str) or not NAME.fullmatch(name):
            rule = "name must be up to 63 letters, digits, '.', '_' or '-'"
            raise self._error(f"{where}{rule}; got '{name}'", hint=f'name = "{example}"')
        return name

    def _machines(self, entry: Mapping[str, Any], where: str, backend: str, *, is_one_machine: bool) -> int:
        machines = entry.get("machines", 1 if is_one_machine else 0)
        if not isinstance(machines, int) or isinstance(machines, bool) or (machines < 1 and "machines" in entry):
            raise self._error(
                f"{where}: machines must be a positive integer; got '{machines}'", hint="machines = 3, or leave it out"
            )
        if is_one_machine and machines != 1:
            raise self._error(
                f"{where}: {backend} is a single machine; got machines = {machines}", hint="an [[on]] for each machine"
            )
        return machines

    def _instances(self, backend: str, kinds: Sequence[type], words: list[str], where: str) -> list[Any]:
        """Instances of the option classes `kinds`, made by parsing `words` as `launch <backend>` would."""
        try:
            instances = instances_from(kinds, words)
            if isinstance(instances[0], LocalOptions):
                instances[0].asked_runtime()
        except typer.TyperException as error:
            text = plain_message(error, [part for word in words for part in word.partition("=")[::2]])
            raise self._error(f"{where}: {text.rstrip('.')}", hint="launch " + backend + " --help") from error
        except UsageError as error:
            raise self._error(f"{where}: {error}", hint=f"as options of launch {backend}: {error.hint}") from error
        return instances

    def _words(self, item: Any, key: str, value: object, where: str) -> Iterator[str]:
        flag = flag_of(item)
        if isinstance(value, bool):
            if value or item.default is not False:
                yield flag if value else f"--no-{flag[2:]}"
        elif isinstance(value, list) and isinstance(item.default, tuple):
            for each in value:
                yield from self._words(item, key, each, where)
        elif isinstance(value, str | int | float):
            # `max_run_time_s` has the unit in its name; `max_run_time` is text with a unit.
            unit = "s" if key == item.name and key.endswith("_s") and not isinstance(value, str) else ""
            yield f"{flag}={value}{unit}"
        else:
            raise self._error(
                f"{where}: {key} must be one value; got '{_toml(value)}'", hint=f"an [[on]] for each {key}"
            )

    def _at(
        self,
        entry: Mapping[str, Any],
        place: Place,
        defaults: Mapping[str, object],
        axes: Mapping[str, tuple[Any, ...]],
        excludes: Sequence[Exclude],
        used: set[int],
    ) -> PlaceMatrix:
        """Configurations of one place; adds to `used` the numbers of the excludes that matched."""
        where = f"[[on]] {place.name}" if self._command else place.name
        own = self._run_options({key: value for key, value in entry.items() if key in self._options}, where)
        for name in own.keys() & axes.keys():
            raise self._error(
                f"[[on]] {place.name} sets {name}, which [matrix] varies",
                hint=f'[[exclude]] with on = "{place.name}" and the values of {name} to leave out',
            )
        combinations = []
        for values in itertools.product(*axes.values()):
            combination = dict(zip(axes, values, strict=True))
            matching = [number for number, rule in enumerate(excludes) if rule.matches(combination, place.name)]
            used.update(matching)
            if not matching:
                combinations.append(combination)
        if not combinations:
            raise self._error(
                f"[[on]] {place.name} has nothing to do, because every combination is excluded",
                hint="fewer [[exclude]]",
            )
        combination, configurations = combinations[0], []
        words_with = self._command.words if self._command else lambda _: ()
        try:
            chosen = {**defaults, **own, **_run_options_in(combination)}
            base = resolve(chosen, self._environment, self._config_folder, script=words_with(combination))
            once = replace(base.spec, repeats=1, machines=1)
            for combination in combinations:
                spec = replace(once, **_run_options_in(combination), script=words_with(combination)).checked()
                if (index := getattr(place.options, "gpu_index", None)) is not None:
                    gpu_index.required(spec, index)
                configurations.append(Configuration(values=combination, spec=spec))
        except UsageError as error:
            rule = ", ".join(f"{name} = {_toml(value)}" for name, value in combination.items())
            cure = f'[[exclude]] with on = "{place.name}" and the values that are impossible there, or {error.hint}'
            raise self._error(f"at [[on]] {place.name}, with {rule}: {error}", hint=cure) from error
        origin = {name: source for name, source in base.origin.items() if name not in ("repeats", "machines")}
        return PlaceMatrix(place=place, configurations=tuple(configurations), origin=origin)

    # Helpers.

    def _section(self, name: str) -> Mapping[str, Any]:
        section = self._table.get(name, {})
        if not isinstance(section, dict):
            raise self._error(f"{name} must be a table; got '{section}'", hint=f"[{name}]")
        return section

    def _tables(self, name: str) -> list[Mapping[str, Any]]:
        tables = self._table.get(name, [])
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            raise self._error(f"{name} must be a list of tables; got '{tables}'", hint=f"[[{name}]]")
        return tables

    def _run_options(self, section: Mapping[str, Any], where: str) -> dict[str, object]:
        return {
            key: self._parsed(self._option(key, where), value, f"{where} {key}: ") for key, value in section.items()
        }

    def _option(self, name: str, where: str) -> Option:
        if name == "repeats":
            raise self._error(
                f"{where} repeats: repeats belong to the whole matrix, each repeat is a block",
                hint="repeats = 3 at the top of the file",
            )
        if name == "machines":
            raise self._error(
                f"{where} machines: a run of a sweep has one machine",
                hint="machines = 3 in [[on]] for machines that share the blocks; launch slurm --machines 2 for one run",
            )
        self._known([name], self._options, where=f"{where} ", kind="a run option")
        if self._command and name not in SCRIPT_OPTIONS:
            raise self._error(
                f"{where} {name} is only for our own trainer: {why_not_for_script(self._options[name])}",
                hint=f"args.{name} for the script's argument --{name}, or leave {name} out",
            )
        return self._options[name]

    def _parsed(self, option: Option, value: object, where: str) -> Any:
        if isinstance(value, list | dict):
            hint = f"{option.name} = {_example(option)}; only options in [matrix] have several values"
            raise self._error(f"{where}{option.label} must be one value; got '{value}'", hint=hint)
        try:
            return option.parse(value)
        except UsageError as error:
            raise self._error(f"{where}{error}", hint=f"{option.name} = {_example(option)}") from error

    def _known(self, keys: Collection[str], known: Collection[str], *, where: str, kind: str = "") -> None:
        for key in keys:
            if key not in known:
                rule = f", which is not {kind}" if kind else ""
                raise self._error(
                    f"{where}unknown key '{key}'{rule}", hint=_nearest(key.replace("-", "_"), known, "the keys are")
                )

    def _error(self, text: str, *, hint: str) -> UsageError:
        return UsageError(f"{self._file}: {text}", hint=hint)


def _run_options_in(combination: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in combination.items() if not name.startswith(ARGUMENT)}


def _kinds_of(backend: str) -> tuple[tuple[type, ...], bool]:
    if backend == LOCAL:
        return (LocalOptions,), True
    module = importlib.import_module(f"{BACKENDS[backend]}.options")
    return (module.Options, module.Where), module.COMMAND.one_machine


def _keys(kind: type) -> dict[str, Any]:
    """Fields of a dataclass by their keys in the file: the field's name, and its flag with `_` for `-`."""
    chosen = [item for item in fields(kind) if item.metadata]
    return {key: item for item in chosen for key in (item.name, flag_of(item)[2:].replace("-", "_"))}


def _nearest(word: str, known: Collection[str], otherwise: str) -> str:
    return did_you_mean(word, known) or f"{otherwise} {', '.join(dict.fromkeys(known))}"


def _example(option: Option) -> str:
    if option.kind is bool:
        return "true"
    return option.example if option.is_number else f'"{option.example}"'


def line_of_matrix(file: Path) -> Line:
    """Function that returns the command of a sweep with other words for the script, for a hint."""
    return lambda words: f"launch sweep {shlex.quote(str(file))}, with {_command(words)}"


def _command(words: Sequence[str]) -> str:
    return f"command = {json.dumps(list(words))}"


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return f'"{value}"' if isinstance(value, str) else str(value)

"""A run with its facts, its series and the mask of measured steps; what a function says of a run, computed once."""

import functools
import hashlib
import json
import shlex
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from analysis.loading import index, processes, units
from analysis.loading.configurations import ARGUMENT
from analysis.loading.tables import Tables, rows
from analysis.statistics.samples import Floats, Mask
from analysis.statistics.steady import SteadyState, steady_state
from workload.contract import bundle
from workload.contract.bundle import STEP_COLUMNS, TELEMETRY_COLUMNS
from workload.contract.errors import BundleError
from workload.contract.record import Record, Spec, Status
from workload.contract.script_words import arguments_of, number_of, script_words
from workload.contract.spec import Device

MEASURED = "measured"
STEP_NUMBERS = tuple(name for name in STEP_COLUMNS if name != "phase")
EMPTY = np.empty(0)
NO_ROWS = np.empty(0, dtype=np.intp)

# Columns of a run's rows by name; NaN for an absent value.
Columns = Mapping[str, Floats]


@dataclass(frozen=True, kw_only=True, eq=False)
class Case:
    """A run: its row of `runs` as `facts` (None for an absent value), its steps in order, and its telemetry.

    `steps` holds all steps, warm-up included; `is_measured` is a mask of the same length.
    """

    facts: Mapping[str, Any]
    steps: Columns
    is_measured: Mask
    telemetry: Columns

    def __getitem__(self, fact: str) -> Any:
        return self.facts[fact]

    def __getstate__(self) -> dict[str, Any]:
        """State to pickle: the fields, without cached properties, which another thread may be adding."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def run_id(self) -> str:
        return str(self.facts["run_id"])

    @property
    def unit(self) -> str:
        """Unit of the throughput: `images`, or the unit that was detected for a user's own script."""
        return units.unit_of(self.facts)

    @property
    def on_cpu(self) -> bool:
        return bool(self.facts["device_type"] == Device.CPU)

    @property
    def host(self) -> str | None:
        """The machine of the run: the physical host if the cloud reveals it, else the host name; None if unknown."""
        name = self.facts["physical_host"] or self.facts["hostname"]
        return None if name is None else str(name)

    @property
    def block(self) -> tuple[str, float, str] | None:
        """Job, number and host of the run's block; None if unknown. A block on several hosts counts once per host."""
        job, block, host = self.facts["job_name"], self.facts["block"], self.host
        return None if job is None or block is None or host is None else (str(job), float(block), host)

    def measured(self, column: str) -> Floats:
        """A column, limited to the measured steps."""
        return self.steps[column][self.is_measured]

    @cached_property
    def step_s(self) -> Floats:
        """Seconds of each measured step, without the wait for data."""
        return self.measured("step_s")

    @cached_property
    def iteration_s(self) -> Floats:
        """Seconds of each measured step, with the wait for data if it is known."""
        return self.step_s + np.nan_to_num(self.measured("data_s"))

    @cached_property
    def interval_s(self) -> Floats:
        """Time stamp of each measured step minus that of the step before, in seconds; NaN if unknown."""
        intervals = np.diff(self.steps["ended_at_s"], prepend=np.nan)
        return np.asarray(intervals[self.is_measured], dtype=np.float64)

    @cached_property
    def region_s(self) -> tuple[float, float] | None:
        """Begin and end of the measured steps in seconds, on the clock of `t_s` and `ended_at_s`; None if unknown."""
        ended = self.measured("ended_at_s")
        if not ended.size or not np.isfinite(ended).all():
            return None
        return float(ended[0] - self.iteration_s[0]), float(ended[-1])

    @cached_property
    def steadiness(self) -> SteadyState:
        """Steady state of the measured steps, for audit, variation table and causes alike."""
        return steady_state(self.step_s)

    def samples(self, column: str) -> tuple[Floats, Floats]:
        """Times (s) and finite values of a telemetry column in the measured region; empty if the region is unknown."""
        if self.region_s is None:
            return EMPTY, EMPTY
        at, values = self.telemetry["t_s"], self.telemetry[column]
        start, end = self.region_s
        inside = (at >= start) & (at <= end) & np.isfinite(values)
        return at[inside], values[inside]

    @cached_property
    def stored_record(self) -> Record | None:
        """Content of run.json; None if the bundle was removed after loading."""
        with suppress(BundleError):
            if self.facts["path"]:
                return bundle.read_record(Path(self.facts["path"]))
        return None

    @property
    def record(self) -> Record:
        """Content of run.json; only id, status, model and batch size if the bundle was removed after loading."""
        if self.stored_record is not None:
            return self.stored_record
        spec = Spec(model=self.facts["model"], batch_size=self.facts["batch_size"])
        return Record(run_id=self.run_id, status=Status(self.facts["status"]), spec=spec)


def cases(results: Tables) -> list[Case]:
    """The runs as cases, in the order of `results.runs`."""
    steps, telemetry = _Table(results.steps, STEP_NUMBERS), _Table(results.telemetry, TELEMETRY_COLUMNS)
    is_measured = (results.steps["phase"] == MEASURED).to_numpy(dtype=bool)
    return [
        Case(
            facts=facts,
            steps=steps.columns_of(facts["run_id"]),
            is_measured=is_measured[steps.positions(facts["run_id"])],
            telemetry=telemetry.columns_of(facts["run_id"]),
        )
        for facts in rows(results.runs)
    ]


def shared(runs: Sequence[Case], fact: str) -> Any:
    """The value of a fact on which all runs agree; None if they differ."""
    first = runs[0][fact]
    return first if all(case[fact] == first for case in runs) else None


class _Table:
    """The numeric columns of a table, split by run on request."""

    def __init__(self, table: pd.DataFrame, names: Sequence[str]) -> None:
        self._columns = {name: np.asarray(pd.to_numeric(table[name]), dtype=np.float64) for name in names}
        self._positions = {} if table.empty else table.groupby("run_id", observed=True, sort=False).indices

    def positions(self, run_id: str) -> npt.NDArray[np.intp] | slice:
        """Row positions of a run, in order; a slice if they are neighbours, so that columns need not be copied."""
        positions = np.asarray(self._positions.get(run_id, NO_ROWS), dtype=np.intp)
        if positions.size and positions[-1] - positions[0] + 1 == positions.size:
            return slice(int(positions[0]), int(positions[-1]) + 1)
        return positions

    def columns_of(self, run_id: str) -> Columns:
        """Columns of a run's rows."""
        rows_of_run = self.positions(run_id)
        return {name: values[rows_of_run] for name, values in self._columns.items()}


# Beginning of the name of the fact that has a command without one of its arguments.
BESIDES = "besides "
# Values of a flag, which has no value of its own.
NOT_GIVEN, GIVEN = "not given", "given"


def besides(fact: str) -> str:
    """Name under which a run has its script's command without one argument; `fact`: that argument, `args.workers`."""
    return BESIDES + fact


def after_program(command: str | None) -> str | None:
    """Words after the script in a command, for example `--lr 0.1` in `train.py --lr 0.1`; None without any."""
    return shlex.join(_split(command)[1]) or None if command else None


def as_typed(command: str) -> list[tuple[str, str]]:
    """Arguments of a command as pairs: `("--lr", "0.1")`, `("--amp", "")` for a flag, `("photos", "")` for a word."""
    return [(name or words[0], value or "") for name, value, words in arguments_of(_split(command)[1])]


def with_arguments(cases: Sequence[Case]) -> list[Case]:
    """Copies of `cases` whose facts include the arguments of their script, if runs of that script differ in them.

    An argument adds two facts: `args.NAME`, which is its value or `given` or `not given`, and `besides args.NAME`,
    which is the command without it. Both are None in runs of other scripts and of our models.
    """
    by_model: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        if case["script"] is not None:
            by_model[case["model"]].append(case)
    facts_of: dict[str, dict[str, str | float]] = defaultdict(dict)
    for runs in by_model.values():
        values = {case.run_id: dict(_arguments(case["script"])) for case in runs}
        for name in dict.fromkeys(name for given in values.values() for name in given):
            found = {run_id: given.get(name, NOT_GIVEN) for run_id, given in values.items()}
            if len(set(found.values())) > 1:
                fact = ARGUMENT + name
                for case in runs:
                    program, words = _split(case["script"])
                    kept = (words for other, _, words in arguments_of(words) if other.lstrip("-") != name)
                    without = shlex.join([*program, *(word for words in kept for word in words)])
                    facts_of[case.run_id] |= {fact: found[case.run_id], besides(fact): without}
    if not facts_of:
        return list(cases)
    names = dict.fromkeys(name for facts in facts_of.values() for name in facts)
    return [replace(case, facts={**case.facts, **dict.fromkeys(names), **facts_of[case.run_id]}) for case in cases]


def arguments_in(cases: Sequence[Case]) -> list[str]:
    """Names of the facts that `with_arguments` has added for arguments, such as `args.workers`."""
    return [name for name in (cases[0].facts if cases else ()) if name.startswith(ARGUMENT)]


def _split(command: str) -> tuple[list[str], list[str]]:
    """Split a command into the words that name the script and those of its arguments.

    A command with an open quote, which no shell could split, is one word.
    """
    words = [command]
    with suppress(ValueError):
        words = shlex.split(command)
    program = list(script_words(words))
    return program, words[len(program) :]


def _arguments(command: str) -> Iterator[tuple[str, str | float]]:
    for name, value, _ in arguments_of(_split(command)[1]):
        if name:
            number = None if value is None else number_of(value)
            yield name.lstrip("-"), (value or GIVEN) if number is None else number


# --- results of functions of a run, kept

FILE = "of_runs.parquet"
# Functions of a run must return JSON.
OfRun: TypeAlias = Callable[[Case], Any]
# Fewer runs are computed by this process alone, because starting another one takes longer.
FEWEST_SHARED = 250
# Runs that a process computes at once.
PART = 50
SCHEMA = pa.schema([("function", pa.string()), ("key", pa.binary()), ("result", pa.string())])

Kept: TypeAlias = dict[tuple[str, bytes], str]


@dataclass(frozen=True, kw_only=True, eq=False)
class OfRuns:
    """Results of functions for each of `cases`, in their order."""

    cases: Sequence[Case]
    # By name of the function: waits for the results of all functions that were begun together.
    _begun: "dict[str, Callable[[], dict[str, list[Any]]]]" = field(default_factory=dict)

    def of(self, function: OfRun) -> list[Any]:
        """The function's result for each run."""
        self.begin(function)
        return self._begun[_name(function)]()[_name(function)]

    def begin(self, *functions: OfRun) -> None:
        """Begin to find the results of several functions, which share what they compute of a run.

        If many results are missing, other processes begin to compute them; `of` waits for them.
        """
        if missing := [function for function in functions if _name(function) not in self._begun]:
            found = functools.cache(_search(self.cases, missing))
            self._begun.update(dict.fromkeys(map(_name, missing), found))


def _name(function: OfRun) -> str:
    return f"{function.__module__}.{function.__qualname__}"


def _search(cases: Sequence[Case], functions: Sequence[OfRun]) -> Callable[[], dict[str, list[Any]]]:
    """Begin to find the results: those kept beside the index of a folder, and the others by computing them.

    The returned function waits for the results, and returns them by name of the function.
    """
    folders = _folders(cases)
    kept = {folder: _load(folder / FILE) for folder in dict.fromkeys(folders) if folder}
    known = {name: text for stored in kept.values() for name, text in stored.items()}
    # Without a cache nothing is looked up, and a number is enough.
    keys = [key_of(case) if kept else number.to_bytes(8, "big") for number, case in enumerate(cases)]
    missing = {
        number: absent
        for number, key in enumerate(keys)
        if (absent := [function for function in functions if (_name(function), key) not in known])
    }
    work = [(cases[number], absent) for number, absent in missing.items()]
    parts = [work[begin : begin + PART] for begin in range(0, len(work), PART)]
    shared = processes.Sharing(_results, parts) if len(work) >= FEWEST_SHARED else None

    def found() -> dict[str, list[Any]]:
        fresh: dict[Path | None, Kept] = defaultdict(dict)
        computed = chain.from_iterable(shared.results() if shared else map(_results, parts))
        for (number, absent), results in zip(missing.items(), computed, strict=True):
            for function, result in zip(absent, results, strict=True):
                fresh[folders[number]][_name(function), keys[number]] = json.dumps(result)
        for folder, more in fresh.items():
            known.update(more)
            if folder:
                stored = {**kept[folder], **more}
                columns = [[name for name, _ in stored], [key for _, key in stored], list(stored.values())]
                index.store_table(folder / FILE, pa.table(columns, schema=SCHEMA))
        return {_name(function): [json.loads(known[_name(function), key]) for key in keys] for function in functions}

    return found


def _results(work: Sequence[tuple[Case, Sequence[OfRun]]]) -> list[list[Any]]:
    return [[function(case) for function in functions] for case, functions in work]


def key_of(case: Case) -> bytes:
    """Hash of the run's facts, except the place of its folder, and of the state of its files."""
    facts = [(name, value) for name, value in case.facts.items() if name != "path"]
    text = json.dumps([facts, index.fingerprint_of(case["path"] or "")], default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def _folders(cases: Sequence[Case]) -> list[Path | None]:
    """For each run, the folder of the cache above it; None if there is none, as for few bundles."""

    @functools.cache
    def above(folder: Path) -> Path | None:
        if (folder / index.FOLDER / index.FILE).is_file():
            return folder / index.FOLDER
        return None if folder == folder.parent else above(folder.parent)

    return [above(Path(case["path"]).parent) if case["path"] else None for case in cases]


def _load(path: Path) -> Kept:
    table = index.load_table(path, SCHEMA)
    functions, keys, results = (column.to_pylist() for column in (table or SCHEMA.empty_table()).columns)
    return dict(zip(zip(functions, keys, strict=True), results, strict=True))

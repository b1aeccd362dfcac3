"""Results of functions of a single run: computed once, by several processes for many runs, and kept beside the index.

The file `.analysis/of_runs.parquet` has a row for each run and function. The key of a run is a hash of everything that
a function can read: its row of `runs`, its steps, its telemetry, its run.json, and the peaks in use. A file that was
written by other code is ignored: its version is a hash of all sources from which results are made, so that nobody can
forget to change it. The file is a cache, replaced as a whole. Of two processes that write it at once, the last one
wins.
"""

import functools
import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from analysis.loading import index, processes
from analysis.loading.cases import Case
from workload.contract import bundle, peaks
from workload.contract.files import replacing

FILE = "of_runs.parquet"
VERSION_KEY = b"rooflaunch.sources"
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
    _known: dict[str, list[Any]] = field(default_factory=dict)
    _begun: "dict[tuple[str, ...], Callable[[], dict[str, list[Any]]]]" = field(default_factory=dict)

    def of(self, function: OfRun) -> list[Any]:
        """The function's result for each run."""
        self.begin(function)
        for names in [names for names in self._begun if _name(function) in names]:
            self._known.update(self._begun.pop(names)())
        return self._known[_name(function)]

    def begin(self, *functions: OfRun) -> None:
        """Begin to find the results of several functions, which share what they compute of a run.

        If many results are missing, other processes begin to compute them; `of` waits for them.
        """
        names = {*self._known, *(name for begun in self._begun for name in begun)}
        missing = [function for function in functions if _name(function) not in names]
        if missing:
            self._begun[tuple(map(_name, missing))] = _search(self.cases, missing)


def _name(function: OfRun) -> str:
    return f"{function.__module__}.{function.__qualname__}"


def _search(cases: Sequence[Case], functions: Sequence[OfRun]) -> Callable[[], dict[str, list[Any]]]:
    """Begin to find the results: those kept beside the index of a folder, and the others by computing them.

    The returned function waits for the results, and returns them by name of the function.
    """
    folders = _folders(cases)
    kept = {folder: _load(folder / FILE) for folder in dict.fromkeys(folders) if folder}
    known = {name: text for stored in kept.values() for name, text in stored.items()}
    # Without an index, nothing is looked up, and a number is enough.
    keys = [key_of(case) if kept else number.to_bytes(8, "big") for number, case in enumerate(cases)]
    missing = {
        number: absent
        for number, key in enumerate(keys)
        if (absent := [function for function in functions if (_name(function), key) not in known])
    }
    computed = _computed([(cases[number], absent) for number, absent in missing.items()])

    def found() -> dict[str, list[Any]]:
        fresh: dict[Path | None, Kept] = defaultdict(dict)
        for (number, absent), results in zip(missing.items(), computed(), strict=True):
            for function, result in zip(absent, results, strict=True):
                fresh[folders[number]][_name(function), keys[number]] = json.dumps(result)
        for folder, others in kept.items():
            if folder in fresh:
                used = {key for key, its_folder in zip(keys, folders, strict=True) if its_folder == folder}
                _store(folder / FILE, {**_without_surplus(others, used), **fresh[folder]})
        for more in fresh.values():
            known.update(more)
        return {_name(function): [json.loads(known[_name(function), key]) for key in keys] for function in functions}

    return found


def _computed(work: Sequence[tuple[Case, Sequence[OfRun]]]) -> Callable[[], Iterable[list[Any]]]:
    """Function that returns the results for each run. If there are many runs, other processes begin at once."""
    if len(work) < FEWEST_SHARED:
        return lambda: _results(work)
    parts = [work[begin : begin + PART] for begin in range(0, len(work), PART)]
    shared = processes.Sharing(_results, parts)
    return lambda: (results for part in shared.results() for results in part)


def _results(work: Sequence[tuple[Case, Sequence[OfRun]]]) -> list[list[Any]]:
    return [[function(case) for function in functions] for case, functions in work]


# --- keys


def key_of(case: Case) -> bytes:
    """Hash of everything of a run that a function can read, except the place of its folder."""
    digest = hashlib.blake2b(peaks.digest().encode(), digest_size=16)
    facts = [(name, value) for name, value in case.facts.items() if name != "path"]
    digest.update(json.dumps(facts, default=str).encode())
    for column in (case.is_measured, *case.steps.values(), *case.telemetry.values()):
        # The length separates columns, so that moving a value from one to the next changes the hash.
        digest.update(column.size.to_bytes(8, "big"))
        digest.update(column.tobytes())
    with suppress(OSError, ValueError):
        digest.update((Path(case["path"]) / bundle.RECORD).read_bytes())
    return digest.digest()


# --- the file


def _folders(cases: Sequence[Case]) -> list[Path | None]:
    """For each run, the folder of the index above it; None if there is none, as for few bundles."""

    @functools.cache
    def above(folder: Path) -> Path | None:
        if (folder / index.FOLDER / index.FILE).is_file():
            return folder / index.FOLDER
        return None if folder == folder.parent else above(folder.parent)

    return [above(Path(case["path"]).parent) if case["path"] else None for case in cases]


def _load(path: Path) -> Kept:
    """Results in a file; none if it is absent, damaged or of other code."""
    try:
        # Opened once: by its path, pyarrow opens the file twice, and another process may replace it in between.
        with path.open("rb") as file:
            table = pq.read_table(file)
    except (OSError, pa.ArrowException, ValueError):
        return {}
    version = (table.schema.metadata or {}).get(VERSION_KEY)
    if version is None or version != index.code_version() or not table.schema.equals(SCHEMA):
        return {}
    functions, keys, results = (column.to_pylist() for column in table.columns)
    return dict(zip(zip(functions, keys, strict=True), results, strict=True))


def _store(path: Path, results: Kept) -> None:
    version = index.code_version()
    if version is None:
        return
    names = list(results)
    columns = [[function for function, _ in names], [key for _, key in names], list(results.values())]
    table = pa.table(columns, schema=SCHEMA.with_metadata({VERSION_KEY: version}))
    with suppress(OSError), replacing(path, shared=True, durable=False) as file:
        pq.write_table(table, file, compression="zstd", compression_level=1)


def _without_surplus(kept: Kept, used: set[bytes]) -> Kept:
    """The kept results; only those of the runs in `used`, if more than half are of others."""
    mine = {name: result for name, result in kept.items() if name[1] in used}
    return kept if len(kept) <= 2 * len(mine) else mine

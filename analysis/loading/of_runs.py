"""Results of functions of a single run: computed once, by several processes for many runs, and kept (`cache`).

The file `.analysis/of_runs.parquet` has a row for each run and function. The key of a run is a hash of its row of
`runs` and of the state of its files.
"""

import functools
import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa

from analysis.loading import cache, index, processes
from analysis.loading.cases import Case

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
                cache.store(folder / FILE, pa.table(columns, schema=SCHEMA))
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
        if (folder / cache.FOLDER / index.FILE).is_file():
            return folder / cache.FOLDER
        return None if folder == folder.parent else above(folder.parent)

    return [above(Path(case["path"]).parent) if case["path"] else None for case in cases]


def _load(path: Path) -> Kept:
    table = cache.load(path, SCHEMA)
    functions, keys, results = (column.to_pylist() for column in (table or SCHEMA.empty_table()).columns)
    return dict(zip(zip(functions, keys, strict=True), results, strict=True))

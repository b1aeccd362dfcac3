"""Profiles by torch.profiler: where a step's time goes, by operator on a CPU and by kernel on a GPU.

Times are an operator's own, without those that it calls. The profiler slows down small operators most.
"""

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.breakdown import ALL
from analysis.configurations import CONFIGURATION, PLACE, SOFTWARE, WORK_NAMED, Group, completed, group
from analysis.loading import Results
from analysis.problem import Problem
from workload.contract.errors import BundleError
from workload.contract.record import Record

FILE = "torch/kernels.csv"
KIND = "torch"
# Those after them take less than the profiler's own disturbance; JSON and CSV have all.
SHOWN = 15
COLUMNS = (
    *WORK_NAMED,
    "profiles",
    "steps",
    "name",
    "launches",
    "duration_s",
    "share_of_time",
    "flop",
    "flop_per_s",
    "note",
    *(fact for fact in (*CONFIGURATION, *PLACE, *SOFTWARE) if fact not in WORK_NAMED),
)
# The operators that do the arithmetic of each kind of `complexity.flop_by_op`; `aten::conv2d` and the like only call
# them. Names as in PyTorch's native_functions.yaml (2.9).
WORKERS: Mapping[str, tuple[str, ...]] = {
    "convolution": (
        "aten::mkldnn_convolution",
        "aten::cudnn_convolution",
        "aten::_slow_conv2d_forward",
        "aten::_conv_depthwise2d",
        "aten::convolution_overrideable",
        "aten::_mps_convolution",
    ),
    "convolution_backward": ("aten::convolution_backward",),
    "matmul": ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::linear", "aten::mkldnn_linear"),
}


def operators(results: Results) -> tuple[pd.DataFrame, list[Problem]]:
    """A row per group of runs that may be pooled and operator, the longest first, then `all`; and files left unread.

    `launches`, `duration_s` (own time) and `flop` are those of one step. FLOP are the formulas', where one operator
    does all of a kind's arithmetic; NaN for the others. On a GPU the names are those of kernels.
    """
    problems: list[Problem] = []
    rows: list[dict[str, Any]] = []
    profiled = set(results.runs.loc[results.runs["profile_kind"] == KIND, "run_id"])
    for pool in group(completed(results.runs)):
        if not profiled.isdisjoint(pool.runs["run_id"]):
            rows += _rows(results, pool, profiled, problems)
    return pd.DataFrame(rows, columns=list(COLUMNS)), problems


def longest(table: pd.DataFrame, top: int) -> pd.DataFrame:
    """The `top` longest rows of each profile of `operators`, and the row for all of it."""
    if table.empty:
        return table
    whole = table["name"] == ALL
    parts = table[~whole].groupby([*WORK_NAMED, "note"], dropna=False, sort=False).head(top)
    return table.loc[sorted([*parts.index, *table.index[whole]])]


def _rows(results: Results, pool: Group, profiled: set[str], problems: list[Problem]) -> list[dict[str, Any]]:
    calls: dict[str, float] = {}
    self_s: dict[str, float] = {}
    profiles, steps, flop = 0, 0.0, dict[str, float]()
    for run_id, folder in zip(pool.runs["run_id"], pool.runs["path"], strict=True):
        if run_id not in profiled or not (path := Path(folder) / FILE).is_file():
            continue
        try:
            listed = read(path)
            record = results.record(run_id)
            steps += _steps(record)
        except (OSError, ValueError, BundleError) as error:
            problems.append(Problem(path=str(path), reason=str(error)))
            continue
        profiles += 1
        flop = flop or _flop_by_kind(record)
        for name, number, seconds in listed:
            calls[name] = calls.get(name, 0.0) + number
            self_s[name] = self_s.get(name, 0.0) + seconds
    if not profiles or not steps:
        return []
    total_s = sum(self_s.values())
    facts = {name: pool[name] for name in COLUMNS if name in pool.facts}
    facts |= {"profiles": profiles, "steps": steps, "note": "; ".join(pool.apart) or None}
    counted = _flop_by_operator(flop, calls)
    rows = [
        facts | _row(name, calls[name] / steps, self_s[name] / steps, self_s[name] / (total_s or math.nan), counted)
        for name in sorted(self_s, key=lambda name: -self_s[name])
    ]
    whole = {ALL: sum(flop.values())} if flop else {}
    return [*rows, facts | _row(ALL, sum(calls.values()) / steps, total_s / steps, 1.0, whole)]


def _row(name: str, calls: float, self_s: float, share: float, flop: Mapping[str, float]) -> dict[str, Any]:
    counted = flop.get(name)
    return {
        "name": name,
        "launches": calls,
        "duration_s": self_s,
        "share_of_time": share,
        "flop": counted,
        "flop_per_s": counted / self_s if counted and self_s else None,
    }


def read(path: Path) -> list[tuple[str, float, float]]:
    """Name, calls and own seconds of each row of a profile's table; `BundleError` for a file that is something else."""
    with path.open(newline="", encoding="utf-8", errors="replace") as text:
        rows = []
        for row in csv.DictReader(text):
            try:
                calls, seconds = float(row["calls"]), float(row["total_s"])
                rows.append((str(row["name"]), calls, seconds))
            except (KeyError, TypeError, ValueError) as error:
                raise _unreadable(len(rows) + 2) from error
            if not (math.isfinite(calls) and math.isfinite(seconds) and calls > 0 and seconds >= 0):
                raise _unreadable(len(rows) + 1)
    return rows


def _unreadable(line: int) -> BundleError:
    return BundleError(
        f"line {line} has no name, positive number of calls and seconds",
        hint="profile again: python -m workload profile BUNDLE",
    )


def _steps(record: Record) -> float:
    steps = record.profile.steps
    if steps is None or steps < 1 or steps != int(steps):
        raise ValueError("run.json does not say how many steps were profiled")
    return steps


def _flop_by_kind(record: Record) -> dict[str, float]:
    kinds = (record.complexity.flop_by_op if record.complexity else None) or {}
    return {kind: float(flop) for kind, flop in kinds.items() if flop}


def _flop_by_operator(flop: Mapping[str, float], names: Sequence[str] | Mapping[str, float]) -> dict[str, float]:
    """FLOP by operator, for the kinds whose arithmetic one operator does: of several, the shares are unknown."""
    present = {kind: [name for name in workers if name in names] for kind, workers in WORKERS.items()}
    return {present[kind][0]: value for kind, value in flop.items() if len(present.get(kind, ())) == 1}

"""Profiles by torch.profiler: shares of a step's time, by operator on a CPU and by kernel on a GPU.

The time of an operator excludes the operators that it calls. The profiler slows down small operators most.
"""

import csv
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from analysis.kernels.breakdown import ALL
from analysis.loading.configurations import UNNAMED, WORK_NAMED, Group, completed, group
from analysis.loading.index import Problem
from analysis.loading.tables import Tables, joined
from workload.contract.errors import BundleError
from workload.contract.record import Record
from workload.contract.text import percent

# Table of a profile by torch.profiler: kernels on a GPU, operators on a CPU, with their time.
LISTED_FILE = "torch/kernels.csv"
# Table of an imported trace: each operator with its work, see `analysis.importing.trace`.
WORK_FILE = "torch/operators.csv"
KIND = "torch"
# Most operators in a printed table: further ones take less time than the profiler's overhead. JSON and CSV list all.
SHOWN = 15
Table = TypeVar("Table")
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
    *UNNAMED,
)
WORK_COLUMNS = (*COLUMNS, "family", "bytes_lower", "bytes_upper", "intensity_low", "intensity_high")
# Operators that do the arithmetic of each kind of `complexity.flop_by_op`; operators such as `aten::conv2d` only call
# these. Names are those of PyTorch's native_functions.yaml (2.9).
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


def operators(results: Tables, *, with_attributed: bool = True) -> tuple[pd.DataFrame, list[Problem]]:
    """Table of the time per operator, and a problem for each file that cannot be read.

    A row per group of poolable runs and operator, longest first, then the group's total, named `all`. `launches`,
    `duration_s` (own time) and `flop` are per step. `flop`: by the model's formulas, known only if this operator alone
    does all arithmetic of a kind, for example all convolutions. On a GPU, `name` is that of a kernel. With
    `with_attributed` False, imported traces are left out, because `attributed` shows them.
    """
    problems: list[Problem] = []
    rows: list[dict[str, Any]] = []
    profiled = set(results.runs.loc[results.runs["profile_kind"] == KIND, "run_id"])
    if not with_attributed:
        paths = zip(results.runs["run_id"], results.runs["path"], strict=True)
        profiled -= {run_id for run_id, folder in paths if (Path(folder) / WORK_FILE).is_file()}
    for pool in group(completed(results.runs)):
        rows += _rows(results, pool, profiled, problems)
    return pd.DataFrame(rows, columns=list(COLUMNS)), problems


def attributed(results: Tables, keys: Sequence[str]) -> tuple[pd.DataFrame, list[Problem]]:
    """Table of the work of operators in imported traces, and a problem for each file that cannot be read.

    A row per group of runs and value of `keys` (family, name, or both), then the group's total, named `all`.
    `duration_s`: on a CPU the own time of the operators, on a GPU the time of the kernels that they launched. `flop`
    and `bytes_*` are modelled, per step; None if unknown for all operators of the row. `note`: which share of the time
    has no FLOP and bytes, and why.
    """
    problems: list[Problem] = []
    rows: list[dict[str, Any]] = []
    for pool in group(completed(results.runs[results.runs["profile_kind"] == KIND])):
        if profiles := _profiles(results, pool, WORK_FILE, read_work, problems):
            steps = sum(_steps(record) for _, record in profiles)
            facts = {name: pool[name] for name in WORK_COLUMNS if name in pool.facts}
            facts |= {"profiles": len(profiles), "steps": steps}
            operators = pd.concat([table for table, _ in profiles])
            rows += [facts | row for row in _summed(pool, operators, keys, steps)]
    return pd.DataFrame(rows, columns=list(WORK_COLUMNS)), problems


def _profiles(
    results: Tables, pool: Group, file: str, read_table: Callable[[Path], Table], problems: list[Problem]
) -> list[tuple[Table, Record]]:
    """The table `file` and the record of each run that has this file; an unreadable file is added to `problems`."""
    profiles = []
    for run_id, folder in zip(pool.values("run_id"), pool.values("path"), strict=True):
        path = Path(folder) / file
        if not path.is_file():
            continue
        try:
            table, record = read_table(path), results.record(run_id)
            _steps(record)
        except (OSError, ValueError, KeyError, BundleError) as error:
            problems.append(Problem(path=str(path), reason=str(error)))
        else:
            profiles.append((table, record))
    return profiles


def read_work(path: Path) -> pd.DataFrame:
    """The table of an imported trace. Raises `ValueError` if a row has no name, family, calls or seconds."""
    table = pd.read_csv(path, dtype={"name": str, "family": str, "lack": str}, keep_default_na=False, na_values=[""])
    for name in ("calls", "total_s", "flop", "bytes_lower", "bytes_upper"):
        table[name] = pd.to_numeric(table[name])
    if table[["name", "family", "calls", "total_s"]].isna().any(axis=None):
        raise ValueError("a row has no name, family, number of calls or seconds")
    return table


def _summed(pool: Group, table: pd.DataFrame, keys: Sequence[str], steps: float) -> list[dict[str, Any]]:
    """Rows by `keys`, longest first, then a row for all operators."""
    total_s = float(table["total_s"].sum())
    parts = [
        dict(zip(keys, values if isinstance(values, tuple) else (values,), strict=True))
        | _work_row(rows, steps, total_s, low, pool.apart)
        for values, rows in table.groupby(list(keys), sort=False)
        # Operators may use the same tensors: the highest of their lower bounds is that of all.
        for bounds in [rows[rows["bytes_lower"].notna()].groupby("name")["bytes_lower"].sum()]
        for low in [float(bounds.max()) / steps if len(bounds) else None]
    ]
    low = pool.median("bytes_lower_per_step") if table["flop"].notna().any() else None
    whole = {"family": ALL, "name": ALL} | _work_row(table, steps, total_s, low, pool.apart)
    return [*sorted(parts, key=lambda row: -float(row["duration_s"])), whole]


def _work_row(
    rows: pd.DataFrame, steps: float, total_s: float, low: float | None, apart: Sequence[str]
) -> dict[str, Any]:
    seconds = float(rows["total_s"].sum())
    known = rows[rows["flop"].notna()]
    flop, high = (float(known[name].sum()) / steps if len(known) else None for name in ("flop", "bytes_upper"))
    lacking = rows[rows["lack"].notna()]
    missing_s = float(lacking["total_s"].sum())
    why = " or ".join(lacking["lack"].unique())
    missing = f"no FLOP and bytes for {percent(missing_s / seconds)} of the time: {why}" if missing_s else None
    return {
        "launches": float(rows["calls"].sum()) / steps,
        "duration_s": seconds / steps,
        "share_of_time": seconds / total_s if total_s else None,
        "flop": flop,
        # The known FLOP divided by the time of all operators would be too low a rate.
        "flop_per_s": flop * steps / seconds if flop and seconds and not missing_s else None,
        "bytes_lower": low,
        "bytes_upper": high,
        "intensity_low": flop / high if flop and high else None,
        "intensity_high": flop / low if flop and low else None,
        "note": joined([why if len(lacking) == len(rows) else missing, *apart]),
    }


def longest(table: pd.DataFrame, top: int) -> pd.DataFrame:
    """The `top` longest rows of each profile in a table of `operators` or `attributed`, and the profile's total."""
    if table.empty:
        return table
    whole = table["name"] == ALL
    # In `attributed`, notes belong to single rows and do not identify a profile.
    of_profile = ("profiles", "steps") if "family" in table else ("note",)
    parts = table[~whole].groupby([*WORK_NAMED, *of_profile], dropna=False, sort=False).head(top)
    return table.loc[sorted([*parts.index, *table.index[whole]])]


def _rows(results: Tables, pool: Group, profiled: set[str], problems: list[Problem]) -> list[dict[str, Any]]:
    pool = pool.only([run_id in profiled for run_id in pool.values("run_id")])
    profiles = _profiles(results, pool, LISTED_FILE, read, problems)
    if not profiles:
        return []
    calls, self_s = defaultdict[str, float](float), defaultdict[str, float](float)
    for listed, _ in profiles:
        for name, number, seconds in listed:
            calls[name] += number
            self_s[name] += seconds
    steps, total_s = sum(_steps(record) for _, record in profiles), sum(self_s.values())
    works = ((record.complexity.flop_by_op if record.complexity else None) or {} for _, record in profiles)
    flop = next(filter(None, ({kind: float(flop) for kind, flop in kinds.items() if flop} for kinds in works)), {})
    facts = {name: pool[name] for name in COLUMNS if name in pool.facts}
    facts |= {"profiles": len(profiles), "steps": steps, "note": joined(pool.apart)}
    # A kind of arithmetic that several operators compute is left out, because the share of each is unknown.
    present = {kind: [name for name in workers if name in calls] for kind, workers in WORKERS.items()}
    counted = {present[kind][0]: value for kind, value in flop.items() if len(present.get(kind, ())) == 1}
    rows = [
        facts | _row(name, calls[name] / steps, self_s[name] / steps, self_s[name] / (total_s or math.nan), counted)
        for name in sorted(self_s, key=lambda name: -self_s[name])
    ]
    whole = {ALL: sum(flop.values())} if flop and not pool.median("unattributed_share") else {}
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
    """Name, calls and own seconds of each operator or kernel in a profile's table.

    Raises `BundleError` if a row lacks one of the three.
    """
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
    return float(steps)

"""Sum the kernels of profiles by family or name: shares of a step's time, and use of memory. Pure.

Times are the profiler's: kernels run one by one, at the profiler's clocks. Such times show which kernels matter, but
not the duration of a step.
"""

import csv
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from analysis.loading.configurations import UNNAMED, WORK_NAMED, Group, completed, group
from analysis.loading.index import Problem
from analysis.loading.tables import Tables, joined
from workload.contract import vocabulary
from workload.contract.errors import BundleError
from workload.contract.record import Record
from workload.contract.text import percent

# Columns that can be added up over launches.
_SUMS = ("duration_s", "flop", "flop_tensor", "dram_bytes", "l2_bytes", "l1_bytes")
# Percentages of peak, averaged over launches with time as weight.
_WEIGHTED = ("sm_percent", "memory_percent", "dram_percent")
# Name of the row for a whole profile.
ALL = "all"
# Note on a row whose FLOP lack some operations.
LOWER_BOUND = "FLOP are a lower bound"

# Part of the names of ncu's metrics, and of no other column: metrics that the user asked for have their names.
OWN = "__"

COLUMNS = (
    "launches",
    "duration_s",
    "share_of_time",
    "flop_per_s",
    "intensity_flop_per_byte",
    "l2_intensity",
    "l1_intensity",
    "flop",
    "flop_tensor",
    "dram_bytes",
    "l2_bytes",
    "l1_bytes",
    "flop_is_lower_bound",
    *_WEIGHTED,
)


def kind_of_l2_bytes(kernels: pd.DataFrame) -> str | None:
    """Kind of traffic that counts as L2 bytes, by the launches' compute capability; None if unknown."""
    if kernels["l2_bytes"].isna().all() or "compute_capability" not in kernels:
        return None
    labels = {
        vocabulary.l2_bytes_are(str(capability)) for capability in kernels["compute_capability"].dropna().unique()
    }
    return "; ".join(sorted(labels)) or None


def in_steps(kernels: pd.DataFrame) -> tuple[pd.DataFrame, int | None]:
    """The launches of training steps, and the number of steps.

    Our own profiles mark each step by a range. They also contain matrix products of known size, for calibration, which
    are left out. A profile without ranges of steps is returned whole, with None as the number of steps.
    """
    texts = kernels["range"].astype("category")
    steps = [vocabulary.step_of(str(mark).partition("/")[0]) for mark in texts.cat.categories]
    numbers = np.array([-1 if step is None else step[0] for step in steps] + [-1], dtype=np.int64)
    step_of_launch = numbers[texts.cat.codes]
    in_a_step = step_of_launch >= 0
    if not in_a_step.any():
        return kernels, None
    return kernels[in_a_step], len(np.unique(step_of_launch[in_a_step]))


def breakdown(kernels: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Sums by combination of `keys`, longest first; without keys, a single row. Columns: `COLUMNS`.

    A sum is NaN if any launch lacks the counter, because the sum would be too low. Intensity is the sum of FLOP divided
    by the sum of bytes (of DRAM, L2, L1), NaN if no byte was moved. A metric that the user asked for is added up if its
    name ends in `.sum`; of `.max` and `.min` the row has the extreme, of others the mean with time as weight.
    """
    own = own_metrics(kernels)
    added_up = [*_SUMS, *(name for name in own if name.endswith(".sum"))]
    extremes = {name: name.rpartition(".")[2] for name in own if name.endswith((".max", ".min"))}
    weighted = [*_WEIGHTED, *(name for name in own if name not in added_up and name not in extremes)]
    table = pd.DataFrame(
        {name: kernels[name] for name in (*added_up, *extremes)}
        | {name: kernels[name] * kernels["duration_s"] for name in weighted}
        | {"flop_is_lower_bound": kernels["flop_is_lower_bound"].astype(bool)}
    )
    if not len(table):
        return pd.DataFrame(columns=[*keys, *COLUMNS, *own])
    groups = [kernels[key] for key in keys] or [pd.Series(ALL, index=kernels.index, name=ALL)]
    grouped = table.groupby(groups, observed=True, dropna=False, sort=False)
    added, counts, launches = grouped.sum(), grouped.count(), grouped.size()
    sums = added[[*added_up, *weighted]].astype(float)
    sums = sums.where(counts[list(sums.columns)].eq(launches, axis=0))
    total_s = float(table["duration_s"].sum()) if table["duration_s"].notna().all() else np.nan
    rows = pd.DataFrame(
        {"launches": launches}
        | {name: sums[name] for name in added_up}
        | {
            "share_of_time": sums["duration_s"] / (total_s or np.nan),
            "flop_per_s": _quotient(sums["flop"], sums["duration_s"]),
            "intensity_flop_per_byte": _quotient(sums["flop"], sums["dram_bytes"]),
            "l2_intensity": _quotient(sums["flop"], sums["l2_bytes"]),
            "l1_intensity": _quotient(sums["flop"], sums["l1_bytes"]),
            "flop_is_lower_bound": added["flop_is_lower_bound"] > 0,
        }
        | {name: _quotient(sums[name], sums["duration_s"]) for name in weighted}
        | {name: grouped[name].agg(extreme) for name, extreme in extremes.items()}
    )
    ordered = rows.sort_values("duration_s", ascending=False, kind="stable").reset_index(drop=not keys)
    return ordered[[*keys, *COLUMNS, *own]]


def own_metrics(table: pd.DataFrame) -> list[str]:
    """Names of the columns with metrics that the user added by `--ncu-metrics`."""
    return [str(name) for name in table.columns if OWN in str(name)]


def per_step(rows: pd.DataFrame, steps: int | None) -> pd.DataFrame:
    """Launches, time, FLOP and bytes divided by `steps`, if known; rates and ratios stay unchanged."""
    if not steps:
        return rows
    own = [name for name in own_metrics(rows) if name.endswith(".sum")]
    scaled = {name: rows[name] / steps for name in ("launches", *_SUMS, *own)}
    return rows.assign(**scaled)


def _quotient(dividend: "pd.Series[float]", divisor: "pd.Series[float]") -> "pd.Series[float]":
    """Quotient; NaN where the divisor is not positive."""
    return dividend / divisor.where(divisor > 0)


# --- groups of runs


def kernel_points(results: Tables, *, keys: Sequence[str] = ("family",)) -> pd.DataFrame:
    """FLOP/s and FLOP per byte of the kernels of profiled runs, the kernels with the longest time first.

    A row sums the kernels of one group of runs that have the same values of `keys`, for example the same family.

    `launches` and `duration_s` (seconds) are per step if the number of `steps` in the profile is known, otherwise of
    the whole profile. Intensities are FLOP per byte of DRAM, L2 and L1, NaN if the bytes were not counted.
    `l2_bytes_are` says which traffic counts as L2 bytes. The time is the profiler's, so `flop_per_s` compares kernels
    with each other; it is not the rate of the step.
    """
    launches = results.kernels.groupby("run_id", sort=False).indices
    profiled = [
        pool for pool in group(completed(results.runs)) if not launches.keys().isdisjoint(pool.values("run_id"))
    ]
    tables = [kernel_rows(results, pool, launches, keys) for pool in profiled]
    columns = [*WORK_NAMED, "profiles", "steps", *keys, *COLUMNS, "l2_bytes_are", "note", *UNNAMED]
    if not tables:
        return pd.DataFrame(columns=columns)
    whole = pd.concat(tables, ignore_index=True)
    return whole[[*columns, *own_metrics(whole)]]


def kernel_rows(results: Tables, pool: Group, launches: Mapping[Any, Any], keys: Sequence[str]) -> pd.DataFrame:
    """Rows of one group. `launches`: for each run id, the positions of its rows in `results.kernels`."""
    launched, number, profiles = launched_in_steps(results, pool, launches)
    rows = per_step(breakdown(launched, keys), number)
    label = kind_of_l2_bytes(launched)
    facts = {**pool.facts, "profiles": profiles, "steps": number, "l2_bytes_are": label}
    return rows.assign(**facts, note=joined([*pool.apart, label and f"L2 bytes are {label}"]))


def launched_in_steps(
    results: Tables, pool: Group, launches: Mapping[Any, Any]
) -> tuple[pd.DataFrame, int | None, int]:
    """The launches of a group's profiles, and the numbers of steps (None if unknown) and of profiles.

    `launches`: see `kernel_rows`; at least one run of the group must have launches.
    """
    parts, steps = [], list[int | None]()
    for run_id in pool.values("run_id"):
        if run_id in launches:
            kept, steps_in_profile = in_steps(results.kernels.iloc[launches[run_id]])
            parts.append(kept)
            # Of an imported profile, the number of steps that the user gave.
            with suppress(BundleError):
                steps_in_profile = steps_in_profile or int(results.record(run_id).profile.steps_profiled or 0)
            steps.append(steps_in_profile or None)
    known = [number for number in steps if number]
    return pd.concat(parts), sum(known) if len(known) == len(steps) else None, len(parts)


# --- operators

# Table of a profile by torch.profiler: kernels on a GPU, operators on a CPU, with their time.
LISTED_FILE = "torch/kernels.csv"
# Table of an imported trace: each operator with its work, see `analysis.importing.trace`.
WORK_FILE = "torch/operators.csv"
KIND = "torch"
# Most operators in a printed table: further ones take less time than the profiler's overhead. JSON and CSV list all.
SHOWN = 15
Table = TypeVar("Table")
OPERATOR_COLUMNS = (
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
WORK_COLUMNS = (*OPERATOR_COLUMNS, "family", "bytes_lower", "bytes_upper", "intensity_low", "intensity_high")
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
    return pd.DataFrame(rows, columns=list(OPERATOR_COLUMNS)), problems


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
    facts = {name: pool[name] for name in OPERATOR_COLUMNS if name in pool.facts}
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

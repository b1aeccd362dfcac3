"""Sum the kernels of profiles by family or name: shares of a step's time, and use of memory. Pure.

Times are the profiler's: kernels run one by one, at the profiler's clocks. Such times show which kernels matter, but
not the duration of a step.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pandas as pd

from analysis.loading.configurations import UNNAMED, WORK_NAMED, Group, completed, group
from analysis.loading.tables import Tables, joined
from workload.contract import vocabulary
from workload.contract.errors import BundleError

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

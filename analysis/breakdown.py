"""Kernels of profiles, summed by family or name: where the time of a step goes, and how busy the memory is. Pure.

Times are the profiler's: kernels run one by one, at its clocks. They say which kernels matter, not how long a step is.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from workload.contract import vocabulary

# What can be added up over launches.
_SUMS = ("duration_s", "flop", "flop_tensor", "dram_bytes", "l2_bytes", "l1_bytes")
# Percentages of peak: their mean over launches, weighted by time.
_WEIGHTED = ("sm_percent", "memory_percent", "dram_percent")
# How a whole profile is called in a table of its parts.
ALL = "all"

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


def l2_bytes_are(kernels: pd.DataFrame) -> str | None:
    """Which traffic the L2 bytes are, by the compute capability of the launches; None where neither is known."""
    if kernels["l2_bytes"].isna().all() or "compute_capability" not in kernels:
        return None
    labels = {
        vocabulary.l2_bytes_are(str(capability)) for capability in kernels["compute_capability"].dropna().unique()
    }
    return "; ".join(sorted(labels)) or None


def in_steps(kernels: pd.DataFrame) -> tuple[pd.DataFrame, int | None]:
    """The launches of training steps, and how many steps there are.

    A profile of ours also holds matrix products of known size, for calibration. One without our marks is taken whole,
    and nobody knows how many steps it holds: None.
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
    """A row per combination of `keys`, the longest first; without keys one row for everything. Columns: `COLUMNS`.

    Sums over launches; NaN as soon as one launch lacks the counter, since a sum without it would be too low. Intensity
    is the sum of FLOP by the sum of bytes (of DRAM, L2, L1), NaN where no byte was moved.
    """
    table = pd.DataFrame(
        {name: kernels[name] for name in _SUMS}
        | {name: kernels[name] * kernels["duration_s"] for name in _WEIGHTED}
        | {"flop_is_lower_bound": kernels["flop_is_lower_bound"].astype(bool)}
    )
    if not len(table):
        return pd.DataFrame(columns=[*keys, *COLUMNS])
    by = [kernels[key] for key in keys] or [pd.Series(ALL, index=kernels.index, name=ALL)]
    grouped = table.groupby(by, observed=True, dropna=False, sort=False)
    added, known, launches = grouped.sum(), grouped.count(), grouped.size()
    sums = added[[*_SUMS, *_WEIGHTED]].astype(float)
    sums = sums.where(known[list(sums.columns)].eq(launches, axis=0))
    total_s = float(table["duration_s"].sum()) if table["duration_s"].notna().all() else np.nan
    rows = pd.DataFrame(
        {"launches": launches}
        | {name: sums[name] for name in _SUMS}
        | {
            "share_of_time": sums["duration_s"] / (total_s or np.nan),
            "flop_per_s": _by(sums["flop"], sums["duration_s"]),
            "intensity_flop_per_byte": _by(sums["flop"], sums["dram_bytes"]),
            "l2_intensity": _by(sums["flop"], sums["l2_bytes"]),
            "l1_intensity": _by(sums["flop"], sums["l1_bytes"]),
            "flop_is_lower_bound": added["flop_is_lower_bound"] > 0,
        }
        | {name: _by(sums[name], sums["duration_s"]) for name in _WEIGHTED}
    )
    ordered = rows.sort_values("duration_s", ascending=False, kind="stable").reset_index(drop=not keys)
    return ordered[[*keys, *COLUMNS]]


def per_step(rows: pd.DataFrame, steps: int | None) -> pd.DataFrame:
    """Launches, time, FLOP and bytes of one step, where their number is known; rates and ratios stay as they are."""
    if not steps:
        return rows
    scaled = {name: rows[name] / steps for name in ("launches", *_SUMS)}
    return rows.assign(**scaled)


def totals(kernels: pd.DataFrame) -> Mapping[str, float]:
    """The row of a whole profile, by column."""
    return {str(name): value for name, value in breakdown(kernels, ()).iloc[0].items()}


def _by(left: "pd.Series[float]", right: "pd.Series[float]") -> "pd.Series[float]":
    """Absent instead of infinite."""
    return left / right.where(right > 0)

"""Types and helpers of all statistics: samples as arrays, intervals and estimates; the figure of several runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from workload.contract.text import counted, percent
from workload.stats.intervals import (
    FIRST_LOOK,
    LEAST_REPLICATES,
    LEVEL,
    MAD_TO_STDEV,
    interval_at_look,
    interval_over_runs,
    order_statistics_from,
    single_contrast,
)

Floats: TypeAlias = npt.NDArray[np.float64]
Mask: TypeAlias = npt.NDArray[np.bool_]
# One entry per run: its steps in order, or its single figure.
Runs: TypeAlias = Sequence[npt.ArrayLike]

LEAST_FOR_SPREAD = 2
# sqrt(pi / 2): factor from the mean absolute deviation of a normal sample to its standard deviation.
MEAN_AD_TO_STDEV = 1.2533141373155003


class Method(StrEnum):
    """Method of an interval, in words for the user."""

    STUDENT_T = "Student t over runs (about 90 % in place of 95 % if runs fall into two modes)"
    BLOCKS = "Student t over blocks in their order, which holds where --until stopped them"
    ORDER_STATISTICS = "order statistics over runs"
    PAIRED_T = "Student t over blocks, runs paired within them"
    TWO_WAY = "Student t over blocks, scatter of all their configurations"
    WELCH = (
        "Welch t over runs, variances partly shared "
        "(88 % in place of 95 % if 3 runs of one side scatter 4 times as much as 10 of the other)"
    )
    FISHER_Z = "Fisher z with effective n"
    F_AND_CHI2 = "F and chi-square distributions"


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A confidence interval in the unit of its estimate."""

    low: float
    high: float
    level: float = LEVEL
    method: Method

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A figure from `n` finite values, with an interval.

    `reason`: why figure or interval is absent, or an assumption of the interval; None if neither applies.
    """

    value: float | None
    interval: Interval | None = None
    n: int
    reason: str | None = None

    @property
    def interval_words(self) -> str | None:
        """Level and method of the interval, or the reason why there is none."""
        return f"{percent(self.interval.level)}, {self.interval.method}" if self.interval else self.reason

    def columns(self, name: str) -> dict[str, float | None]:
        """Cells of a table's row: the figure as `name`, the ends of its interval as `name_low` and `name_high`."""
        ends = self.interval
        return {
            name: self.value,
            f"{name}_low": ends.low if ends else None,
            f"{name}_high": ends.high if ends else None,
        }


def finite(values: npt.ArrayLike) -> tuple[Floats, int]:
    """Finite values as a 1-D array, and the number of others; a single number becomes an array of one.

    Raises `ValueError` for an array of more dimensions.
    """
    array = np.atleast_1d(np.asarray(values, dtype=np.float64))
    if array.ndim != 1:
        raise ValueError(f"one series of numbers is needed; got an array of {array.ndim} dimensions")
    kept = array[np.isfinite(array)]
    return kept, array.size - kept.size


def ordered(values: npt.ArrayLike, *, least: int) -> tuple[Floats, str | None]:
    """Finite values, and a reason not to analyse their order, or None: gaps, fewer than `least` values, all equal."""
    kept, dropped = finite(values)
    if dropped:
        total = kept.size + dropped
        return kept, f"{dropped} of {total} steps are not finite numbers: the order of steps is lost"
    if kept.size < least:
        return kept, f"{counted(kept.size, 'step')}: at least {least} are needed"
    if np.ptp(kept) == 0:
        return kept, f"all {kept.size} steps have the same time: nothing varies"
    return kept, None


def too_few(number: int, noun: str) -> str:
    """Words for a number that is too small: `two blocks: too few`."""
    return f"{ {0: 'no', 1: 'one', 2: 'two'}.get(number, number) } {noun}{'' if number == 1 else 's'}: too few"


def thinned(series: Floats, most: int) -> tuple[Floats, int]:
    """Medians of groups of neighbours, at most `most`, and the steps per group; a remainder at the end is left out."""
    width = -(-series.size // most)
    if width == 1:
        return series, 1
    groups = series[: series.size // width * width].reshape(-1, width)
    return np.asarray(np.median(groups, axis=1), dtype=np.float64), width


def median_of(values: Floats) -> np.float64:
    """`numpy.median` of a 1-D array in a tenth of its time, for the short arrays of a run."""
    n = values.size
    ascending = np.sort(values)
    # NaN is sorted last.
    if not n or np.isnan(ascending[-1]):
        return np.float64("nan")
    middle: np.float64 = ascending[n // 2]
    return middle if n % 2 else (ascending[n // 2 - 1] + middle) / 2


def ranks(values: Floats) -> Floats:
    """Ranks from 1 on; equal values share the mean of their ranks. `scipy.stats.rankdata` is slow to import."""
    ascending = np.sort(values)
    first, last = (np.searchsorted(ascending, values, side) for side in ("left", "right"))
    return np.asarray((first + 1 + last) / 2, dtype=np.float64)


def robust_stdev(values: Floats) -> float:
    """Robust standard deviation: 1.4826 x median absolute deviation; if that is 0, 1.2533 x mean absolute deviation.

    Iglewicz & Hoaglin, How to Detect and Handle Outliers, 1993, p. 11.
    """
    deviations = np.abs(values - median_of(values))
    return float(MAD_TO_STDEV * median_of(deviations)) or float(MEAN_AD_TO_STDEV * deviations.mean())


# --- several runs


def over_runs(figures: npt.ArrayLike, *, level: float = LEVEL) -> Estimate:
    """Median over runs of one figure per run (a median step time, images/s), with its interval."""
    values, _ = finite(figures)
    n = values.size
    if not n:
        return Estimate(value=None, n=0, reason="no run: no figure")
    median = float(np.median(values))
    if refusal := no_spread(values):
        return Estimate(value=median, n=n, reason=refusal)
    ends = interval_over_runs(values.tolist(), level)
    assert ends is not None
    is_student = n < order_statistics_from(level)
    reason = f"{counted(n, 'run')}: the interval assumes that runs are normally distributed" if is_student else None
    method = Method.STUDENT_T if is_student else Method.ORDER_STATISTICS
    return Estimate(
        value=median, interval=Interval(low=ends[0], high=ends[1], level=level, method=method), n=n, reason=reason
    )


def over_blocks(figures: Sequence[float]) -> Estimate:
    """Geometric mean of one figure per block, in the order of the blocks, with its interval.

    The launcher's option `--until` decides with this interval when a sweep ends. The interval is valid although
    `--until` also tested the figures after fewer blocks, and allows for correlated blocks. Raises `ValueError` for
    fewer blocks than the first test needs.
    """
    look = interval_at_look(single_contrast(figures), target=1.0)
    if look.blocks < FIRST_LOOK:
        raise ValueError(f"{look.blocks} blocks: an interval needs {FIRST_LOOK} or more")
    if look.low is None or look.high is None:
        return Estimate(value=look.value, n=look.blocks, reason=look.reason)
    interval = Interval(low=look.low, high=look.high, method=Method.BLOCKS)
    return Estimate(value=look.value, interval=interval, n=look.blocks, reason=look.width)


def no_spread(figures: Floats) -> str | None:
    """Reason why these figures, one per run, give no interval; None if they give one."""
    if figures.size == 1:
        return "one run: no interval"
    if figures.size < LEAST_REPLICATES:
        return f"{too_few(figures.size, 'run')} for an interval"
    if np.ptp(figures) == 0:
        return f"all {figures.size} runs have exactly the same figure: no interval (perhaps they are copies of one run)"
    return None

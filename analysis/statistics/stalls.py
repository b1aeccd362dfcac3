"""Outliers, and scattered slow steps: few that stall, or many at a second speed."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from analysis.statistics.samples import LEAST_FOR_SPREAD, Floats, Mask, finite, median_of, robust_stdev

# 1 in 1.7 million values of a normal sample lies beyond 5 standard deviations. Step times have heavier tails: with 3,
# a per cent of a good run's steps would be outliers.
OUTLIER_STDEVS = 5.0
# A stall is an outlier above 1.5 x the median, which is more than the noise of a clock.
STALL_RATIO = 1.5
# Two or more outliers need a smaller ratio than a single outlier. If 3 % of the steps are outliers by nature, fewer
# than 1 in 200 runs of 20 steps have two steps above this ratio that together cost 1 % of the throughput.
REPEATED, REPEATED_RATIO = 2, 1.2
# If more than 1 of 10 steps are slow, they are the run's normal behaviour.
MOST_SHARE = 0.1

# Two groups are two speeds if their means are at least this many within-group standard deviations apart, with a gap of
# at least this share of the distance. A sample of one normal group reaches 3 to 4 deviations (20 steps: 5), one of an
# exponential group 6.5.
SPEEDS_APART = 7.0
SPEEDS_GAP = 0.3
# Times whose relative difference is below this are equal, because sums of squares are not more accurate.
SAME = 1e-6
# Least steps of either group: a smaller group may be chance or stalls.
LEAST_AT_A_SPEED = 3


def outliers(values: npt.ArrayLike) -> Mask:
    """Mask of the values beyond the median +- 5 robust standard deviations (Hampel's identifier).

    False for values that are not finite. All False if fewer than two values are finite.
    """
    array = np.atleast_1d(np.asarray(values, dtype=np.float64))
    kept, _ = finite(array)
    if kept.size < LEAST_FOR_SPREAD:
        return np.zeros(array.shape, dtype=np.bool_)
    median, reach = float(median_of(kept)), OUTLIER_STDEVS * robust_stdev(kept)
    return (array > median + reach) | (array < median - reach)


@dataclass(frozen=True, kw_only=True)
class Stalls:
    """Stalled steps of a series. `ratio`: their median over that of the rest; `lost`: share of throughput they cost.

    `mask`: True for stalled steps, shape of the series.
    """

    n: int
    count: int
    ratio: float | None
    lost: float
    mask: Mask


def stalls(series: Floats, *, repeated: bool = False) -> Stalls:
    """Outliers (see `outliers`) above 1.5 x the median, if at most 1 of 10 steps is such an outlier.

    `repeated`: find two or more outliers above 1.2 x the median instead.
    """
    n = series.size
    median = float(median_of(series)) if n else 0.0
    none = Stalls(n=n, count=0, ratio=None, lost=0.0, mask=np.zeros(n, dtype=np.bool_))
    if median <= 0:
        return none
    least, ratio = (REPEATED, REPEATED_RATIO) if repeated else (1, STALL_RATIO)
    mask = outliers(series) & (series > ratio * median)
    if not least <= mask.sum() <= MOST_SHARE * n:
        return none
    lost = float((series[mask] - median).sum() / series.sum())
    times = float(median_of(series[mask]) / median_of(series[~mask]))
    return Stalls(n=n, count=int(mask.sum()), ratio=times, lost=lost, mask=mask)


@dataclass(frozen=True, kw_only=True)
class Speeds:
    """Two speeds of a run: `slow` of `n` steps take `ratio` times as long as the others, by means."""

    n: int
    slow: int
    ratio: float


def two_speeds(series: Floats) -> Speeds | None:
    """Split steps into a fast and a slow group, each of at least a tenth of the steps; None if there is one speed.

    The split minimises the variance within groups: Otsu, A threshold selection method from gray-level histograms, IEEE
    Transactions on Systems 9 (1979). Measure of separation: Ashman, Bird & Zepf, Astronomical Journal 108 (1994).
    """
    n = series.size
    least = max(LEAST_AT_A_SPEED, int(np.ceil(MOST_SHARE * n)))
    if n < 2 * least or series.min() <= 0:
        return None
    ordered, fast = np.sort(series), np.arange(least, n - least + 1)
    sums = np.cumsum(ordered)
    low, high = sums[fast - 1] / fast, (sums[-1] - sums[fast - 1]) / (n - fast)
    squares = np.maximum(ordered @ ordered - fast * low**2 - (n - fast) * high**2, 0.0)
    best = int(np.argmin(squares))
    count, apart = int(fast[best]), float(high[best] - low[best])
    steps = np.diff(ordered)
    # Rounded times differ at least by the resolution of their clock.
    grain = float(steps[steps > SAME * ordered[-1]].min(initial=np.inf))
    within = max(float(np.sqrt(squares[best] / (n - 2))), grain)
    if apart < SPEEDS_APART * within or steps[count - 1] < SPEEDS_GAP * apart:
        return None
    return Speeds(n=n, slow=n - count, ratio=float(high[best] / low[best]))

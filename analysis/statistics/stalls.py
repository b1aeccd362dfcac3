"""Steps that take longer than the rest, here and there: few that stall, or many at a second speed."""

from dataclasses import dataclass

import numpy as np

from analysis.statistics.samples import Floats, Mask
from analysis.statistics.summary import outliers

# Half as long again as the median, and beyond what the other steps vary by: no noise of a clock's.
STALL_RATIO = 1.5
# Several steps beyond what the others vary by are no chance from less on: heavy tails of 3 % make two of 20 steps this
# long, and take 1 % of the throughput with them, in fewer than 1 of 200 runs.
REPEATED, REPEATED_RATIO = 2, 1.2
# More than 1 of 10 slow steps are no exceptions, but how the run goes.
MOST_SHARE = 0.1

# Two groups of steps are two speeds where their means are this many standard deviations within a group apart, and where
# none is in the gap of a third of that. A sample of one normal group has 3 to 4 (20 steps: 5), of one exponential 6.5.
SPEEDS_APART = 7.0
SPEEDS_GAP = 0.3
# Times that differ by less than this share are one time: sums of squares are no more exact.
SAME = 1e-6
# Fewer steps are stalls, and of fewer than this number chance makes a group.
LEAST_AT_A_SPEED = 3


@dataclass(frozen=True, kw_only=True)
class Stalls:
    """`mask` has the shape of the series; `ratio`: their median over that of the rest; `lost`: share of throughput."""

    n: int
    count: int
    ratio: float | None
    lost: float
    mask: Mask


def stalls(series: Floats, *, repeated: bool = False) -> Stalls:
    """Steps above 1.5 x the median and 5 robust standard deviations, if they are at most 1 of 10.

    `repeated`: from 1.2 x the median on, where there are two or more.
    """
    n = series.size
    median = float(np.median(series)) if n else 0.0
    none = Stalls(n=n, count=0, ratio=None, lost=0.0, mask=np.zeros(n, dtype=np.bool_))
    if median <= 0:
        return none
    least, ratio = (REPEATED, REPEATED_RATIO) if repeated else (1, STALL_RATIO)
    mask = outliers(series).mask & (series > ratio * median)
    if not least <= mask.sum() <= MOST_SHARE * n:
        return none
    lost = float((series[mask] - median).sum() / series.sum())
    times = float(np.median(series[mask]) / np.median(series[~mask]))
    return Stalls(n=n, count=int(mask.sum()), ratio=times, lost=lost, mask=mask)


@dataclass(frozen=True, kw_only=True)
class Speeds:
    """`slow` of `n` steps take `ratio` times as long as the others, by means."""

    n: int
    slow: int
    ratio: float


def two_speeds(series: Floats) -> Speeds | None:
    """The two groups whose members differ least, at least a tenth of the steps in each; None where there is one speed.

    Otsu, A threshold selection method from gray-level histograms, IEEE Transactions on Systems 9 (1979); apart as
    Ashman, Bird & Zepf, Astronomical Journal 108 (1994), measure it.
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
    # Times that a clock rounds differ by its grain at least.
    grain = float(steps[steps > SAME * ordered[-1]].min(initial=np.inf))
    within = max(float(np.sqrt(squares[best] / (n - 2))), grain)
    if apart < SPEEDS_APART * within or steps[count - 1] < SPEEDS_GAP * apart:
        return None
    return Speeds(n=n, slow=n - count, ratio=float(high[best] / low[best]))

"""Outliers, few slow steps (stalls), the end of the warm-up, and whether the rest of the steps is steady."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from analysis.statistics.autocorrelation import LEAST_STEPS as LEAST_ORDERED
from analysis.statistics.changes import Scan, Shape, scan
from analysis.statistics.samples import (
    LEAST_FOR_SPREAD,
    Floats,
    Mask,
    finite,
    median_of,
    ordered,
    robust_stdev,
    thinned,
)
from workload.contract.text import signed_percent

# Least steps to judge a run: the default number of measured steps of a CPU run.
LEAST_STEPS = 20
# Least steps of a scan: LEAST_STEPS without the one or two first steps that may be removed.
LEAST_SCANNED = 18
# Relative change up to which a run is steady: a smaller one affects no decision between machines, even if certain.
TOLERANCE = 0.01
# One or two first steps are too few for a scan. They are a warm-up if they are FIRST_APART times as far from the median
# as any later step.
MOST_FIRST = 2
FIRST_APART = 2.0
# A timer that reads more than this share of the steps as 0 s cannot be trusted.
MOST_WITHOUT_TIME = 0.1
# If no change was found, `visible` is the smallest change of a fifth of the steps that is found 9 times out of 10.
VISIBLE_SHARE = 0.2
POWER_SCORE = 1.2816
# A run whose visible change is larger than this is called steady only with a note.
WANTED_VISIBLE = 0.05
# 1000 points have 500,000 pairwise slopes, which take 0.05 s. Longer series are first reduced to medians of neighbours.
MOST_POINTS = 1000
# Limits of a straight line's t, which series without a slope exceed in at most 1 of 100 cases, by number of steps
# (rows) and by lag-1 correlation of the residuals, in classes from below -0.1 to 0.6 and more, as printed by
# benchmarks/false_alarms.py --limits. Few steps of slow noise look like a slope. From 100 steps on, the scan for
# changes finds a slope.
LEAK_LAG1 = (-0.1, 0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
LEAK_LIMITS: Mapping[int, tuple[float, ...]] = {
    20: (2.9, 6.1, 9.2, 10.8, 12.2, 13.2, 15.1, 15.1, 15.1),
    30: (2.5, 3.0, 4.0, 6.6, 13.0, 14.0, 15.4, 15.4, 15.4),
    50: (2.4, 2.4, 3.0, 4.1, 5.9, 13.8, 15.3, 15.6, 17.1),
}
LEAST_WITHOUT_LEAK = 100
# Residuals below this share are rounding errors: the line fits exactly.
SAME = 1e-12
# 1 in 1.7 million values of a normal sample lies beyond 5 standard deviations. Step times have heavier tails: with 3,
# a per cent of a good run's steps would be outliers.
OUTLIER_STDEVS = 5.0
# A stall is an outlier above 1.5 x the median, which is more than the noise of a clock.
STALL_RATIO = 1.5
# Two or more outliers need a smaller ratio than a single outlier. If 3 % of the steps are outliers by nature, fewer
# than 1 in 200 runs of 20 steps have two steps above this ratio that together cost 1 % of the throughput.
REPEATED, REPEATED_RATIO = 2, 1.2
# If more than 1 of 10 steps are slow, they are the run's normal behaviour.
MOST_STALLED = 0.1
# Two groups are two speeds if their means are at least this many within-group standard deviations apart, with a gap of
# at least this share of the distance. A sample of one normal group reaches 3 to 4 deviations (20 steps: 5), one of an
# exponential group 6.5.
SPEEDS_APART = 7.0
SPEEDS_GAP = 0.3
# Times whose relative difference is below this are equal, because sums of squares are not more accurate.
SAME_TIME = 1e-6
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
    if not least <= mask.sum() <= MOST_STALLED * n:
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
    least = max(LEAST_AT_A_SPEED, int(np.ceil(MOST_STALLED * n)))
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
    grain = float(steps[steps > SAME_TIME * ordered[-1]].min(initial=np.inf))
    within = max(float(np.sqrt(squares[best] / (n - 2))), grain)
    if apart < SPEEDS_APART * within or steps[count - 1] < SPEEDS_GAP * apart:
        return None
    return Speeds(n=n, slow=n - count, ratio=float(high[best] / low[best]))


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change: steps `start` to `stop` (from 0, `stop` excluded) take `ratio` times as long as the others, by medians.

    In a shift, `stop` is the end of the series, and the others are the earlier steps.
    """

    n: int
    start: int
    stop: int
    ratio: float

    @property
    def is_shift(self) -> bool:
        """Whether the change lasts to the end."""
        return self.stop == self.n

    def __str__(self) -> str:
        if self.is_shift:
            return f"from step {self.start + 1} of {self.n} on, steps take {self.ratio:.3g} x those before"
        return f"steps {self.start + 1} to {self.stop} of {self.n} take {self.ratio:.3g} x the others"


@dataclass(frozen=True, kw_only=True)
class SteadyState:
    """Whether a run is steady after its first `warmup_steps`, which are slower. `steady`: None if it cannot be judged.

    `drift`: change of the steps after the warm-up by their trend, as a fraction. `change` or `drifts` (never both): why
    the run is not steady. `visible`: smallest change of a fifth of the steps that would be found 9 times out of 10, as
    a share of the median. `stalls` are separate: a run with stalls may be steady between them.
    """

    n: int
    steady: bool | None
    warmup_steps: int | None
    drift: float | None
    change: Change | None = None
    drifts: bool = False
    stalls: Stalls | None = None
    visible: float | None = None
    reason: str

    @property
    def unseen(self) -> str | None:
        """Sentence on the largest change that may have been missed; None if it is at most 5 %, or unknown."""
        if self.visible is None or self.visible <= WANTED_VISIBLE:
            return None
        return f"{self.n} steps are too few to notice if a fifth of them took {1 + self.visible:.3g} x the others"

    @property
    def slow_steps(self) -> Mask | None:
        """Mask of the slow steps; None if no step is slow.

        Slow are the steps on the slower side of a change; for a drift, the slower half of the run; else the warm-up.
        """
        steps = np.arange(self.n)
        if self.change:
            inside = (steps >= self.change.start) & (steps < self.change.stop)
            return inside if self.change.ratio > 1 else ~inside
        if self.drifts and self.drift:
            later = steps >= self.n / 2
            return later if self.drift > 0 else ~later
        return steps < self.warmup_steps if self.warmup_steps else None


def steady_state(values: npt.ArrayLike, *, tolerance: float = TOLERANCE) -> SteadyState:
    """Find the warm-up of a series of step times, and test whether the rest is steady.

    The scan for changes (`analysis.statistics.changes`) is repeated after slow first steps are removed as warm-up.
    Steady: the rest has no change above the fraction `tolerance` that chance does not explain. A warm-up is slower than
    the rest, and at most half of the series: a longer slow start has another cause.
    """
    series, refusal = ordered(values, least=LEAST_STEPS)
    n = series.size
    without = int((series <= 0).sum())
    if without > MOST_WITHOUT_TIME * n:
        refusal = f"{without} of {n} steps have a time of 0 s: no level"
    elif refusal and n >= LEAST_STEPS and np.isfinite(np.asarray(values, dtype=np.float64)).all():
        return SteadyState(n=n, steady=True, warmup_steps=0, drift=None, reason="all steps have the same time")
    if refusal:
        return SteadyState(n=n, steady=None, warmup_steps=None, drift=None, reason=refusal)
    warmup, result = _warmup(series, tolerance=tolerance)
    rest = series[warmup:]
    trend = drift(rest)
    change = _change(series, warmup, result, tolerance=tolerance)
    is_line = result is not None and result.certain and result.shape is Shape.LINE
    is_leak = change is None and slows_down(_without_exceptions(rest))
    drifts = (is_line or is_leak) and abs(trend or 0.0) > tolerance
    steady = change is None and not drifts
    level = float(median_of(rest))
    visible = result.visible(VISIBLE_SHARE, power_score=POWER_SCORE) if result else None
    return SteadyState(
        n=n,
        steady=steady,
        warmup_steps=warmup,
        drift=trend,
        change=change,
        drifts=drifts,
        # Steps that a change or a drift makes slow are no stalls.
        stalls=repeated if steady and (repeated := stalls(rest, repeated=True)).count else stalls(rest),
        visible=visible / level if visible is not None and level > 0 else None,
        reason=_reason(series, warmup, trend, change=change, drifts=drifts),
    )


def _warmup(series: Floats, *, tolerance: float) -> tuple[int, Scan | None]:
    """Number of warm-up steps, and the scan of the rest (None if it is too short or does not vary)."""
    warmup = _first_steps(series, tolerance=tolerance)
    while True:
        rest = series[warmup:]
        result = scan(_without_exceptions(rest)) if rest.size >= LEAST_SCANNED else None
        if result is None or not result.certain or result.shape is not Shape.SHIFT:
            return warmup, result
        longer = warmup + result.start
        ratio = _ratio(series[warmup:longer], series[longer:])
        if longer > series.size // 2 or ratio <= 1 + tolerance:
            return warmup, result
        warmup = longer


def _first_steps(series: Floats, *, tolerance: float) -> int:
    """Number of slow first steps: consecutive stalls, else one or two steps that are slower than the rest, else 0.

    A first step is slower if it exceeds the median of the rest by more than each of three limits: 5 robust standard
    deviations of the rest, twice the largest distance of its steps from the median, and the fraction `tolerance` of the
    median.
    """
    slow = stalls(series).mask
    if slow.any() and slow[0]:
        return int(np.argmin(slow))
    for count in range(MOST_FIRST, 0, -1):
        rest = series[count:]
        median = float(median_of(rest))
        usual = max(OUTLIER_STDEVS * robust_stdev(rest), FIRST_APART * float(np.abs(rest - median).max()))
        if series[:count].min() - median > max(usual, tolerance * abs(median)):
            return count
    return 0


def _without_exceptions(series: Floats) -> Floats:
    """Copy of the series in which the few steps that are far slower or faster are replaced by the median step."""
    for values in (series, 1 / series if series.min() > 0 else series):
        odd = stalls(values)
        series = np.where(odd.mask, median_of(series), series) if odd.count else series
    return series


def _ratio(some: Floats, others: Floats) -> float:
    median = float(median_of(others))
    return float(median_of(some)) / median if median > 0 else 1.0


def _change(series: Floats, warmup: int, result: Scan | None, *, tolerance: float) -> Change | None:
    if result is None or not result.certain or result.shape is Shape.LINE:
        return None
    start, stop = warmup + result.start, warmup + result.stop
    ratio = _ratio(series[start:stop], np.concatenate([series[warmup:start], series[stop:]]))
    return Change(n=series.size, start=start, stop=stop, ratio=ratio) if abs(ratio - 1) > tolerance else None


def _reason(series: Floats, warmup: int, trend: float | None, *, change: Change | None, drifts: bool) -> str:
    n = series.size
    if change:
        return f"{change}: no steady state"
    if drifts:
        return f"drifts by {signed_percent(trend or 0.0)} over {n - warmup} steps: no steady state"
    if not warmup:
        return f"steady from the first of {n} steps"
    ratio = float(median_of(series[:warmup]) / median_of(series[warmup:]))
    return f"steady after {warmup} of {n} steps, whose median is {ratio:.2f} x that of the rest"


# --- trend


def drift(values: npt.ArrayLike) -> float | None:
    """Change of a series from its first to its last step, as a fraction of its median; None if it has no order.

    The change is that of a line with the median of the slopes between all pairs of steps (Theil 1950, Sen 1968), which
    tolerates up to 29 % outliers.
    """
    series, reason = ordered(values, least=LEAST_ORDERED)
    median = float(median_of(series))
    if reason or median <= 0:
        return None
    points, width = thinned(series, MOST_POINTS)
    earlier, later = np.triu_indices(points.size, 1)
    slope = float(median_of((points[later] - points[earlier]) / (later - earlier)))
    return slope / width * (series.size - 1) / median


def slows_down(series: Floats) -> bool:
    """Whether a series of fewer than 100 steps gets steadily slower, by more than chance and slow noise explain."""
    n = series.size
    if n >= LEAST_WITHOUT_LEAK or np.ptp(series) == 0:
        return False
    t, lag1 = line(series)
    column = int(np.searchsorted(LEAK_LAG1, lag1, side="right"))
    limits = [row[column] for row in LEAK_LIMITS.values()]
    return t > float(np.interp(np.log(n), np.log(list(LEAK_LIMITS)), limits))


def line(series: Floats) -> tuple[float, float]:
    """Least-squares slope over its standard error for independent steps, and lag-1 correlation of the residuals."""
    n = series.size
    time, centred = np.arange(n) - (n - 1) / 2, series - series.mean()
    slope = float(centred @ time / (time @ time))
    rest = centred - slope * time
    squares = float(rest @ rest)
    if squares <= SAME * float(centred @ centred):
        return float(np.copysign(np.inf, slope)), 0.0
    return slope * float(np.sqrt(time @ time * (n - 2) / squares)), float(rest[1:] @ rest[:-1]) / squares

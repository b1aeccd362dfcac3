"""Test whether a run gets slower or faster over its steps."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from analysis.statistics.autocorrelation import LEAST_STEPS, cautious_time, normal_scores, too_short
from analysis.statistics.samples import Floats, Interval, Method, median_of, ordered, thinned
from workload.stats.runs_interval import LEVEL, student_reach

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


@dataclass(frozen=True, kw_only=True)
class Drift:
    """Trend of a series. `slope` and `interval`: in the unit of the values per step; `effective`: independent steps.

    `change`: change over the whole series, as a fraction of its median.
    """

    n: int
    slope: float | None
    interval: Interval | None = None
    change: float | None = None
    effective: float | None = None
    reason: str | None = None

    @property
    def certain(self) -> bool:
        """Whether the interval of the slope excludes 0."""
        return self.interval is not None and not self.interval.holds(0.0)


def drift(values: npt.ArrayLike, *, level: float = LEVEL) -> Drift:
    """Median of the slopes between all pairs of steps (Theil 1950, Sen 1968), which tolerates up to 29 % outliers.

    The interval is Sen's, from Kendall's S and Student's t with effective n - 2 degrees of freedom. The variance of S
    is multiplied by n / effective n of the residuals, as in Hamed & Rao, Journal of Hydrology 204 (1998). Fewer than
    100 steps give no interval, because their correlation is unknown.
    """
    series, reason = ordered(values, least=LEAST_STEPS)
    n = series.size
    if reason:
        return Drift(n=n, slope=None, reason=reason)
    points, width = thinned(series, MOST_POINTS)
    slopes = pairwise_slopes(points)
    slope = float(median_of(slopes))
    rest = points - slope * np.arange(points.size)
    tau = cautious_time(normal_scores(rest), trend=True) if np.ptp(rest) > 0 else 1.0
    effective = points.size / tau
    interval = _sen(slopes, points=points.size, tau=tau, level=level, width=width)
    if reason := too_short(n):
        interval = None
    elif interval is None:
        reason = f"{n} steps are worth {effective:.1f} independent ones: no interval for a slope"
    median = float(median_of(series))
    return Drift(
        n=n,
        slope=slope / width,
        interval=interval,
        change=slope / width * (n - 1) / median if median > 0 else None,
        effective=effective,
        reason=reason,
    )


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


def pairwise_slopes(points: Floats) -> Floats:
    """Sorted slopes between all pairs of points, shape (n (n - 1) / 2,)."""
    earlier, later = np.triu_indices(points.size, 1)
    return np.sort((points[later] - points[earlier]) / (later - earlier))


def _sen(slopes: Floats, *, points: int, tau: float, level: float, width: int) -> Interval | None:
    """Sen's interval of the slope; None if it would extend beyond the outermost slopes."""
    degrees = points / tau - 2
    if degrees <= 0:
        return None
    variance = points * (points - 1) * (2 * points + 5) / 18 * tau
    reach = student_reach(variance**0.5, degrees, level)
    first, last = int((slopes.size - reach) // 2), int(-(-(slopes.size + reach) // 2))
    if first < 0 or last >= slopes.size:
        return None
    return Interval(
        low=float(slopes[first] / width), high=float(slopes[last] / width), level=level, method=Method.EFFECTIVE_N
    )

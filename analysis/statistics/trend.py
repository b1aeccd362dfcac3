"""Whether a run gets slower or faster while it goes."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from analysis.statistics.autocorrelation import LEAST_STEPS, cautious_time, normal_scores, too_short
from analysis.statistics.samples import LEVEL, Floats, Interval, Method, ordered

# All pairs of 1000 points are 500,000 slopes: 0.05 s. Longer series are first reduced to medians of neighbours.
MOST_POINTS = 1000
# A straight line's t that steps which do not get slower exceed in 1 of 100 series at most, by steps (rows) and by the
# lag-1 correlation of what the line leaves, in classes from below -0.1 to 0.6 and more: benchmarks/false_alarms.py
# --limits prints them. Few steps of slow noise look like a slope. In 100 steps the scan for changes finds it.
LEAK_LAG1 = (-0.1, 0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
LEAK_LIMITS: Mapping[int, tuple[float, ...]] = {
    20: (2.9, 6.1, 9.2, 10.8, 12.2, 13.2, 15.1, 15.1, 15.1),
    30: (2.5, 3.0, 4.0, 6.6, 13.0, 14.0, 15.4, 15.4, 15.4),
    50: (2.4, 2.4, 3.0, 4.1, 5.9, 13.8, 15.3, 15.6, 17.1),
}
LEAST_WITHOUT_LEAK = 100
# A line leaves nothing where it leaves less than rounding does.
SAME = 1e-12


@dataclass(frozen=True, kw_only=True)
class Drift:
    """`slope` and its interval in the values' unit per step; `change` over the series as a fraction of its median."""

    n: int
    slope: float | None
    interval: Interval | None = None
    change: float | None = None
    effective: float | None = None
    reason: str | None = None

    @property
    def certain(self) -> bool:
        """Its interval leaves out 0."""
        return self.interval is not None and not self.interval.holds(0.0)


def drift(values: npt.ArrayLike, *, level: float = LEVEL) -> Drift:
    """Median of the slopes between all pairs of steps (Theil 1950, Sen 1968): up to 29 % outliers do not move it.

    Interval: Sen's, from Kendall's S, its variance raised by n / effective n of what the line leaves (as Hamed & Rao,
    Journal of Hydrology 204, 1998, do), Student's t with effective n - 2 degrees of freedom; none of fewer than
    100 steps, which do not tell how they correlate.
    """
    series, reason = ordered(values, least=LEAST_STEPS)
    n = series.size
    if reason:
        return Drift(n=n, slope=None, reason=reason)
    points, width = _thinned(series)
    slopes = pairwise_slopes(points)
    slope = float(np.median(slopes))
    rest = points - slope * np.arange(points.size)
    tau = cautious_time(normal_scores(rest), trend=True) if np.ptp(rest) > 0 else 1.0
    effective = points.size / tau
    interval = _sen(slopes, points=points.size, tau=tau, level=level, width=width)
    if reason := too_short(n):
        interval = None
    elif interval is None:
        reason = f"{n} steps are worth {effective:.1f} independent ones: no interval for a slope"
    median = float(np.median(series))
    return Drift(
        n=n,
        slope=slope / width,
        interval=interval,
        change=slope / width * (n - 1) / median if median > 0 else None,
        effective=effective,
        reason=reason,
    )


def slows_down(series: Floats) -> bool:
    """Whether fewer than 100 steps get slower and slower, more than chance and slow noise make them."""
    n = series.size
    if n >= LEAST_WITHOUT_LEAK or np.ptp(series) == 0:
        return False
    t, lag1 = line(series)
    column = int(np.searchsorted(LEAK_LAG1, lag1, side="right"))
    limits = [row[column] for row in LEAK_LIMITS.values()]
    return t > float(np.interp(np.log(n), np.log(list(LEAK_LIMITS)), limits))


def line(series: Floats) -> tuple[float, float]:
    """Slope of the line of least squares over its standard error for independent steps, and the rest's lag 1."""
    n = series.size
    time, centred = np.arange(n) - (n - 1) / 2, series - series.mean()
    slope = float(centred @ time / (time @ time))
    rest = centred - slope * time
    squares = float(rest @ rest)
    if squares <= SAME * float(centred @ centred):
        return float(np.copysign(np.inf, slope)), 0.0
    return slope * float(np.sqrt(time @ time * (n - 2) / squares)), float(rest[1:] @ rest[:-1]) / squares


def _thinned(series: Floats) -> tuple[Floats, int]:
    """At most 1000 medians of neighbours, and how many steps each stands for; the remainder at the end is left out."""
    width = -(-series.size // MOST_POINTS)
    if width == 1:
        return series, 1
    groups = series[: series.size // width * width].reshape(-1, width)
    return np.asarray(np.median(groups, axis=1), dtype=np.float64), width


def pairwise_slopes(points: Floats) -> Floats:
    """Sorted, shape (n (n - 1) / 2,)."""
    earlier, later = np.triu_indices(points.size, 1)
    return np.sort((points[later] - points[earlier]) / (later - earlier))


def _sen(slopes: Floats, *, points: int, tau: float, level: float, width: int) -> Interval | None:
    """None where the interval would reach beyond the outermost slopes."""
    degrees = points / tau - 2
    if degrees <= 0:
        return None
    variance = points * (points - 1) * (2 * points + 5) / 18 * tau
    reach = float(stdtrit(degrees, (1 + level) / 2)) * variance**0.5
    first, last = int((slopes.size - reach) // 2), int(-(-(slopes.size + reach) // 2))
    if first < 0 or last >= slopes.size:
        return None
    return Interval(
        low=float(slopes[first] / width), high=float(slopes[last] / width), level=level, method=Method.EFFECTIVE_N
    )

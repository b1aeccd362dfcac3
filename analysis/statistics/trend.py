"""Whether a run gets slower or faster while it goes."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from analysis.statistics.autocorrelation import LEAST_STEPS, cautious_time, normal_scores, too_short
from analysis.statistics.samples import LEVEL, Floats, Interval, Method, ordered

# All pairs of 1000 points are 500,000 slopes: 0.05 s. Longer series are first reduced to medians of neighbours.
MOST_POINTS = 1000


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

"""Detects a change of level within a series: from some step on, between two steps, or steadily.

The method is a likelihood ratio scan. The model of the steps is a first-order autoregression around a level, so that
slow noise is not mistaken for a change. A change is reported if it raises the likelihood by more than chance does in 1
of 200 series. This limit depends on the number of points and on the correlation of the noise, and has no formula for
short series: `LIMITS` are simulated (benchmarks/false_alarms.py --limits).

Source of the scan: Andrews, Tests for parameter instability and structural change with unknown change point,
Econometrica 61 (1993). Noise and change must be estimated together, because each looks like the other: Perron, Dealing
with structural breaks, Palgrave Handbook of Econometrics 1 (2006).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from analysis.statistics.autocorrelation import acf
from analysis.statistics.samples import Floats, median_of, robust_stdev, thinned

Indices: TypeAlias = npt.NDArray[np.intp]

# The scan tries all pairs of ends: 4,000 for 100 points. Longer series are first reduced to medians of neighbours.
MOST_POINTS = 100
# Gains that chance exceeds in 1 of 200 series, by number of points (rows) and lag-1 correlation of the series
# (columns), as printed by benchmarks/false_alarms.py --limits. They grow with the correlation, because slow noise looks
# like a change.
LIMIT_LAG1 = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
LIMITS: Mapping[int, tuple[float, ...]] = {
    20: (10.9, 14.9, 16.2, 18.3, 20.0, 21.9, 23.7, 26.6, 30.8, 32.4),
    50: (12.8, 16.8, 18.1, 19.1, 20.1, 21.9, 23.0, 24.2, 29.3, 36.9),
    100: (13.7, 18.2, 18.2, 19.6, 19.6, 21.5, 21.5, 22.4, 28.3, 33.8),
}
# Least points of a phase, and of either part of a shift: fewer slow points are stalls.
LEAST_POINTS = 3
# The same as a share of all points. It is more than LEAST_POINTS in a series of 80 points or more.
LEAST_SHARE = 0.05
# Points are clipped to this many robust standard deviations from the median, so that single slow steps make no phase.
# Short series need a wider range to show a change: 150 / n deviations, 7.5 for 20 points.
CLIP_STDEVS = 3.0
CLIP_POINTS = 150.0
# A phase has two free ends, a shift one: the additional choice alone raises the gain by this much.
TWO_ENDS = 4.0
# Range of sizes of change that `visible` tries, in standard deviations, 5 % apart.
VISIBLE_STDEVS = (0.3, 40.0)
VISIBLE_SIZES = 100
# Slow waves look like a change. White noise on top of them hides them from the lag-1 correlation, so the limit is too
# low. A shift or phase is therefore tested again if its residuals correlate over more lags than their lag 1 implies.
# The test scans 20 to 39 means of neighbouring points, which have less white noise; their gain must exceed WAVE_SHARE
# of their limit. For waves of lag 1 = 0.9 with as much white noise, this reduces false changes from 23 % to 4 %.
WAVE_POINTS = 20
WAVE_SHARE = 0.8
# Values whose relative difference is below this are equal, up to rounding.
SAME = 1e-12
# With an estimated lag-1 correlation closer to 1, 100 points cannot show any change.
MOST_LAG1 = 0.98


class Shape(StrEnum):
    """Kind of change: from a step on (shift), between two steps (phase), or steadily (line)."""

    SHIFT = "shift"
    PHASE = "phase"
    LINE = "line"


@dataclass(frozen=True, kw_only=True)
class Scan:
    """The change that raises the likelihood most. `gain`: twice the logarithm of the likelihood ratio.

    `start` and `stop` (excluded): positions of the phase, or of the later part of a shift, in the series; the whole
    series for a line. `stdev` and `lag1`: of the residuals; `limit`: gain that chance exceeds in 1 of 200 series.
    `is_wave`: the change may be a slow wave whose correlation white noise hides from `lag1`.
    """

    shape: Shape
    start: int
    stop: int
    gain: float
    limit: float
    stdev: float
    lag1: float
    points: int
    is_wave: bool = False

    @property
    def certain(self) -> bool:
        """Whether the change is larger than chance explains."""
        return self.gain > self.limit and not self.is_wave

    def visible(self, share: float, *, power_score: float) -> float | None:
        """Smallest change of the last `share` of the series that would be found, in the unit of the values.

        `power_score`: normal score of the chance to find the change: 1.28 for 9 times out of 10. The square root of the
        gain, which is approximately normal, must exceed the square root of the limit by `power_score`. The limit is
        that for a series with this change, which adds correlation. None if no change up to 40 standard deviations would
        be found.
        """
        n = self.points
        later = (np.arange(n) >= n - round(share * n)).astype(np.float64)
        later -= later.mean()
        noise = n * self.stdev**2
        sizes = np.geomspace(*VISIBLE_STDEVS, num=VISIBLE_SIZES) * self.stdev
        changed = _Fit(
            squares=noise + sizes**2 * (later @ later), products=noise * self.lag1 + sizes**2 * (later[1:] @ later[:-1])
        )
        gains = n * np.log(changed.innovations / (noise * (1 - self.lag1**2)))
        is_found = np.sqrt(np.maximum(gains, 0.0)) >= np.sqrt(limits_of(n, lag1=changed.lag1)) + power_score
        return float(sizes[np.argmax(is_found)]) if is_found.any() else None


def scan(series: Floats) -> Scan | None:
    """Find the most likely change of a series; None if its values do not vary."""
    points, width = thinned(series, MOST_POINTS)
    n = points.size
    middle, reach = median_of(points), max(CLIP_STDEVS, CLIP_POINTS / n) * robust_stdev(points)
    points = np.clip(points, middle - reach, middle + reach)
    points = points - points.mean()
    if np.ptp(points) <= SAME * np.abs(series).max():
        return None
    least = max(LEAST_POINTS, int(n * LEAST_SHARE))
    plain = _Fit(squares=np.array([points @ points]), products=np.array([points[1:] @ points[:-1]]))
    starts, stops = _segments(n, least)
    split = _split(points, starts, stops)
    gains = n * np.log(plain.innovations / split.innovations) - np.where(starts > 0, TWO_ENDS, 0.0)
    gains[(starts > 0) & (stops == n)] += TWO_ENDS
    best = int(np.argmax(gains))
    time = np.arange(n) - (n - 1) / 2
    rest = points - (points @ time) / (time @ time) * time
    line = _Fit(squares=np.array([rest @ rest]), products=np.array([rest[1:] @ rest[:-1]]))
    line_gain = float(n * np.log(plain.innovations / line.innovations)[0])
    is_line = line_gain > gains[best]
    fit, at = (line, 0) if is_line else (split, best)
    start, stop = int(starts[best]), int(stops[best])
    change = Scan(
        shape=Shape.LINE if is_line else Shape.SHIFT if stop == n else Shape.PHASE,
        start=0 if is_line else start * width,
        stop=series.size if is_line or stop == n else stop * width,
        gain=max(line_gain, float(gains[best])),
        limit=limit_of(n, lag1=float(plain.lag1[0])),
        # Two levels and the position of the change are fitted: n - 3 degrees of freedom.
        stdev=float(np.sqrt(fit.squares[at] / (n - 3))),
        lag1=unbiased_after_change(float(fit.lag1[at]), n=n),
        points=n,
    )
    return replace(change, is_wave=change.certain and not is_line and _is_wave(points, start, stop))


def _is_wave(points: Floats, start: int, stop: int) -> bool:
    """Whether the points `start` to `stop` may be a slow wave with white noise instead of a change of level."""
    n, width = points.size, points.size // WAVE_POINTS
    inside = (np.arange(n) >= start) & (np.arange(n) < stop)
    rest = points - np.where(inside, points[inside].mean(), points[~inside].mean())
    # Fewer than 2 * WAVE_POINTS points leave no means to scan.
    if width <= 1 or not rest.any():
        return False
    lag1, lag2, lag3 = acf(rest)[1:4]
    if lag2 + lag3 < lag1**2 + lag1**3:
        return False
    means = scan(points[n % width :].reshape(-1, width).mean(axis=1))
    return means is None or means.gain <= WAVE_SHARE * means.limit


@dataclass(frozen=True, kw_only=True)
class _Fit:
    """Residuals of each candidate change: sums of squares, and of products of neighbours, shape (candidates,)."""

    squares: Floats
    products: Floats

    @property
    def lag1(self) -> Floats:
        return np.clip(self.products / self.squares, 0.0, MOST_LAG1)

    @property
    def innovations(self) -> Floats:
        """Sums of squares of the innovations (residuals minus their prediction from the step before), per candidate."""
        left = self.squares - 2 * self.lag1 * self.products + self.lag1**2 * self.squares
        return np.asarray(np.maximum(left, SAME * self.squares), dtype=np.float64)


def _segments(n: int, least: int) -> tuple[Indices, Indices]:
    """Candidates as (starts, stops), stop excluded: later parts of all shifts, then phases up to half of the points."""
    shifts = np.arange(least, n - least + 1)
    phases = [(np.arange(1, n - size), size) for size in range(least, n // 2 + 1)]
    starts = np.concatenate([shifts, *(begin for begin, _ in phases)])
    stops = np.concatenate([np.full(shifts.size, n), *(begin + size for begin, size in phases)])
    return starts, stops


def _split(points: Floats, starts: Indices, stops: Indices) -> _Fit:
    """Residuals of centred points after fitting one level inside and one outside each segment, by cumulative sums."""
    n = points.size
    sums = np.concatenate([[0.0], np.cumsum(points)])
    sizes = stops - starts
    inside = sums[stops] - sums[starts]
    level, other = inside / sizes, -inside / (n - sizes)
    # Three sums of products: fitted level x previous point, fitted level x next point, fitted level x next level.
    before = other * sums[n - 1] + (level - other) * (sums[stops - 1] - sums[starts - 1])
    after = other * (sums[n] - sums[1]) + (level - other) * (
        sums[np.minimum(stops + 1, n)] - sums[np.minimum(starts + 1, n)]
    )
    edges = 1 + (stops < n)
    levels = level**2 * (sizes - 1) + level * other * edges + other**2 * (n - sizes - edges)
    return _Fit(
        # If two levels fit exactly, rounding may make the sum negative.
        squares=np.maximum(points @ points - inside * level + inside * other, SAME * (points @ points)),
        products=points[1:] @ points[:-1] - before - after + levels,
    )


def limit_of(points: int, *, lag1: float) -> float:
    """Limit of the gain: linear interpolation of `LIMITS` in the logarithm of the points and in `lag1`."""
    return float(limits_of(points, lag1=np.array([lag1]))[0])


def limits_of(points: int, *, lag1: Floats) -> Floats:
    """Limits of the gain for several lag-1 correlations, see `limit_of`."""
    rows = np.array([np.interp(lag1, LIMIT_LAG1, limits) for limits in LIMITS.values()])
    place, places = np.log(points), np.log(list(LIMITS))
    # Between the two rows that enclose `points`; outside of the table, its first or last row.
    left = int(np.clip(np.searchsorted(places, place, side="right") - 1, 0, len(rows) - 1))
    if left == len(rows) - 1 or place <= places[0]:
        return np.asarray(rows[left], dtype=np.float64)
    slopes = (rows[left + 1] - rows[left]) / (places[left + 1] - places[left])
    return np.asarray(slopes * (place - places[left]) + rows[left], dtype=np.float64)


def unbiased_after_change(lag1: float, *, n: int) -> float:
    """Bias-corrected lag-1 correlation of the residuals of a change.

    Fitting one level biases `lag1` by -(1 + 3 lag1) / n (Kendall, Biometrika 41, 1954), fitting two levels by about
    twice as much.
    """
    return float(np.clip((n * lag1 + 2) / (n - 6), 0.0, MOST_LAG1))

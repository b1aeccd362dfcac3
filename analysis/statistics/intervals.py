"""Median over runs, with an interval that has its stated coverage even for few runs.

A nominal 95 % interval of the percentile bootstrap covers 75 % over 3 runs, 93 % at best over 5 runs, and never extends
beyond the observed runs. Therefore 3 to 5 runs use Student's t; 6 or more use order statistics, which assume no
distribution and need 6 runs for 95 %. benchmarks/coverage.py has the simulation.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.special import bdtr

from analysis.statistics.samples import (
    LEAST_REPLICATES,
    LEVEL,
    Estimate,
    Floats,
    Interval,
    Method,
    finite,
    student_reach,
    too_few,
)
from workload.contract.blocks_interval import FIRST_LOOK, interval_at_look, single_contrast
from workload.contract.text import counted


def over_runs(figures: npt.ArrayLike, *, level: float = LEVEL) -> Estimate:
    """Median over runs of one figure per run (a median step time, images/s), with its interval.

    Student's t uses logarithms if all figures are positive, so that times and rates have the same interval.
    """
    values, _ = finite(figures)
    n = values.size
    if not n:
        return Estimate(value=None, n=0, reason="no run: no figure")
    median = float(np.median(values))
    if refusal := no_spread(values):
        return Estimate(value=median, n=n, reason=refusal)
    if n < order_statistics_from(level):
        interval = _student(values, level=level)
        reason = f"{counted(n, 'run')}: the interval assumes that runs are normally distributed"
    else:
        low, high = _order_statistics(values, level=level)
        # Interpolation between equal figures may miss the median by a rounding error.
        low, high = min(low, median), max(high, median)
        interval, reason = Interval(low=low, high=high, level=level, method=Method.ORDER_STATISTICS), None
    return Estimate(value=median, interval=interval, n=n, reason=reason)


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


def order_statistics_from(level: float) -> int:
    """Fewest runs whose range has the coverage `level`: 6 for 95 %, as n runs cover at most 1 - 2 x 0.5^n."""
    return int(np.ceil(1 - np.log2(1 - level) - 1e-9))


def _order_statistics(values: Floats, *, level: float) -> tuple[float, float]:
    """Ends of the interval of the median, for at least `order_statistics_from` values.

    Hettmansperger & Sheather, Confidence intervals based on interpolated order statistics, Statistics & Probability
    Letters 4 (1986), as `scipy.stats.mstats.median_cihs`, whose import takes half a second.
    """
    n, ascending = values.size, np.sort(values)
    # Coverage of the intervals from the k-th smallest to the k-th largest value, for k = 1, 2, ...
    coverage = 1 - 2 * bdtr(np.arange((n + 1) // 2), n, 0.5)
    k = int(np.flatnonzero(coverage >= level)[-1]) + 1
    wide, narrow = float(coverage[k - 1]), float(coverage[k]) if k < coverage.size else 0.0
    share = (wide - level) / (wide - narrow)
    inward = (n - k) * share / (k + (n - 2 * k) * share)
    low = inward * ascending[k] + (1 - inward) * ascending[k - 1]
    high = inward * ascending[n - k - 1] + (1 - inward) * ascending[n - k]
    return float(low), float(high)


def _student(values: Floats, *, level: float) -> Interval:
    logarithms = bool((values > 0).all())
    scaled = np.log(values) if logarithms else values
    n = values.size
    reach = student_reach(float(scaled.std(ddof=1)), n - 1, level) / float(np.sqrt(n))
    ends = np.array([scaled.mean() - reach, scaled.mean() + reach])
    low, high = np.exp(ends) if logarithms else ends
    # The interval is centred at the mean, but shown beside the median: widen the interval to include the median.
    median = np.median(values)
    return Interval(low=float(min(low, median)), high=float(max(high, median)), level=level, method=Method.STUDENT_T)

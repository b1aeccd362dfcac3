"""Interval of the median over runs that has its stated coverage even for few runs.

A nominal 95 % interval of the percentile bootstrap covers 75 % over 3 runs, 93 % at best over 5 runs, and never extends
beyond the observed runs. Therefore 3 to 5 runs use Student's t; 6 or more use order statistics, which assume no
distribution and need 6 runs for 95 %. benchmarks/coverage.py has the simulation.
"""

from collections.abc import Sequence
from math import ceil, exp, log, log2, sqrt
from statistics import fmean, median, stdev

LEVEL = 0.95
# Fewest runs or blocks for an interval. An interval from two would extend 13 standard errors to either side, because
# two figures estimate a spread only to a factor of 30.
LEAST_REPLICATES = 3
# 1 / Phi^-1(3/4): factor from the median absolute deviation of a normal sample to its standard deviation.
MAD_TO_STDEV = 1.4826022185056018


def interval_over_runs(figures: Sequence[float], level: float = LEVEL) -> tuple[float, float] | None:
    """Ends of the interval of the median of one figure per run; None for too few figures, or for equal ones.

    Student's t uses logarithms if all figures are positive, so that times and rates have the same interval.
    """
    if len(figures) < LEAST_REPLICATES or len(set(figures)) == 1:
        return None
    is_ordered = len(figures) >= order_statistics_from(level)
    low, high = order_statistics(sorted(figures), level) if is_ordered else _student(figures, level)
    # Student's interval is centred at the mean, and interpolation between equal figures may miss by a rounding error.
    middle = median(figures)
    return min(low, middle), max(high, middle)


def order_statistics_from(level: float) -> int:
    """Fewest runs whose range has the coverage `level`: 6 for 95 %, as n runs cover at most 1 - 2 x 0.5^n."""
    return ceil(1 - log2(1 - level) - 1e-9)


def order_statistics(ascending: Sequence[float], level: float) -> tuple[float, float]:
    """Interval of the median, for at least `order_statistics_from` figures; assumes no distribution.

    Hettmansperger & Sheather, Confidence intervals based on interpolated order statistics, Statistics & Probability
    Letters 4 (1986). `scipy.stats.mstats.median_cihs` gives the same, but is slow to import.
    """
    from scipy.special import bdtr

    n = len(ascending)
    # Coverage of the interval from the k-th smallest to the k-th largest figure, for k = 1, 2, ...
    coverage = [1 - 2 * float(bdtr(k - 1, n, 0.5)) for k in range(1, (n + 1) // 2 + 1)] + [0.0]
    k = max(sum(covered >= level for covered in coverage), 1)
    wide, narrow = coverage[k - 1], coverage[k]
    share = (wide - level) / (wide - narrow)
    inward = (n - k) * share / (k + (n - 2 * k) * share)
    low = inward * ascending[k] + (1 - inward) * ascending[k - 1]
    high = inward * ascending[n - k - 1] + (1 - inward) * ascending[n - k]
    return low, high


def student_reach(error: float, degrees: float, level: float) -> float:
    """Distance from an estimate to either end of its interval by Student's t; `error`: standard error."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees, (1 + level) / 2)) * error


def _student(figures: Sequence[float], level: float) -> tuple[float, float]:
    are_positive = all(figure > 0 for figure in figures)
    scaled = [log(figure) for figure in figures] if are_positive else figures
    reach = student_reach(stdev(scaled) / sqrt(len(scaled)), len(scaled) - 1, level)
    low, high = fmean(scaled) - reach, fmean(scaled) + reach
    return (exp(low), exp(high)) if are_positive else (low, high)

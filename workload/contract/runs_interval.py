"""Interval of the median over runs that has its stated coverage even for few runs. Standard library only.

A nominal 95 % interval of the percentile bootstrap covers 75 % over 3 runs, 93 % at best over 5 runs, and never extends
beyond the observed runs. Therefore 3 to 5 runs use Student's t; 6 or more use order statistics, which assume no
distribution and need 6 runs for 95 %. benchmarks/coverage.py has the simulation.
"""

from collections.abc import Sequence
from math import ceil, exp, log, log2, sqrt
from statistics import fmean, median, stdev

from workload.contract.blocks_interval import order_statistics, student_quantile

LEVEL = 0.95
# Fewest runs or blocks for an interval. An interval from two would extend 13 standard errors to either side, because
# two figures estimate a spread only to a factor of 30.
LEAST_REPLICATES = 3


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


def _student(figures: Sequence[float], level: float) -> tuple[float, float]:
    are_positive = all(figure > 0 for figure in figures)
    scaled = [log(figure) for figure in figures] if are_positive else figures
    reach = student_quantile(1 - level, len(scaled) - 1) * stdev(scaled) / sqrt(len(scaled))
    low, high = fmean(scaled) - reach, fmean(scaled) + reach
    return (exp(low), exp(high)) if are_positive else (low, high)

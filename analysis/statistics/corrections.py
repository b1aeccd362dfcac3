"""p-values of many comparisons at once.

NaN stands for a comparison that could not be tested: it stays, and is not counted.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy.stats import false_discovery_control

from analysis.statistics.samples import Floats


def holm(p_values: npt.ArrayLike) -> Floats:
    """Adjusted p-values: below 0.05, at most 5 % risk that any of the differences called real is none (Holm 1979)."""
    return _tested(p_values, _holm)


def holm_levels(p_values: npt.ArrayLike, *, alpha: float) -> Floats:
    """The confidence level at which Holm's procedure tested each one.

    An interval at this level leaves out "no difference" if and only if the adjusted p-value is below `alpha`. The k-th
    smallest of m p-values is held against alpha / (m - k + 1), until one is not below: that one's limit is the limit of
    all the rest.
    """
    return _tested(p_values, lambda tested: _holm_levels(tested, alpha))


def _holm_levels(tested: Floats, alpha: float) -> Floats:
    order = np.argsort(tested, kind="stable")
    limits = alpha / (tested.size - np.arange(tested.size))
    failed = tested[order] >= limits
    if failed.any():
        stopped = int(np.argmax(failed))
        limits[stopped:] = limits[stopped]
    levels = np.empty_like(tested)
    levels[order] = 1 - limits
    return levels


def benjamini_hochberg(p_values: npt.ArrayLike) -> Floats:
    """Adjusted p-values: of the differences below 0.05, 5 % are expected to be none (Benjamini & Hochberg 1995)."""
    return _tested(p_values, lambda tested: np.asarray(false_discovery_control(tested), dtype=np.float64))


def _holm(tested: Floats) -> Floats:
    order = np.argsort(tested, kind="stable")
    steps = (tested.size - np.arange(tested.size)) * tested[order]
    adjusted = np.empty_like(tested)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return adjusted


def _tested(p_values: npt.ArrayLike, adjust: Callable[[Floats], Floats]) -> Floats:
    values = np.atleast_1d(np.array(p_values, dtype=np.float64))
    known = ~np.isnan(values)
    if ((values[known] < 0) | (values[known] > 1)).any():
        raise ValueError("a p-value lies between 0 and 1")
    if known.any():
        values[known] = adjust(values[known])
    return values

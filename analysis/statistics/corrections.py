"""Corrections of p-values for multiple comparisons.

NaN means a comparison that could not be tested: it stays NaN, and is not counted.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy.stats import false_discovery_control

from analysis.statistics.samples import Floats


def holm(p_values: npt.ArrayLike) -> Floats:
    """Holm's adjusted p-values (1979): below 0.05, the risk of any false difference among them is at most 5 %."""
    return _tested(p_values, _holm)


def holm_levels(p_values: npt.ArrayLike, *, alpha: float) -> Floats:
    """Confidence level at which Holm's procedure tests each p-value.

    An interval at this level excludes "no difference" if and only if the adjusted p-value is below `alpha`. The k-th
    smallest of m p-values is compared with alpha / (m - k + 1). The first that is not below its limit sets the limit of
    all larger ones.
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
    """Adjusted p-values (Benjamini & Hochberg 1995): below 0.05, 5 % of the differences are expected to be false."""
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

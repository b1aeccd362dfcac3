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

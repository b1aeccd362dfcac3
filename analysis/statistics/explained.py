"""Share of the variation of step times that correlates with a covariate, for example clock or temperature."""

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri
from scipy.stats import rankdata

from analysis.statistics.autocorrelation import LEAST_STEPS, acf
from analysis.statistics.samples import LEVEL, Estimate, Floats, Interval, Method
from workload.contract.text import counted

# An interval of a correlation needs more than 3 + z^2 / 9 independent pairs to be informative.
LEAST_EFFECTIVE_PAIRS = 5.0


def share_explained(values: npt.ArrayLike, covariate: npt.ArrayLike, *, level: float = LEVEL) -> Estimate:
    """Squared rank correlation (Spearman), 0 to 1, of two series in the order of time; incomplete pairs are dropped.

    With ranks, a few slow steps do not matter, and 1 / clock explains as much as the clock. Two slow waves correlate by
    chance, so the interval counts effective pairs: n / (1 + 2 x sum of the products of both autocorrelations)
    (Bartlett, JRSS 98, 1935). Fisher's z with the standard error of Bonett & Wright, Psychometrika 65 (2000). Raises
    `ValueError` if the shapes differ or are not 1-D.
    """
    first, second = (np.atleast_1d(np.asarray(side, dtype=np.float64)) for side in (values, covariate))
    if first.shape != second.shape or first.ndim != 1:
        raise ValueError(f"two series of equal length are needed; got shapes {first.shape} and {second.shape}")
    known = np.isfinite(first) & np.isfinite(second)
    first, second = first[known], second[known]
    n = first.size
    if refusal := _refusal(first, second):
        return Estimate(value=None, n=n, reason=refusal)
    ranks = np.asarray(rankdata(first), dtype=np.float64), np.asarray(rankdata(second), dtype=np.float64)
    correlation = float(np.clip(np.corrcoef(*ranks)[0, 1], -1.0, 1.0))
    effective = effective_pairs(*ranks)
    if effective < LEAST_EFFECTIVE_PAIRS:
        reason = f"{n} pairs are worth {effective:.1f} independent ones: no interval"
        return Estimate(value=correlation**2, n=n, reason=reason)
    low, high = _squared(*_fisher(correlation, effective=effective, level=level))
    interval = Interval(low=low, high=high, level=level, method=Method.FISHER_Z)
    chance = "" if low > 0 else ": the explained share may be chance"
    reason = f"{n} pairs are worth {effective:.0f} independent ones{chance}"
    return Estimate(value=correlation**2, interval=interval, n=n, reason=reason)


def _refusal(first: Floats, second: Floats) -> str | None:
    if first.size < LEAST_STEPS:
        return f"{counted(first.size, 'pair')}: at least {LEAST_STEPS} are needed"
    if np.ptp(first) == 0:
        return "the values do not vary: nothing to explain"
    if np.ptp(second) == 0:
        return "the covariate does not vary: it explains nothing"
    return None


def effective_pairs(first: Floats, second: Floats) -> float:
    """Number of independent pairs, at most n; the sum stops at the first pair of products below 0 (Geyer's rule)."""
    products = acf(first)[1:] * acf(second)[1:]
    pairs = products[: products.size // 2 * 2].reshape(-1, 2).sum(axis=1)
    positive = pairs > 0
    stop = pairs.size if positive.all() else int(np.argmin(positive))
    return float(first.size / max(1.0, 1 + 2 * pairs[:stop].sum()))


def _fisher(correlation: float, *, effective: float, level: float) -> tuple[float, float]:
    if abs(correlation) == 1:
        return correlation, correlation
    reach = float(ndtri((1 + level) / 2)) * np.sqrt((1 + correlation**2 / 2) / (effective - 3))
    middle = np.arctanh(correlation)
    return float(np.tanh(middle - reach)), float(np.tanh(middle + reach))


def _squared(low: float, high: float) -> tuple[float, float]:
    ends = sorted((low**2, high**2))
    return (0.0 if low < 0 < high else ends[0]), ends[1]

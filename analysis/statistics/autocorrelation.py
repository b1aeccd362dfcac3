"""Correlation of step times with earlier ones, and with a covariate, for example clock or temperature."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from analysis.statistics.samples import Estimate, Floats, Interval, Method, ordered, ranks
from workload.contract.text import counted
from workload.stats.intervals import LEVEL

# Least steps: fewer cannot show a correlation, because the standard error of one lag is 1 / sqrt(n) > 0.35.
LEAST_STEPS = 8
# An interval of a correlation needs more than 3 + z^2 / 9 independent pairs to be informative.
LEAST_EFFECTIVE_PAIRS = 5.0


@dataclass(frozen=True, kw_only=True)
class EffectiveN:
    """`n` steps carry the information of `effective` independent steps, at most n; `lag1`: lag-1 correlation."""

    n: int
    effective: float | None
    lag1: float | None = None
    reason: str | None = None


def effective_n(values: npt.ArrayLike, *, robust: bool = True) -> EffectiveN:
    """Number of independent steps that a series is worth, by the initial monotone sequence estimator.

    The estimator adds sums of two neighbouring correlations before the first sum that is not positive, and makes these
    sums decreasing: Geyer, Practical Markov chain Monte Carlo, Statistical Science 7 (1992), section 3.3. `robust`: use
    normal scores (van der Waerden) in place of the values, so that one slow step cannot hide the rest.
    """
    series, reason = ordered(values, least=LEAST_STEPS)
    n = series.size
    if reason:
        return EffectiveN(n=n, effective=None, reason=reason)
    correlations = acf(normal_scores(series) if robust else series)
    return EffectiveN(n=n, effective=n / integrated_time(correlations), lag1=float(correlations[1]))


def integrated_time(correlations: Floats) -> float:
    """1 + 2 x the sum of the correlations at lags 1, 2, ...; at least 1 and at most n.

    Geyer's estimator (see `effective_n`) ends the sum before correlations that are noise. An alternating series could
    be worth more than n steps, but the estimate is too uncertain to claim this.
    """
    pairs = correlations[: correlations.size // 2 * 2].reshape(-1, 2).sum(axis=1)
    positive = pairs > 0
    kept = pairs if positive.all() else pairs[: int(np.argmin(positive))]
    tau = 2 * float(np.minimum.accumulate(kept).sum()) - 1
    return float(np.clip(tau, 1.0, correlations.size))


def acf(series: Floats) -> Floats:
    """Autocorrelation at all lags, shape (n,): the biased, positive definite estimate, by Fourier transform."""
    centred = series - series.mean()
    # Padded to twice the length, because the transform treats a series as periodic.
    spectrum = np.fft.rfft(centred, 2 * series.size)
    covariance = np.fft.irfft(spectrum * spectrum.conj(), 2 * series.size)[: series.size]
    return np.asarray(covariance / covariance[0], dtype=np.float64)


def normal_scores(series: Floats) -> Floats:
    """Normal scores, shape (n,): the normal quantile of rank / (n + 1) for each value; ties share the mean rank."""
    return np.asarray(ndtri(ranks(series) / (series.size + 1)), dtype=np.float64)


def unbiased_lag1(rho: float, *, n: float, runs: int = 1) -> float:
    """Bias-corrected lag-1 correlation; 0 if the estimate is noise at the 5 % level.

    `rho`: biased estimate from series of `n` steps, mean over `runs` series. Subtracting the mean changes the estimate
    by -(1 + 4 rho) / n: Kendall, Biometrika 41 (1954). One rho / n of it comes from the divisor n.
    """
    if rho < 1.645 / np.sqrt(n * runs):
        return 0.0
    return float(min((n * rho + 1) / (n - 4), 1 - 2 / n))


# --- covariates


def share_explained(values: npt.ArrayLike, covariate: npt.ArrayLike, *, level: float = LEVEL) -> Estimate:
    """Squared rank correlation (Spearman), 0 to 1, of two series in the order of time; incomplete pairs are dropped.

    With ranks, a few slow steps do not matter, and 1 / clock explains as much as the clock. Two slow waves correlate by
    chance, so the interval counts effective pairs: n / (1 + 2 x sum of the products of both autocorrelations)
    (Bartlett, JRSS 98, 1935). The interval uses Fisher's z with the standard error of Bonett & Wright, Psychometrika 65
    (2000). Raises `ValueError` if the shapes differ or are not 1-D.
    """
    first, second = (np.atleast_1d(np.asarray(side, dtype=np.float64)) for side in (values, covariate))
    if first.shape != second.shape or first.ndim != 1:
        raise ValueError(f"two series of equal length are needed; got shapes {first.shape} and {second.shape}")
    known = np.isfinite(first) & np.isfinite(second)
    first, second = first[known], second[known]
    n = first.size
    if n < LEAST_STEPS:
        return Estimate(value=None, n=n, reason=f"{counted(n, 'pair')}: at least {LEAST_STEPS} are needed")
    for side, reason in (
        (first, "the values do not vary: nothing to explain"),
        (second, "the covariate does not vary: it explains nothing"),
    ):
        if np.ptp(side) == 0:
            return Estimate(value=None, n=n, reason=reason)
    first, second = ranks(first), ranks(second)
    correlation = float(np.clip(np.corrcoef(first, second)[0, 1], -1.0, 1.0))
    effective = effective_pairs(first, second)
    if effective < LEAST_EFFECTIVE_PAIRS:
        reason = f"{n} pairs are worth {effective:.1f} independent ones: no interval"
        return Estimate(value=correlation**2, n=n, reason=reason)
    low = high = correlation
    if abs(correlation) < 1:
        reach = float(ndtri((1 + level) / 2)) * np.sqrt((1 + correlation**2 / 2) / (effective - 3))
        low, high = (float(np.tanh(np.arctanh(correlation) + end)) for end in (-reach, reach))
    low, high = 0.0 if low < 0 < high else min(low**2, high**2), max(low**2, high**2)
    interval = Interval(low=low, high=high, level=level, method=Method.FISHER_Z)
    chance = "" if low > 0 else ": the explained share may be chance"
    reason = f"{n} pairs are worth {effective:.0f} independent ones{chance}"
    return Estimate(value=correlation**2, interval=interval, n=n, reason=reason)


def effective_pairs(first: Floats, second: Floats) -> float:
    """Number of independent pairs of values, at most n, from the sum of the products of both autocorrelations.

    The sum ends before the first two neighbouring products that together are not positive (Geyer's rule).
    """
    products = acf(first)[1:] * acf(second)[1:]
    pairs = products[: products.size // 2 * 2].reshape(-1, 2).sum(axis=1)
    positive = pairs > 0
    stop = pairs.size if positive.all() else int(np.argmin(positive))
    return float(first.size / max(1.0, 1 + 2 * pairs[:stop].sum()))

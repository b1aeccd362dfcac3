"""Correlation of step times with earlier ones, and with a covariate, for example temperature; periods of steps."""

import functools
from dataclasses import dataclass
from math import comb

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, ndtri

from analysis.statistics.samples import Estimate, Floats, Interval, Method, median_of, ordered, ranks
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


# --- periods

LEAST_STEPS_OF_PERIODS = 20
# Fewest steps of a phase for a claim that every k-th step differs.
LEAST_MEMBERS = 4
# No known script prints less often than every 64 steps, and testing more periods weakens the test of the short ones.
LONGEST_PERIOD = 64
# Allow 1 false alarm in 1000 series of independent steps, over all periods and phases.
MOST_CHANCE = 0.001
# The normal approximation is inaccurate for few steps of a phase, such as 6 of 60; above this number it is accurate
# enough, and fast.
MOST_EXACT_MEMBERS = 16
# Least share of pairs (a step of the phase, another step) whose times have the same order. The share is 0.5 if the
# steps do not differ, and 1 if all steps of the phase are slower, or all faster, than the others.
LEAST_CONSISTENCY = 0.9


@dataclass(frozen=True, kw_only=True)
class Period:
    """A pattern: steps `phase`, `phase + period`, ... (from 0) take `ratio` times as long as the others, by medians.

    `found`: chance produces such a pattern in fewer than 1 of 1000 series, and `consistency` is at least 0.9. If False,
    the fields describe the best candidate. `p_value`: corrected for all tested periods and phases; None if
    `consistency` is too low. `consistency`: each step of the pattern is compared with each other step; share of these
    pairs whose times have the same order.
    """

    n: int
    found: bool
    period: int | None = None
    phase: int | None = None
    ratio: float | None = None
    consistency: float | None = None
    p_value: float | None = None
    reason: str


def period_scan(values: npt.ArrayLike, *, longest: int = LONGEST_PERIOD) -> Period:
    """Find the period and phase whose steps differ most by the rank sum test (Mann & Whitney 1947).

    The test statistic grows with the number of these steps and with their difference from the others, so that neither
    multiples (20, 30) nor divisors (5) of a true period of 10 score higher. A pattern much smaller than slow waves of
    the series is not detected.
    """
    series, refusal = ordered(values, least=LEAST_STEPS_OF_PERIODS)
    n = series.size
    if refusal:
        return Period(n=n, found=False, reason=refusal)
    order = ranks(series)
    periods = range(2, min(longest, n // LEAST_MEMBERS) + 1)
    scores = _standard_scores(order, periods)
    # The two phases of period 2 have equal scores: report the slow phase.
    best = max(range(len(scores)), key=lambda index: float(np.abs(scores[index]).max()))
    phase = int(np.argmax(np.abs(scores[best]) + 1e-9 * (scores[best] > 0)))
    return _describe(series, order, period=periods[best], phase=phase, looked_at=sum(periods))


def _standard_scores(order: Floats, periods: range) -> list[Floats]:
    """Standard score of the rank sum of each phase of each period; positive if the steps of the phase are slow."""
    n, mean, variance = order.size, order.mean(), order.var()
    scores = []
    for period in periods:
        phases, members = _phases(n, period)
        sums = np.bincount(phases, weights=order, minlength=period)
        # Uses the variance of the ranks themselves, because ties reduce it.
        scores.append((sums - members * mean) / np.sqrt(members * (n - members) / (n - 1) * variance))
    return scores


@functools.lru_cache(maxsize=LONGEST_PERIOD)
def _phases(n: int, period: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Position in the period, 0 to `period` - 1, of each of `n` steps, and how many steps have each position.

    The result is kept, because most runs have the same number of steps.
    """
    phases = np.arange(n) % period
    return phases, np.bincount(phases, minlength=period)


def _describe(series: Floats, order: Floats, *, period: int, phase: int, looked_at: int) -> Period:
    odd = _phases(series.size, period)[0] == phase
    members = int(odd.sum())
    pairs = members * (series.size - members)
    # Mann and Whitney's U: number of pairs in which the step of the phase is the slower one.
    slower = float(order[odd].sum() - members * (members + 1) / 2)
    above = slower / pairs
    consistency, p_value = max(above, 1 - above), None
    if consistency >= LEAST_CONSISTENCY:
        p_value = min(1.0, _chance(order, members, slower) * looked_at)
    others = float(median_of(series[~odd]))
    ratio = float(median_of(series[odd])) / others if others > 0 else None
    is_period = p_value is not None and p_value < MOST_CHANCE
    difference = "differs" if ratio is None else f"takes {ratio:.2f} x the time of the others"
    return Period(
        n=series.size,
        found=is_period,
        period=period,
        phase=phase,
        ratio=ratio,
        consistency=consistency,
        p_value=p_value,
        reason=f"every {period}th step from step {phase} on {difference}" if is_period else "no period found",
    )


def _chance(order: Floats, members: int, above: float) -> float:
    """p-value of the two-sided rank sum test; `order`: ranks of all steps, `above`: U of the `members` of the phase.

    The same value as by `scipy.stats.mannwhitneyu`, whose import takes half a second.
    """
    others = order.size - members
    larger = max(above, members * others - above)
    if members <= MOST_EXACT_MEMBERS:
        return min(1.0, 2 * _as_large(int(larger), members, others))
    ties = np.unique(order, return_counts=True)[1].astype(np.float64)
    n = order.size
    variance = members * others / 12 * (n + 1 - float((ties**3 - ties).sum()) / (n * (n - 1)))
    return min(1.0, 2 * float(ndtr(-(larger - members * others / 2 - 0.5) / variance**0.5)))


def _as_large(above: int, members: int, others: int) -> float:
    """Chance that U is at least `above`, if all orders are equally likely and there are no ties.

    The numbers of orders by U are the coefficients of a Gaussian polynomial: Mann & Whitney, Annals of Mathematical
    Statistics 18 (1947). The distribution is symmetric.
    """
    most = members * others - above
    counts = [1] + [0] * most
    for member in range(1, members + 1):
        for power in range(most, others + member - 1, -1):
            counts[power] -= counts[power - others - member]
        for power in range(member, most + 1):
            counts[power] += counts[power - member]
    return sum(counts) / comb(members + others, members)

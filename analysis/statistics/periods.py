"""Test whether every k-th step differs, for example because a script synchronises only when it prints."""

import functools
from dataclasses import dataclass
from math import comb

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from analysis.statistics.samples import Floats, median_of, ordered, ranks

LEAST_STEPS = 20
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
    series, refusal = ordered(values, least=LEAST_STEPS)
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
    """Phase of each of `n` steps, and the number of steps of each phase. Most runs have the same number of steps."""
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

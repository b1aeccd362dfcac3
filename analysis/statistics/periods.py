"""Test whether every k-th step differs, for example because a script synchronises only when it prints."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.stats import mannwhitneyu, rankdata

from analysis.statistics.samples import Floats, median_of, ordered

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
    the fields describe the best candidate. `p_value`: corrected for all tested periods and phases. `consistency`: each
    step of the pattern is compared with each other step; share of these pairs whose times have the same order.
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
    ranks = np.asarray(rankdata(series), dtype=np.float64)
    periods = range(2, min(longest, n // LEAST_MEMBERS) + 1)
    scores = [_standard_scores(ranks, period) for period in periods]
    # The two phases of period 2 have equal scores: report the slow phase.
    best = max(range(len(scores)), key=lambda index: float(np.abs(scores[index]).max()))
    phase = int(np.argmax(np.abs(scores[best]) + 1e-9 * (scores[best] > 0)))
    return _describe(series, period=periods[best], phase=phase, looked_at=sum(score.size for score in scores))


def _standard_scores(ranks: Floats, period: int) -> Floats:
    """Standard score of the rank sum of each phase, shape (period,); positive if its steps are slow."""
    phases = np.arange(ranks.size) % period
    members = np.bincount(phases, minlength=period)
    sums = np.bincount(phases, weights=ranks, minlength=period)
    # Uses the variance of the ranks themselves, because ties reduce it.
    variance = members * (ranks.size - members) / (ranks.size - 1) * ranks.var()
    return np.asarray((sums - members * ranks.mean()) / np.sqrt(variance), dtype=np.float64)


def _describe(series: Floats, *, period: int, phase: int, looked_at: int) -> Period:
    odd = np.arange(series.size) % period == phase
    members = int(odd.sum())
    method: Literal["exact", "asymptotic"] = "exact" if members <= MOST_EXACT_MEMBERS else "asymptotic"
    above, chance = mannwhitneyu(series[odd], series[~odd], method=method)
    above = float(above) / (members * (series.size - members))
    consistency, p_value = max(above, 1 - above), min(1.0, float(chance) * looked_at)
    others = float(median_of(series[~odd]))
    ratio = float(median_of(series[odd])) / others if others > 0 else None
    is_period = p_value < MOST_CHANCE and consistency >= LEAST_CONSISTENCY
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

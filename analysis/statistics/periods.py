"""Is every k-th step different? A missing synchronisation at print frequency 10 looks like that."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.stats import mannwhitneyu, rankdata

from analysis.statistics.autocorrelation import acf
from analysis.statistics.samples import Floats, ordered

LEAST_STEPS = 20
# Members that a class of steps must have before "every k-th" can be claimed.
LEAST_MEMBERS = 4
# Longer periods than 64 have never been a print frequency; scanning them costs certainty for the short ones.
LONGEST_PERIOD = 64
# 1 false alarm in 1000 series of independent steps, all periods and phases together.
MOST_CHANCE = 0.001
# The normal approximation misses what 6 odd steps of 60 prove; with more than these it is close enough, and quick.
MOST_EXACT_MEMBERS = 16
# Share of pairs (odd step, other step) that lie in the same order; all of them: 1, no difference: 0.5.
LEAST_CONSISTENCY = 0.9


@dataclass(frozen=True, kw_only=True)
class Period:
    """The steps `phase`, `phase + period`, ... (from 0) take `ratio` times as long as the others, by medians.

    `found` only where chance would do it less than 1 in 1000 times (`p_value`, corrected for all periods and phases
    looked at) and 9 of 10 pairs agree (`consistency`). Otherwise the fields describe the best candidate.
    """

    n: int
    found: bool
    period: int | None = None
    phase: int | None = None
    members: int | None = None
    ratio: float | None = None
    consistency: float | None = None
    p_value: float | None = None
    autocorrelation: float | None = None
    reason: str


def period_scan(values: npt.ArrayLike, *, longest: int = LONGEST_PERIOD) -> Period:
    """The period and phase whose steps stand out most by the rank sum test (Mann & Whitney 1947).

    The test statistic grows with the number of odd steps as well as with their difference, so that neither multiples
    (20, 30) nor divisors (5) of a period of 10 win over it. A pattern much smaller than the
    slow waves it rides on is not seen.
    """
    series, refusal = ordered(values, least=LEAST_STEPS)
    n = series.size
    if refusal:
        return Period(n=n, found=False, reason=refusal)
    ranks = np.asarray(rankdata(series), dtype=np.float64)
    periods = range(2, min(longest, n // LEAST_MEMBERS) + 1)
    scores = [_standard_scores(ranks, period) for period in periods]
    # Of the two classes of period 2, whose scores are equal, the slow one is called odd.
    best = max(range(len(scores)), key=lambda index: float(np.abs(scores[index]).max()))
    phase = int(np.argmax(np.abs(scores[best]) + 1e-9 * (scores[best] > 0)))
    return _describe(series, period=periods[best], phase=phase, looked_at=sum(score.size for score in scores))


def _standard_scores(ranks: Floats, period: int) -> Floats:
    """Of the rank sum of each phase, shape (period,); positive where its steps are slow."""
    phases = np.arange(ranks.size) % period
    members = np.bincount(phases, minlength=period)
    sums = np.bincount(phases, weights=ranks, minlength=period)
    # With the variance of the ranks themselves, which ties make smaller.
    variance = members * (ranks.size - members) / (ranks.size - 1) * ranks.var()
    return np.asarray((sums - members * ranks.mean()) / np.sqrt(variance), dtype=np.float64)


def _describe(series: Floats, *, period: int, phase: int, looked_at: int) -> Period:
    odd = np.arange(series.size) % period == phase
    members = int(odd.sum())
    method: Literal["exact", "asymptotic"] = "exact" if members <= MOST_EXACT_MEMBERS else "asymptotic"
    above, chance = mannwhitneyu(series[odd], series[~odd], method=method)
    above = float(above) / (members * (series.size - members))
    consistency, p_value = max(above, 1 - above), min(1.0, float(chance) * looked_at)
    others = float(np.median(series[~odd]))
    ratio = float(np.median(series[odd])) / others if others > 0 else None
    is_period = p_value < MOST_CHANCE and consistency >= LEAST_CONSISTENCY
    every = f"every {period}th step from step {phase} on"
    if ratio is None:
        reason = f"{every} differs" if is_period else "no period found"
    else:
        reason = f"{every} takes {ratio:.2f} x the time of the others" if is_period else "no period found"
    return Period(
        n=series.size,
        found=is_period,
        period=period,
        phase=phase,
        members=members,
        ratio=ratio,
        consistency=consistency,
        p_value=p_value,
        autocorrelation=float(acf(series)[period]),
        reason=reason,
    )

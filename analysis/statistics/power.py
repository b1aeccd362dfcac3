"""What a comparison could have seen: the difference that n runs against m find 4 times out of 5."""

from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy.optimize import brentq
from scipy.special import gammainc, stdtrit

from analysis.statistics.samples import LEAST_FOR_SPREAD, counted

ALPHA = 0.05
# The usual convention (Cohen 1988): a difference of this size is missed 1 time in 5.
POWER = 0.8
MOST_RUNS = 1000
# Points of the standard normal distribution and their weights. Sums over them are integrals to 5 digits, also where the
# spread is known from thousands of runs, so that the chance to sum rises within 0.03 standard errors.
POINTS = np.linspace(-8.5, 8.5, 601)
WEIGHTS = np.exp(-(POINTS**2) / 2) / np.exp(-(POINTS**2) / 2).sum()


@dataclass(frozen=True, kw_only=True)
class Detectable:
    """`difference` in the unit of the spread: of logarithms, so a fraction where it is small; None with a reason."""

    difference: float | None
    alpha: float = ALPHA
    power: float = POWER
    reason: str | None = None

    @property
    def percent(self) -> float | None:
        """The slower one's extra time where `difference` is one of logarithms."""
        return None if self.difference is None else 100 * float(np.expm1(self.difference))


def smallest_detectable(
    stdev: float | None, *, runs: tuple[int, int], alpha: float = ALPHA, power: float = POWER
) -> Detectable:
    """Two-sided t test between two groups of runs whose standard deviation between runs is `stdev`.

    Cohen, Statistical Power Analysis, 1988, chapter 2, by the noncentral t distribution.
    """
    first, second = runs
    if min(runs) < LEAST_FOR_SPREAD:
        reason = f"{first} against {counted(second, 'run')}: no test with fewer than {LEAST_FOR_SPREAD} on either side"
        return undetectable(reason, alpha=alpha, power=power)
    if not stdev or not np.isfinite(stdev):
        reason = "no spread between runs: any difference would be seen, or the runs are copies"
        return undetectable(reason, alpha=alpha, power=power)
    error = stdev * float(np.sqrt(1 / first + 1 / second))
    return smallest_detectable_shift(error, degrees=first + second - 2, alpha=alpha, power=power)


def undetectable(reason: str, *, alpha: float = ALPHA, power: float = POWER) -> Detectable:
    """Nothing can be said about what would be seen."""
    return Detectable(difference=None, alpha=alpha, power=power, reason=reason)


def smallest_detectable_shift(
    error: float, *, degrees: float, alpha: float = ALPHA, power: float = POWER
) -> Detectable:
    """By a two-sided t test whose statistic has this standard error and these degrees of freedom."""
    return Detectable(
        difference=_shift_found(degrees=degrees, alpha=alpha, power=power) * error, alpha=alpha, power=power
    )


@cache
def _shift_found(*, degrees: float, alpha: float, power: float) -> float:
    """The true difference, in standard errors, that a test finds with this power."""

    def missing(shift: float) -> float:
        return power_of(shift, degrees=degrees, alpha=alpha) - power

    # A shift that is found for certain: the normal limits of test and power, scaled by the heaviest tail.
    certain = 10 + 10 * float(stdtrit(degrees, 1 - alpha / 2))
    return float(brentq(missing, 0.0, certain))


def runs_needed(difference: float, *, stdev: float, alpha: float = ALPHA, power: float = POWER) -> int | None:
    """Runs on each side that find `difference` (in the unit of `stdev`); None where 1000 are not enough."""
    if difference <= 0 or stdev <= 0:
        raise ValueError(f"difference and spread must be positive; got {difference} and {stdev}")

    def enough(runs: int) -> bool:
        shift = difference / stdev / np.sqrt(2 / runs)
        return power_of(float(shift), degrees=2 * runs - 2, alpha=alpha) >= power

    low, high = 2, MOST_RUNS
    if not enough(high):
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle + 1, high)
    return low


def power_of(shift: float, *, degrees: float, alpha: float) -> float:
    """Chance that a two-sided t test finds a true difference of `shift` standard errors.

    The noncentral t distribution, as an integral over the normal part of the statistic: the test finds the difference
    where the estimated standard error is below |normal + shift| / limit. `scipy.special.nctdtr` gives NaN at the levels
    that a correction for many comparisons asks for.
    """
    limit = float(stdtrit(degrees, 1 - alpha / 2))
    estimated_variance = ((POINTS + shift) / limit) ** 2
    return float(WEIGHTS @ gammainc(degrees / 2, degrees / 2 * estimated_variance))

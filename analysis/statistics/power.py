"""Power of a comparison: the smallest difference that n runs against m find 4 times out of 5."""

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
# Grid on the standard normal distribution, with weights. It gives integrals to 5 digits, even with thousands of runs,
# where the integrand rises within 0.03 standard errors.
POINTS = np.linspace(-8.5, 8.5, 601)
WEIGHTS = np.exp(-(POINTS**2) / 2) / np.exp(-(POINTS**2) / 2).sum()


@dataclass(frozen=True, kw_only=True)
class Detectable:
    """Smallest detectable difference in the unit of the spread, or None with a reason; of logarithms: a fraction."""

    difference: float | None
    alpha: float = ALPHA
    power: float = POWER
    reason: str | None = None

    @property
    def percent(self) -> float | None:
        """Extra time of the slower side in per cent, if `difference` is one of logarithms."""
        return None if self.difference is None else 100 * float(np.expm1(self.difference))


def smallest_detectable(
    stdev: float | None, *, runs: tuple[int, int], alpha: float = ALPHA, power: float = POWER
) -> Detectable:
    """Smallest difference that a two-sided t test finds between two groups of `runs` runs.

    `stdev`: standard deviation between runs; `power`: chance to find the difference. Cohen, Statistical Power Analysis,
    1988, chapter 2, by the noncentral t distribution.
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
    """Result without a difference, for `reason`."""
    return Detectable(difference=None, alpha=alpha, power=power, reason=reason)


def smallest_detectable_shift(
    error: float, *, degrees: float, alpha: float = ALPHA, power: float = POWER
) -> Detectable:
    """Smallest difference that a two-sided t test with this standard error and these degrees of freedom finds."""
    return Detectable(
        difference=_shift_found(degrees=degrees, alpha=alpha, power=power) * error, alpha=alpha, power=power
    )


@cache
def _shift_found(*, degrees: float, alpha: float, power: float) -> float:
    """True difference, in standard errors, that a two-sided t test finds with this power."""

    def missing(shift: float) -> float:
        return power_of(shift, degrees=degrees, alpha=alpha) - power

    # Upper bound of the search: a shift that is certainly found, from the normal limits scaled by the tail of t.
    certain = 10 + 10 * float(stdtrit(degrees, 1 - alpha / 2))
    return float(brentq(missing, 0.0, certain))


def runs_needed(difference: float, *, stdev: float, alpha: float = ALPHA, power: float = POWER) -> int | None:
    """Runs per side that find `difference` (in the unit of `stdev`) with this power; None if 1000 are not enough.

    Raises `ValueError` if `difference` or `stdev` is not positive.
    """
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

    Noncentral t distribution, integrated over the normal part of the statistic: the test finds the difference if the
    estimated standard error is below |normal + shift| / limit. `scipy.special.nctdtr` is not used, because it gives NaN
    at the levels of a correction for many comparisons.
    """
    limit = float(stdtrit(degrees, 1 - alpha / 2))
    estimated_variance = ((POINTS + shift) / limit) ** 2
    return float(WEIGHTS @ gammainc(degrees / 2, degrees / 2 * estimated_variance))

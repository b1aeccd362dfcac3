"""What a comparison could have seen: the difference that n runs against m find 4 times out of 5."""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.special import nctdtr, stdtrit

from analysis.statistics.samples import LEAST_FOR_SPREAD, counted

ALPHA = 0.05
# The usual convention (Cohen 1988): a difference of this size is missed 1 time in 5.
POWER = 0.8
MOST_RUNS = 1000


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

    def missing(shift: float) -> float:
        return power_of(shift, degrees=degrees, alpha=alpha) - power

    # A shift that is found for certain: the normal limits of test and power, scaled by the heaviest tail.
    certain = 10 + 10 * float(stdtrit(degrees, 1 - alpha / 2))
    shift = float(brentq(missing, 0.0, certain))
    return Detectable(difference=shift * error, alpha=alpha, power=power)


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
    """Chance that a two-sided t test finds a true difference of `shift` standard errors."""
    limit = float(stdtrit(degrees, 1 - alpha / 2))
    above, below = 1 - float(nctdtr(degrees, shift, limit)), float(nctdtr(degrees, shift, -limit))
    # Far out in the wrong tail scipy may give NaN; the true value is 0 to 15 digits there.
    return above + (below if np.isfinite(below) else 0.0)

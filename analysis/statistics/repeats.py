"""Test whether repeats of one configuration differ by more than their own steps explain."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.special import fdtrc

from analysis.statistics.autocorrelation import LEAST_STEPS, acf, integrated_time, unbiased_lag1
from analysis.statistics.samples import LEAST_FOR_SPREAD, Floats, finite

# Normal score of a one-sided 80 % limit. With the estimate itself, 3 % of audits of slow noise report a difference;
# with a 95 % limit, few real differences are found.
UPPER_SCORE = 0.8416


def differ(figures: npt.ArrayLike, steps: Sequence[npt.ArrayLike]) -> float | None:
    """p-value of "these runs have one speed": one-way analysis of variance of the logarithms of their figures.

    `figures`: images over wall time of each run, which is a mean over all steps, also slow ones. Its variance is that
    of the steps over the effective number of steps. The model of the steps is a first-order autoregression that all
    runs share, because 20 steps cannot estimate their own. None if a run has too few steps, or steps that do not vary.
    Scheffe, The Analysis of Variance, 1959, chapter 3.
    """
    logarithms = np.log(np.asarray(figures, dtype=np.float64))
    series = [kept for kept, _ in map(finite, steps)]
    series = [one for one in series if one.size >= LEAST_STEPS and np.ptp(one) > 0 and one.mean() > 0]
    if logarithms.size < LEAST_FOR_SPREAD or len(series) < logarithms.size:
        return None
    tau = _shared_time(series)
    effective = np.array([max(one.size / tau, 1.5) for one in series])
    # The variance about a run's own mean is too small by the factor (effective - 1) / effective.
    relative = np.array([one.var() / one.mean() ** 2 for one in series]) * effective
    within = float(relative.sum() / (effective - 1).sum())
    ratio = float(logarithms.var(ddof=1) / (within / effective).mean())
    return float(fdtrc(logarithms.size - 1.0, float((effective - 1).sum()), ratio))


def _shared_time(series: Sequence[Floats]) -> float:
    """Steps per independent step, from the upper limit of the runs' lag-1 correlation.

    20 steps underestimate slow noise, and the unexplained rest would be reported as a difference.
    """
    shortest = min(one.size for one in series)
    correlations = np.mean([acf(one)[:shortest] for one in series], axis=0)
    lag1 = float(correlations[1])
    upper = lag1 + UPPER_SCORE * float(np.sqrt((1 - lag1**2) / (shortest * len(series))))
    rho = unbiased_lag1(upper, n=float(shortest), runs=len(series))
    return max(integrated_time(np.asarray(correlations, dtype=np.float64)), (1 + rho) / (1 - rho))

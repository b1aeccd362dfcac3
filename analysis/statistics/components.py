"""Variance components: of steps within and between runs, of runs on and between machines; a test of repeats."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from math import isfinite

import numpy as np
import numpy.typing as npt
from scipy.special import chdtri, fdtrc, fdtri

from analysis.statistics.autocorrelation import LEAST_STEPS, acf, integrated_time, unbiased_lag1
from analysis.statistics.samples import LEAST_FOR_SPREAD, Estimate, Floats, Interval, Method, Runs, finite, too_few
from analysis.statistics.steady import outliers
from workload.contract.text import counted
from workload.stats.intervals import LEAST_REPLICATES, LEVEL
from workload.stats.least_squares import basis, indicators

# Normal score of a one-sided 80 % limit of the lag-1 correlation. With the estimate in place of the limit, 3 % of
# audits of slow noise report a difference; with a 95 % limit, few real differences are found.
UPPER_SCORE = 0.8416
NO_MORE_THAN_STEPS = "runs differ no more than the steps within them explain"


@dataclass(frozen=True, kw_only=True)
class VarianceSplit:
    """Variance components as standard deviations of logarithms, which are fractions of the step time: 0.006 = 0.6 %.

    `steps`: number of steps without outliers; `effective`: total number of independent steps.
    """

    runs: int
    steps: int
    effective: float | None
    within: Estimate
    between: Estimate
    reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class _Parts:
    means: Floats
    within_variance: float
    effective: Floats

    @property
    def steps(self) -> float:
        """Harmonic mean over runs of the number of independent steps."""
        return float(1 / np.mean(1 / self.effective))

    @property
    def degrees(self) -> tuple[float, float]:
        return self.means.size - 1.0, float((self.effective - 1).sum())


def variance_split(runs: Runs, *, level: float = LEVEL) -> VarianceSplit:
    """Split the variance of step times into within and between runs; outliers and steps of 0 s or less are dropped.

    The model is one-way random effects of logarithms, for runs of unequal length with autocorrelated steps. The method
    is unweighted means (Thomas & Hultquist, Annals of Statistics 6, 1978) with each run's effective n instead of n, so
    that slow waves within runs do not count as differences between runs. Interval of `between`: Williams (1962) and
    Tukey. A negative estimate is set to 0.
    """
    usable = [steps[steps > 0] for steps, _ in map(finite, runs)]
    kept = [np.asarray(np.log(steps[~outliers(steps)]), dtype=np.float64) for steps in usable]
    series = [steps for steps in kept if steps.size >= LEAST_STEPS and np.ptp(steps) > 0]
    parts = _parts(series) if series else None
    reasons = [f"{counted(len(series), 'run')}: no variance between runs"] if len(series) < LEAST_FOR_SPREAD else []
    if left_out := len(kept) - len(series):
        reasons.append(
            f"{counted(left_out, 'run')} with fewer than {LEAST_STEPS} steps or constant step times left out"
        )
    reason = "; ".join(reasons) or None
    if parts and len(series) >= LEAST_REPLICATES:
        between = _between(parts, level=level)
    else:
        few = f"{too_few(len(series), 'run')} for a spread" if len(series) >= LEAST_FOR_SPREAD else reason
        between = Estimate(value=None, n=len(series), reason=few)
    total = sum(steps.size for steps in series)
    within = Estimate(value=None, n=total, reason="no run whose steps vary")
    if parts:
        value, interval = plain_stdev(parts.within_variance, parts.degrees[1], level=level)
        within = Estimate(value=value, interval=interval, n=total)
    return VarianceSplit(
        runs=len(series),
        steps=total,
        effective=float(parts.effective.sum()) if parts else None,
        within=within,
        between=between,
        reason=reason,
    )


def _parts(series: list[Floats]) -> _Parts:
    rho = _pooled_lag1(series)
    effective = np.array([_effective(steps.size, rho) for steps in series])
    # The variance about a run's own mean is too small by the factor (effective - 1) / effective.
    squares = np.array([steps.var() for steps in series]) * effective
    return _Parts(
        means=np.array([steps.mean() for steps in series]),
        within_variance=float(squares.sum() / (effective - 1).sum()),
        effective=effective,
    )


def _pooled_lag1(series: list[Floats]) -> float:
    """Lag-1 correlation of an autoregression with the integrated autocorrelation time of all runs together.

    A single run estimates this time badly.
    """
    shortest = min(steps.size for steps in series)
    sizes = np.array([steps.size for steps in series], dtype=np.float64)
    pooled = np.average([acf(steps)[:shortest] for steps in series], axis=0, weights=sizes)
    tau = integrated_time(np.asarray(pooled, dtype=np.float64))
    unbiased = unbiased_lag1(float(pooled[1]), n=float(np.average(sizes, weights=sizes)), runs=len(series))
    return max((tau - 1) / (tau + 1), unbiased)


def _effective(n: int, rho: float) -> float:
    """Effective n of an autoregression: variance of one step divided by the variance of the mean of `n` steps.

    At least 1.5, because 1 would leave no degree of freedom within the run. `rho`: lag-1 correlation.
    """
    lags = np.arange(1, n)
    return max(n / (1 + 2 * float((1 - lags / n) @ rho**lags)), 1.5)


def _chi2(share_below: float, degrees: float) -> float:
    return float(chdtri(degrees, 1 - share_below))


def _tails(level: float) -> tuple[float, float]:
    return (1 - level) / 2, (1 + level) / 2


def above_noise(
    mean_square: float,
    degrees: float,
    *,
    noise: float,
    noise_degrees: float,
    coefficient: float = 1.0,
    level: float = LEVEL,
    n: int,
    if_zero: str,
) -> Estimate:
    """Standard deviation of a random effect, with its interval; `if_zero`: reason if the noise explains all of it.

    `mean_square` estimates `coefficient` x variance of the effect + `noise`. Both are modelled as chi-square variables
    over their degrees of freedom; a negative variance is set to 0. Interval: Williams, Biometrika 49 (1962), and Tukey.
    """
    squares = degrees * mean_square
    ends = [
        max(0.0, squares - float(fdtri(degrees, noise_degrees, tail)) * degrees * noise)
        / _chi2(tail, degrees)
        / coefficient
        for tail in reversed(_tails(level))
    ]
    interval = Interval(low=ends[0] ** 0.5, high=ends[1] ** 0.5, level=level, method=Method.F_AND_CHI2)
    value = (max(0.0, mean_square - noise) / coefficient) ** 0.5
    return Estimate(value=value, interval=interval, n=n, reason=None if value else if_zero)


def plain_stdev(mean_square: float, degrees: float, *, level: float = LEVEL) -> tuple[float, Interval]:
    """Standard deviation, with its interval, from a mean square that estimates a single variance."""
    low, high = ((mean_square * degrees / _chi2(tail, degrees)) ** 0.5 for tail in reversed(_tails(level)))
    return mean_square**0.5, Interval(low=low, high=high, level=level, method=Method.F_AND_CHI2)


def _between(parts: _Parts, *, level: float) -> Estimate:
    degrees, noise_degrees = parts.degrees
    return above_noise(
        float(parts.means.var(ddof=1)),
        degrees,
        noise=parts.within_variance / parts.steps,
        noise_degrees=noise_degrees,
        level=level,
        n=parts.means.size,
        if_zero=NO_MORE_THAN_STEPS,
    )


def differ(figures: npt.ArrayLike, steps: Sequence[npt.ArrayLike]) -> float | None:
    """p-value of the hypothesis that runs have one speed, by analysis of variance of the logarithms of their figures.

    `figures`: images over wall time of each run, which is a mean over all steps, also slow ones. The variance of a
    figure is the variance of the run's steps divided by their effective number. The model of the steps is one
    first-order autoregression for all runs, because 20 steps are too few to estimate one per run. None if a run has too
    few steps, or steps that do not vary. Scheffe, The Analysis of Variance, 1959, chapter 3.
    """
    logarithms = np.log(np.asarray(figures, dtype=np.float64))
    series = [kept for kept, _ in map(finite, steps)]
    series = [run for run in series if run.size >= LEAST_STEPS and np.ptp(run) > 0 and run.mean() > 0]
    if logarithms.size < LEAST_FOR_SPREAD or len(series) < logarithms.size:
        return None
    tau = _shared_time(series)
    effective = np.array([max(run.size / tau, 1.5) for run in series])
    # The variance about a run's own mean is too small by the factor (effective - 1) / effective.
    relative = np.array([run.var() / run.mean() ** 2 for run in series]) * effective
    within = float(relative.sum() / (effective - 1).sum())
    ratio = float(logarithms.var(ddof=1) / (within / effective).mean())
    return float(fdtrc(logarithms.size - 1.0, float((effective - 1).sum()), ratio))


def _shared_time(series: Sequence[Floats]) -> float:
    """Number of steps worth one independent step, from the upper limit of the runs' lag-1 correlation.

    Estimates from 20 steps are too low for slow noise: unexplained noise would be reported as a difference between
    runs.
    """
    shortest = min(run.size for run in series)
    correlations = np.mean([acf(run)[:shortest] for run in series], axis=0)
    lag1 = float(correlations[1])
    upper = lag1 + UPPER_SCORE * float(np.sqrt((1 - lag1**2) / (shortest * len(series))))
    rho = unbiased_lag1(upper, n=float(shortest), runs=len(series))
    return max(integrated_time(np.asarray(correlations, dtype=np.float64)), (1 + rho) / (1 - rho))


# --- machines


@dataclass(frozen=True, kw_only=True)
class PlacedRun:
    """A run's positive figure, and the host on which it was measured; None if unknown.

    `noise`: variance of the figure's logarithm, estimated from the run's steps, with `noise_degrees` of freedom.
    """

    figure: float
    configuration: Hashable
    host: Hashable = None
    noise: float | None = None
    noise_degrees: float = 0.0


@dataclass(frozen=True, kw_only=True)
class MachineSplit:
    """Standard deviations of logarithms, which are fractions of the figure: 0.006 = 0.6 %; reasons if unknown."""

    runs: int
    hosts: int
    between_runs: Estimate
    between_hosts: Estimate


@dataclass(frozen=True, kw_only=True)
class _Stratum:
    """A mean square with expectation: variance of runs + `hosts` x variance of hosts."""

    mean_square: float
    degrees: int
    hosts: float


def machine_split(runs: Sequence[PlacedRun], *, level: float = LEVEL) -> MachineSplit:
    """Variance between runs and hosts by ANOVA for unbalanced data; runs without a known host are left out.

    One model for a whole matrix: the logarithm of a run's figure = its configuration + its host + the run. If a host
    slows all configurations equally, the effect is variance between hosts; an effect on a single configuration is
    variance between runs. Configurations are fixed effects, hosts random effects. The method is Henderson's method 3,
    sequential sums of squares with their expectations (Biometrics 9, 1953; Searle, Casella & McCulloch, Variance
    Components, 1992, chapter 5). `above_noise` gives the intervals.
    """
    known = [run for run in runs if run.host is not None and isfinite(run.figure) and run.figure > 0]
    hosts = len({run.host for run in known})
    lost = f"{counted(len(runs) - len(known), 'run')} without a known machine left out"
    by_host, rest = _strata(known) if known else (None, None)
    between_runs = _runs(known, rest, level=level)
    if len(known) < len(runs):
        between_runs = replace(between_runs, reason="; ".join(filter(None, (between_runs.reason, lost))))
    return MachineSplit(
        runs=len(known),
        hosts=hosts,
        between_runs=between_runs,
        between_hosts=_hosts(hosts, by_host, rest, level=level),
    )


def _strata(runs: Sequence[PlacedRun]) -> tuple[_Stratum | None, _Stratum | None]:
    """Strata of hosts and residuals; None for a stratum without a degree of freedom.

    Each stratum is the variation that the earlier ones leave, in the order configurations, hosts, residuals.
    """
    logs = np.log([run.figure for run in runs])
    columns = [indicators([run.configuration for run in runs]), indicators([run.host for run in runs])]
    parts = (logs[:, None], columns[1])
    bases = [basis(np.hstack(columns[: count + 1])) for count in range(len(columns))]
    explained = [[float(np.sum((basis.T @ part) ** 2)) for part in parts] for basis in bases]
    explained.append([float(np.sum(part**2)) for part in parts])
    ranks = [*(basis.shape[1] for basis in bases), len(runs)]
    strata: list[_Stratum | None] = []
    for number in range(len(columns)):
        degrees = ranks[number + 1] - ranks[number]
        if not degrees:
            strata.append(None)
            continue
        square, hosts = (
            max(more - less, 0.0) / degrees for less, more in zip(explained[number], explained[number + 1], strict=True)
        )
        strata.append(_Stratum(mean_square=square, degrees=degrees, hosts=hosts))
    by_host, rest = strata
    return by_host, rest


def _runs(runs: Sequence[PlacedRun], rest: _Stratum | None, *, level: float) -> Estimate:
    n = len(runs)
    if rest is None:
        few = "no machine has run a configuration twice, nor two configurations" if n else "no run with a known machine"
        return Estimate(value=None, n=n, reason=few)
    if rest.degrees < LEAST_REPLICATES - 1:
        return Estimate(value=None, n=n, reason=f"{too_few(n, 'run')} for a spread")
    noises = [(run.noise, run.noise_degrees) for run in runs if run.noise is not None]
    if len(noises) < n:
        value, interval = plain_stdev(rest.mean_square, rest.degrees, level=level)
        return Estimate(value=value, interval=interval, n=n, reason="includes the noise of steps within runs")
    # Degrees of freedom of a sum of mean squares: Satterthwaite, Biometrics Bulletin 2 (1946).
    total, spread = sum(noise for noise, _ in noises), sum(noise**2 / degrees for noise, degrees in noises)
    return above_noise(
        rest.mean_square,
        rest.degrees,
        noise=total / n,
        noise_degrees=total**2 / spread if spread else sum(degrees for _, degrees in noises),
        level=level,
        n=n,
        if_zero=NO_MORE_THAN_STEPS,
    )


def _hosts(n: int, by_host: _Stratum | None, rest: _Stratum | None, *, level: float) -> Estimate:
    if n < 2:  # noqa: PLR2004 - a variance needs two
        return Estimate(value=None, n=n, reason=f"unknown: {counted(n, 'machine')}")
    if by_host is None:
        return Estimate(value=None, n=n, reason="unknown: machines and configurations coincide")
    if rest is None:
        together, _ = plain_stdev(by_host.mean_square, by_host.degrees, level=level)
        reason = f"unknown: one run on each machine; machines and runs together vary by {100 * together:.2g} %"
        return Estimate(value=None, n=n, reason=reason)
    return above_noise(
        by_host.mean_square,
        by_host.degrees,
        noise=rest.mean_square,
        noise_degrees=rest.degrees,
        coefficient=by_host.hosts,
        level=level,
        n=n,
        if_zero="machines differ no more than the runs on them explain",
    )

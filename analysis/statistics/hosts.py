"""Variance of runs on one host, and between hosts.

One model for a whole matrix: the logarithm of a run's figure = its configuration + its host + the run. If a host slows
all configurations equally, the effect is variance between hosts; an effect on a single configuration is variance
between runs.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from math import isfinite

import numpy as np

from analysis.statistics.components import NO_MORE_THAN_STEPS, above_noise, plain_stdev
from analysis.statistics.samples import Estimate, too_few
from workload.contract.text import counted
from workload.stats.least_squares import basis, indicators
from workload.stats.runs_interval import LEAST_REPLICATES, LEVEL


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

    Configurations are fixed effects, hosts random effects. The method is Henderson's method 3, sequential sums of
    squares with their expectations (Biometrics 9, 1953; Searle, Casella & McCulloch, Variance Components, 1992, chapter
    5). `above_noise` gives the intervals.
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

"""Variance of runs on one host, between hosts and between zones; and the effect of the position in a block.

One model for a whole matrix: the logarithm of a run's figure = its configuration + its zone + its host + the run. If a
host slows all configurations equally, the effect is variance between hosts; an effect on a single configuration is
variance between runs.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from math import isfinite, log

import numpy as np

from analysis.statistics.components import NO_MORE_THAN_STEPS, above_noise, plain_stdev
from analysis.statistics.samples import Estimate, Interval, Method, too_few
from workload.contract.text import counted
from workload.stats.least_squares import Fit, basis, f_tail, indicators
from workload.stats.runs_interval import LEAST_REPLICATES, LEVEL, student_reach


@dataclass(frozen=True, kw_only=True)
class PlacedRun:
    """A run's positive figure and its place of measurement; unknown fields are None.

    `noise`: variance of the figure's logarithm, estimated from the run's steps, with `noise_degrees` of freedom.
    `position`: position of the run in its block, counted from the smallest position of all runs.
    """

    figure: float
    configuration: Hashable
    host: Hashable = None
    zone: Hashable = None
    block: Hashable = None
    position: float | None = None
    noise: float | None = None
    noise_degrees: float = 0.0


@dataclass(frozen=True, kw_only=True)
class MachineSplit:
    """Standard deviations of logarithms, which are fractions of the figure: 0.006 = 0.6 %; reasons if unknown."""

    runs: int
    hosts: int
    zones: int
    between_runs: Estimate
    between_hosts: Estimate
    between_zones: Estimate


@dataclass(frozen=True, kw_only=True)
class _Stratum:
    """A mean square with expectation: variance of runs + `hosts` x variance of hosts + `zones` x variance of zones."""

    mean_square: float
    degrees: int
    hosts: float
    zones: float


def machine_split(runs: Sequence[PlacedRun], *, level: float = LEVEL) -> MachineSplit:
    """Variance between runs, hosts and zones by ANOVA for unbalanced data; runs without a known host are left out.

    Configurations are fixed effects, zones and the hosts in them random effects. The method is Henderson's method 3,
    sequential sums of squares with their expectations (Biometrics 9, 1953; Searle, Casella & McCulloch, Variance
    Components, 1992, chapter 5). `above_noise` gives the intervals; a noise that is a sum of mean squares has
    Satterthwaite's degrees of freedom.
    """
    known = [run for run in runs if run.host is not None and _is_usable(run)]
    hosts, zones = {(run.zone, run.host) for run in known}, {run.zone for run in known}
    unknown = counted(len(runs) - len(known), "run")
    lost = f"{unknown} without a known machine left out" if len(known) < len(runs) else None
    by_zone, by_host, rest = _strata(known) if known else (None, None, None)
    return MachineSplit(
        runs=len(known),
        hosts=len(hosts),
        zones=len(zones),
        between_runs=_runs(known, rest, level=level, lost=lost),
        between_hosts=_hosts(len(hosts), by_host, rest, level=level),
        between_zones=_zones(zones, by_zone, by_host, rest, level=level),
    )


def _is_usable(run: PlacedRun) -> bool:
    return isfinite(run.figure) and run.figure > 0


def _satterthwaite(parts: Sequence[tuple[float, float]]) -> float:
    """Degrees of freedom of a sum of mean squares, from (square, degrees) of each. Biometrics Bulletin 2 (1946)."""
    spread = sum(square**2 / degrees for square, degrees in parts)
    return sum(square for square, _ in parts) ** 2 / spread if spread else sum(degrees for _, degrees in parts)


def _strata(runs: Sequence[PlacedRun]) -> tuple[_Stratum | None, _Stratum | None, _Stratum | None]:
    """Strata of zones, hosts and residuals; None for a stratum without a degree of freedom.

    Each stratum is the variation that the earlier ones leave, in the order configurations, zones, hosts, residuals.
    """
    logs = np.log([run.figure for run in runs])
    columns = [
        indicators([run.configuration for run in runs]),
        indicators([run.zone for run in runs]),
        indicators([(run.zone, run.host) for run in runs]),
    ]
    parts = (logs[:, None], columns[2], columns[1])
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
        square, hosts, zones = (
            max(more - less, 0.0) / degrees for less, more in zip(explained[number], explained[number + 1], strict=True)
        )
        strata.append(_Stratum(mean_square=square, degrees=degrees, hosts=hosts, zones=zones))
    by_zone, by_host, rest = strata
    return by_zone, by_host, rest


def _runs(runs: Sequence[PlacedRun], rest: _Stratum | None, *, level: float, lost: str | None) -> Estimate:
    n = len(runs)
    if rest is None:
        few = "no machine has run a configuration twice, nor two configurations" if n else "no run with a known machine"
        return Estimate(value=None, n=n, reason="; ".join(text for text in (few, lost) if text))
    if rest.degrees < LEAST_REPLICATES - 1:
        return Estimate(value=None, n=n, reason=f"{too_few(n, 'run')} for a spread")
    noises = np.array([run.noise for run in runs if run.noise is not None])
    if noises.size < n:
        value, interval = plain_stdev(rest.mean_square, rest.degrees, level=level)
        estimate = Estimate(value=value, interval=interval, n=n, reason="includes the noise of steps within runs")
    else:
        degrees = _satterthwaite([(run.noise or 0.0, run.noise_degrees) for run in runs])
        estimate = above_noise(
            rest.mean_square,
            rest.degrees,
            noise=float(noises.mean()),
            noise_degrees=degrees,
            level=level,
            n=n,
            if_zero=NO_MORE_THAN_STEPS,
        )
    return replace(estimate, reason="; ".join(filter(None, (estimate.reason, lost))) or None)


def _hosts(n: int, by_host: _Stratum | None, rest: _Stratum | None, *, level: float) -> Estimate:
    if n < 2:  # noqa: PLR2004 - a variance needs two
        return Estimate(value=None, n=n, reason=f"unknown: {counted(n, 'machine')}")
    if by_host is None:
        reason = "unknown: one machine in each zone, or machines and configurations coincide"
        return Estimate(value=None, n=n, reason=reason)
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


def _zones(
    zones: set[Hashable], by_zone: _Stratum | None, by_host: _Stratum | None, rest: _Stratum | None, *, level: float
) -> Estimate:
    n = len(zones - {None})
    if n < 2 or by_zone is None:  # noqa: PLR2004 - a variance needs two
        reason = "zones and configurations coincide" if n > 1 else counted(n, "zone") if n else "no zone is known"
        return Estimate(value=None, n=n, reason=f"unknown: {reason}")
    if by_host is None:
        return Estimate(
            value=None, n=n, reason="unknown: one machine in each zone, so zones and machines cannot be separated"
        )
    share = by_zone.hosts / by_host.hosts
    parts = [(share, by_host)] + ([(1 - share, rest)] if rest else [])
    # The noise is positive, but its estimate may be negative if runs on a host vary much and hosts by chance do not.
    noise = max(0.0, sum(weight * part.mean_square for weight, part in parts))
    degrees = _satterthwaite([(weight * part.mean_square, part.degrees) for weight, part in parts])
    return above_noise(
        by_zone.mean_square,
        by_zone.degrees,
        noise=noise,
        noise_degrees=degrees,
        coefficient=by_zone.zones,
        level=level,
        n=n,
        if_zero="zones differ no more than the machines in them explain",
    )


# --- position of a run in its block


@dataclass(frozen=True, kw_only=True)
class PositionEffect:
    """Effect of the position in a block on a run's figure.

    `first`: figure of a block's first run over that of later ones; `per_position`: factor from one position to the
    next; `p_value`: joint test of "the position does not matter".
    """

    first: Estimate
    per_position: Estimate
    p_value: float | None
    reason: str | None = None


def position_effect(runs: Sequence[PlacedRun], *, level: float = LEVEL) -> PositionEffect:
    """Test whether the position in the block changes a run's speed, for example because the device warms up.

    Least squares of logarithms on configuration, block and position. The effect is split into the first run and a trend
    over later ones. Position and configuration can be separated only if the order changes from block to block.
    """
    known = [run for run in runs if run.block is not None and run.position is not None and _is_usable(run)]
    n = len(known)
    if not n:
        return _no_position_effect("no run has its position in a block", n=0)
    positions = [run.position or 0.0 for run in known]
    # Blocks of two runs have no trend over later runs.
    terms = 1 if max(positions) - min(positions) <= 1 else 2
    fit = Fit(
        [log(run.figure) for run in known],
        [run.configuration for run in known],
        [run.block for run in known],
        positions,
        terms,
    )
    if fit.terms < terms:
        return _no_position_effect(
            "positions and configurations cannot be separated: all blocks have the same order", n=n
        )
    if fit.degrees < 1:
        return _no_position_effect(f"{counted(n, 'run')}: too few for a test of their positions", n=n)
    if fit.is_exact:
        return _no_position_effect("all runs have exactly the same figure", n=n)
    # The fit's first regressor is 1 for later runs; the first run's effect against them has the opposite sign.
    effects = fit.effects * [-1.0, 1.0][:terms]
    errors = np.sqrt(fit.variance * np.diag(fit.covariance))
    first, *others = (
        Estimate(value=float(np.exp(effect)), interval=_factor(effect, reach, level), n=n)
        for effect, reach in zip(effects, (student_reach(error, fit.degrees, level) for error in errors), strict=True)
    )
    ratio = float(fit.effects @ np.linalg.solve(fit.covariance, fit.effects)) / terms / fit.variance
    return PositionEffect(
        first=first,
        per_position=others[0]
        if others
        else Estimate(value=None, n=n, reason="blocks of two runs are too short for a trend"),
        p_value=f_tail(ratio, terms, fit.degrees),
    )


def _factor(effect: float, reach: float, level: float) -> Interval:
    low, high = (float(np.exp(end)) for end in (effect - reach, effect + reach))
    return Interval(low=low, high=high, level=level, method=Method.LEAST_SQUARES)


def _no_position_effect(reason: str, *, n: int) -> PositionEffect:
    absent = Estimate(value=None, n=n, reason=reason)
    return PositionEffect(first=absent, per_position=absent, p_value=None, reason=reason)

"""Two places or configurations against each other: ratio of their medians, effect size, p-value, what would be seen."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb, exp, lgamma, sqrt
from typing import Any

import numpy as np
from scipy.special import stdtrit
from scipy.stats import permutation_test

from analysis.statistics.bootstrap import RESAMPLES, hierarchical_medians
from analysis.statistics.intervals import order_statistics_from
from analysis.statistics.power import ALPHA, Detectable, smallest_detectable
from analysis.statistics.samples import LEAST_FOR_SPREAD, LEVEL, SEED, Floats, Interval, Method, Runs, counted, finite

# All ways to deal 8 + 8 runs are 12,870, gone through in 0.1 s; 9 + 9 already 48,620.
MOST_EXACT = 13_000
RANDOM_DEALS = 9_999


@dataclass(frozen=True, kw_only=True)
class PermutationTest:
    """`p_value` is two-sided; `smallest_p` is what this many runs can reach at all."""

    p_value: float | None
    smallest_p: float | None
    exact: bool
    reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """`ratio` = other / baseline of the medians over runs; above 1 the other takes longer.

    Hedges' g and the spread are of the logarithms of run medians; Cliff's delta is the chance that a run of the other
    is slower less the chance that it is faster. `reasons` say what is absent and what the rest supposes.
    """

    ratio: float | None
    interval: Interval | None
    runs_baseline: int
    runs_other: int
    dropped: int
    hedges_g: float | None
    cliffs_delta: float | None
    test: PermutationTest
    detectable: Detectable
    reasons: tuple[str, ...]

    @property
    def percent(self) -> float | None:
        """How much more (or less) the other one takes."""
        return None if self.ratio is None else 100 * (self.ratio - 1)


def compare(
    baseline: Runs,
    other: Runs,
    *,
    level: float = LEVEL,
    alpha: float = ALPHA,
    resamples: int = RESAMPLES,
    seed: int | np.random.Generator = SEED,
) -> Comparison:
    """Compare runs by the median of their positive figures (step times, or one figure per run).

    Interval of the ratio: Welch's t on logarithms below 6 runs on either side, else the hierarchical bootstrap. `alpha`
    is that of the smallest detectable difference: pass alpha / comparisons where many are made.
    """
    rng = np.random.default_rng(seed)
    sides, dropped = zip(*(_positive(side) for side in (baseline, other)), strict=True)
    medians = [np.array([np.median(run) for run in side], dtype=np.float64) for side in sides]
    first, second = (np.log(side) for side in medians)
    ratio = float(np.median(medians[1]) / np.median(medians[0])) if first.size and second.size else None
    interval, why = _interval(sides, (first, second), ratio=ratio, level=level, resamples=resamples, rng=rng)
    test = permutation(first, second, seed=rng)
    stdev = pooled_stdev(first, second)
    return Comparison(
        ratio=ratio,
        interval=interval,
        runs_baseline=first.size,
        runs_other=second.size,
        dropped=sum(dropped),
        hedges_g=hedges_g(first, second),
        cliffs_delta=cliffs_delta(first, second),
        test=test,
        detectable=smallest_detectable(stdev, runs=(first.size, second.size), alpha=alpha),
        reasons=tuple(reason for reason in (why, test.reason) if reason),
    )


def _positive(runs: Runs) -> tuple[list[Floats], int]:
    """Each run's positive figures, and how many figures were not usable."""
    cleaned = [finite(run) for run in runs]
    kept = [steps[steps > 0] for steps, _ in cleaned]
    offered = sum(steps.size + dropped for steps, dropped in cleaned)
    return [steps for steps in kept if steps.size], offered - sum(steps.size for steps in kept)


def _interval(
    sides: Sequence[Sequence[Floats]],
    medians: tuple[Floats, Floats],
    *,
    ratio: float | None,
    level: float,
    resamples: int,
    rng: np.random.Generator,
) -> tuple[Interval | None, str | None]:
    first, second = medians
    if ratio is None or min(first.size, second.size) < LEAST_FOR_SPREAD:
        return None, f"{first.size} against {counted(second.size, 'run')}: no interval with fewer than 2 on either side"
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        return None, "the runs of one side read exactly the same: no interval (copies of one run?)"
    if min(first.size, second.size) < order_statistics_from(level):
        reason = (
            f"{first.size} against {second.size} runs: the interval supposes that runs differ as a normal sample does"
        )
        return _welch(first, second, ratio=ratio, level=level), reason
    drawn = [hierarchical_medians([np.log(run) for run in side], rng=rng, resamples=resamples) for side in sides]
    low, high = np.exp(np.quantile(drawn[1] - drawn[0], [(1 - level) / 2, (1 + level) / 2]))
    return Interval(low=float(low), high=float(high), level=level, method=Method.HIERARCHICAL_BOOTSTRAP), None


def _welch(first: Floats, second: Floats, *, ratio: float, level: float) -> Interval:
    """Welch, Biometrika 34 (1947), on logarithms; widened where needed to hold the ratio of medians beside it."""
    parts = np.array([side.var(ddof=1) / side.size for side in (first, second)])
    degrees = parts.sum() ** 2 / (parts**2 / np.array([first.size - 1, second.size - 1])).sum()
    middle = second.mean() - first.mean()
    reach = stdtrit(degrees, (1 + level) / 2) * np.sqrt(parts.sum())
    low, high = (float(end) for end in np.exp([middle - reach, middle + reach]))
    return Interval(low=min(low, ratio), high=max(high, ratio), level=level, method=Method.WELCH)


def permutation(first: Floats, second: Floats, *, seed: int | np.random.Generator = SEED) -> PermutationTest:
    """Are the means the same? By dealing the runs anew to two hands of these sizes, all ways where they are few."""
    if min(first.size, second.size) < LEAST_FOR_SPREAD:
        return PermutationTest(p_value=None, smallest_p=None, exact=False, reason="one run on a side: no test")
    deals = comb(first.size + second.size, first.size)
    exact = deals <= MOST_EXACT
    found: Any = permutation_test(
        (first, second),
        lambda a, b, axis: a.mean(axis=axis) - b.mean(axis=axis),
        vectorized=True,
        n_resamples=MOST_EXACT if exact else RANDOM_DEALS,
        batch=10_000,
        rng=np.random.default_rng(seed),
    )
    smallest = 2 / deals if exact else 2 / (RANDOM_DEALS + 1)
    reason = None
    if smallest > ALPHA:
        reason = f"{first.size} against {second.size} runs: no p-value below {smallest:.2g} can be reached"
    return PermutationTest(p_value=float(found.pvalue), smallest_p=smallest, exact=exact, reason=reason)


def pooled_stdev(*groups: Floats) -> float | None:
    """Of groups with means of their own; None where no group has 2 values."""
    degrees = sum(max(group.size - 1, 0) for group in groups)
    if not degrees:
        return None
    return sqrt(sum(float(((group - group.mean()) ** 2).sum()) for group in groups if group.size) / degrees)


def hedges_g(first: Floats, second: Floats) -> float | None:
    """(mean of the second - mean of the first) / pooled standard deviation, freed of its small-sample bias.

    Hedges, Journal of Educational Statistics 6 (1981). None without spread or with fewer
    than 3 values in all; of exactly 3 it is not freed, as the factor would be 0.
    """
    stdev, degrees = pooled_stdev(first, second), first.size + second.size - 2
    if not first.size or not second.size or not stdev:
        return None
    correction = exp(lgamma(degrees / 2) - lgamma((degrees - 1) / 2)) / sqrt(degrees / 2) if degrees > 1 else 1.0
    return float(correction * (second.mean() - first.mean()) / stdev)


def cliffs_delta(first: Floats, second: Floats) -> float | None:
    """Share of pairs where the second is larger less the share where it is smaller: -1 to 1 (Cliff 1993)."""
    if not first.size or not second.size:
        return None
    return float(np.sign(second[:, None] - first[None, :]).mean())

"""Comparison of two places or configurations: ratio, effect size, p-value, smallest detectable difference.

Ratio, interval, test and smallest detectable difference come from one statistic, so that they cannot contradict each
other: p < 0.05 if and only if the 95 % interval excludes 1, and every observed difference above the smallest detectable
one is significant.
"""

from collections.abc import Hashable
from dataclasses import dataclass, replace
from math import exp, lgamma, sqrt

import numpy as np
from scipy.special import stdtr, stdtrit

from analysis.statistics.power import Detectable, smallest_detectable_shift, undetectable
from analysis.statistics.samples import LEAST_FOR_SPREAD, LEVEL, Floats, Interval, Method, Runs, counted, finite

# From this number of runs per side on, the t statistic hardly depends on the distribution of the runs.
RUNS_FOR_ANY_DISTRIBUTION = 6
# Degrees of freedom that each side's variance borrows from the pooled one: 0 is Welch's test, many approach Student's.
# Coverage of 95 % intervals at 2 against 2, 3 against 3, 3 against 10 and 10 against 10 runs: normal logarithms 95.8,
# 96.2, 96.2, 95.0 %; skewed 95.2, 96.2, 96.9, 96.0 %; heavy tails 97.0, 96.7, 96.7, 96.0 % (benchmarks/coverage.py
# --parts ratios). Up to 98 % with one run of 10 on a slow host; 88 % if 3 runs scatter 4 times as much as the other 10
# (Welch 93 %, Student 70 %). Welch's test covers 97.6 % at 2 against 2, and 92 % of skewed ones at 3 against 10.
SHARED_DEGREES = 1.0


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Difference of the means of logarithms, other less baseline, with standard error and its degrees of freedom."""

    value: float
    error: float
    degrees: float
    method: Method = Method.WELCH

    @property
    def p_value(self) -> float:
        """Two-sided p-value: probability of so large a difference by chance alone."""
        return 2 * float(stdtr(self.degrees, -abs(self.value) / self.error))

    def interval(self, level: float) -> Interval:
        """Confidence interval of the ratio; excludes 1 if and only if `p_value` < 1 - `level`."""
        reach = float(stdtrit(self.degrees, (1 + level) / 2)) * self.error
        with np.errstate(over="ignore"):  # the ratio of vastly different runs overflows to infinity
            low, high = (float(end) for end in np.exp([self.value - reach, self.value + reach]))
        return Interval(low=low, high=high, level=level, method=self.method)

    def detectable(self, alpha: float) -> Detectable:
        """Smallest difference that 4 of 5 such comparisons find at `alpha`; larger observed ones have p < alpha."""
        return smallest_detectable_shift(self.error, degrees=self.degrees, alpha=alpha)


@dataclass(frozen=True, kw_only=True)
class WithinBlocks:
    """Pairing of runs. `blocks`: number with runs of both sides; `left_out`: number of runs without a partner.

    `narrower`: width of the unpaired interval of the same runs over that of the paired one, on the scale of logarithms;
    below 1 if pairing made it wider. `shared`: number of configurations whose common scatter gives the interval; 0 if
    only the differences of these runs do, because there are no other configurations, or because the `outstanding` ones
    scatter more than the others.
    """

    blocks: int
    left_out: int
    narrower: float | None
    shared: int = 0
    outstanding: tuple[Hashable, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Result of a comparison. `ratio`: other / baseline of the geometric means over runs; above 1 the other is slower.

    `hedges_g` is computed from logarithms of run medians; `cliffs_delta`: chance that a run of the other is slower,
    less the chance that it is faster. `reasons`: why figures are absent, and the assumptions of the others. Interval
    and p-value are None if `difference` is. `within_blocks`: None if runs were not paired. `busy`: how many of the
    runs were on a busy machine, in words.
    """

    ratio: float | None
    interval: Interval | None
    p_value: float | None
    difference: Difference | None
    runs_baseline: int
    runs_other: int
    dropped: int
    hedges_g: float | None
    cliffs_delta: float | None
    level: float
    reasons: tuple[str, ...]
    within_blocks: WithinBlocks | None = None
    busy: str | None = None

    def without_difference(self, reason: str) -> "Comparison":
        """This comparison without interval and p-value, because of `reason`."""
        within = self.within_blocks and replace(self.within_blocks, narrower=None)
        reasons = (reason, *self.reasons)
        return replace(self, interval=None, p_value=None, difference=None, reasons=reasons, within_blocks=within)

    @property
    def percent(self) -> float | None:
        """Extra time of the other side in per cent; negative if it is faster."""
        return None if self.ratio is None else 100 * (self.ratio - 1)

    @property
    def detectable(self) -> Detectable:
        """Smallest difference that 4 of 5 such comparisons, tested at 1 - `level`, find."""
        alpha = 1 - self.level
        return self.difference.detectable(alpha) if self.difference else undetectable(self.reasons[0], alpha=alpha)


def compare(baseline: Runs, other: Runs, *, level: float = LEVEL) -> Comparison:
    """Compare runs by the median of their positive figures (step times, or one figure per run).

    `level`: confidence level of the interval; the smallest detectable difference is that of a test at 1 - level. For
    several comparisons, pass 1 - 0.05 / comparisons, or ask `difference` for an interval at the level of its test.
    """
    sides, dropped = zip(*(positive(side) for side in (baseline, other)), strict=True)
    first, second = (np.log([np.median(run) for run in side]) for side in sides)
    difference, reason = _difference(first, second)
    return Comparison(
        ratio=float(np.exp(second.mean() - first.mean())) if first.size and second.size else None,
        interval=difference.interval(level) if difference else None,
        p_value=difference.p_value if difference else None,
        difference=difference,
        runs_baseline=first.size,
        runs_other=second.size,
        dropped=sum(dropped),
        hedges_g=hedges_g(first, second),
        cliffs_delta=cliffs_delta(first, second),
        level=level,
        reasons=(reason,) if reason else (),
    )


def positive(runs: Runs) -> tuple[list[Floats], int]:
    """Positive finite figures of each run, without runs that have none; and the number of dropped figures."""
    cleaned = [finite(run) for run in runs]
    kept = [steps[steps > 0] for steps, _ in cleaned]
    offered = sum(steps.size + dropped for steps, dropped in cleaned)
    return [steps for steps in kept if steps.size], offered - sum(steps.size for steps in kept)


def _difference(first: Floats, second: Floats) -> tuple[Difference | None, str | None]:
    """Difference of two sides' logarithms, and the reason why there is none or the assumption of its interval.

    Welch's t (Biometrika 34, 1947) with variances that borrow `SHARED_DEGREES` from each other: few runs estimate the
    spread of a side badly, and both sides are the same program on similar machines. This is the moderated t of Smyth,
    Statistical Applications in Genetics and Molecular Biology 3 (2004), with the pooled variance as prior; degrees of
    freedom after Satterthwaite, Biometrics Bulletin 2 (1946).
    """
    sizes = np.array([first.size, second.size])
    runs = f"{first.size} against {counted(second.size, 'run')}"
    if sizes.min() < LEAST_FOR_SPREAD:
        return None, f"{runs}: no interval with fewer than 2 on either side"
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        return None, "the runs of one side read exactly the same: no interval (copies of one run?)"
    degrees = sizes - 1.0
    variances = np.array([first.var(ddof=1), second.var(ddof=1)])
    own = degrees / (degrees + SHARED_DEGREES)
    shared = SHARED_DEGREES / (degrees + SHARED_DEGREES)
    smoothed = own * variances + shared * (degrees @ variances) / degrees.sum()
    # The squared error is a sum of both variances with these weights.
    weights = own / sizes + degrees / degrees.sum() * (shared / sizes).sum()
    squared_error = float((smoothed / sizes).sum())
    effective = squared_error**2 / float(((weights * smoothed) ** 2 / degrees).sum())
    difference = Difference(
        value=float(second.mean() - first.mean()), error=sqrt(squared_error), degrees=min(effective, degrees.sum())
    )
    if sizes.min() >= RUNS_FOR_ANY_DISTRIBUTION:
        return difference, None
    return difference, f"{runs}: the interval supposes that runs differ as a normal sample does"


def pooled_stdev(*groups: Floats) -> float | None:
    """Pooled standard deviation of groups, each about its own mean; None if no group has 2 values."""
    degrees = sum(max(group.size - 1, 0) for group in groups)
    if not degrees:
        return None
    return sqrt(sum(float(((group - group.mean()) ** 2).sum()) for group in groups if group.size) / degrees)


def hedges_g(first: Floats, second: Floats) -> float | None:
    """Hedges' g: (mean of second - mean of first) / pooled standard deviation, corrected for small-sample bias.

    Hedges, Journal of Educational Statistics 6 (1981). None without spread or with fewer than 3 values in total.
    Exactly 3 values are not corrected, because the factor would be 0.
    """
    stdev, degrees = pooled_stdev(first, second), first.size + second.size - 2
    if not first.size or not second.size or not stdev:
        return None
    correction = exp(lgamma(degrees / 2) - lgamma((degrees - 1) / 2)) / sqrt(degrees / 2) if degrees > 1 else 1.0
    return float(correction * (second.mean() - first.mean()) / stdev)


def cliffs_delta(first: Floats, second: Floats) -> float | None:
    """Cliff's delta: share of pairs in which the second is larger, less the share in which it is smaller; -1 to 1."""
    if not first.size or not second.size:
        return None
    return float(np.sign(second[:, None] - first[None, :]).mean())

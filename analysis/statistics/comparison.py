"""Comparison of two places or configurations: ratio, effect size, p-value, smallest detectable difference.

Ratio, interval, test and smallest detectable difference come from one statistic, so that they cannot contradict each
other: p < 0.05 if and only if the 95 % interval excludes 1, and every observed difference above the smallest detectable
one is significant. Runs of blocks that both sides share are compared within the blocks, which cancels differences
between hosts: `workload.stats.design`. p-values of several comparisons are corrected by Holm's procedure.
"""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import exp, lgamma, sqrt

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import gammainc, stdtr, stdtrit

from analysis.statistics.samples import LEAST_FOR_SPREAD, Floats, Interval, Method, Runs, finite
from workload.contract.text import counted
from workload.stats.design import Contrast, Design, Run
from workload.stats.intervals import LEVEL, student_reach

ALPHA = 0.05
# The usual convention (Cohen 1988): a test misses the smallest detectable difference 1 time in 5.
POWER = 0.8
# Grid on the standard normal distribution, with weights. The grid gives integrals to 5 digits, even with thousands of
# runs, where the integrand rises within 0.03 standard errors.
POINTS = np.linspace(-8.5, 8.5, 601)
WEIGHTS = np.exp(-(POINTS**2) / 2) / np.exp(-(POINTS**2) / 2).sum()
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
    """Difference of the means of logarithms, other minus baseline, with standard error and its degrees of freedom."""

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
        reach = student_reach(self.error, self.degrees, level)
        with np.errstate(over="ignore"):  # the ratio of vastly different runs overflows to infinity
            low, high = (float(end) for end in np.exp([self.value - reach, self.value + reach]))
        return Interval(low=low, high=high, level=level, method=self.method)

    def detectable(self, alpha: float) -> float:
        """Smallest difference that 4 of 5 comparisons find at `alpha`; larger observed differences have p < alpha."""
        return self.error * _shift_found(degrees=self.degrees, alpha=alpha)


@dataclass(frozen=True, kw_only=True)
class WithinBlocks:
    """Pairing of runs. `blocks`: number with runs of both sides; `left_out`: number of runs without a partner.

    `shared`: number of configurations whose common scatter gives the interval; 0 if
    the interval comes from the differences of these runs alone, because there are no other configurations, or because
    the configurations in `noisy` scatter more than the others.
    """

    blocks: int
    left_out: int
    shared: int = 0
    noisy: tuple[Hashable, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Result of a comparison. `ratio`: other / baseline of the geometric means over runs; above 1 the other is slower.

    `hedges_g` is computed from logarithms of run medians. `reasons`: why figures are absent, and what the present
    figures assume. Interval and p-value are None if `difference` is None. `within_blocks`: None if runs were not
    paired. `busy`: how many of the runs were on a busy machine, in words.
    """

    ratio: float | None
    interval: Interval | None
    p_value: float | None
    difference: Difference | None
    runs_baseline: int
    runs_other: int
    hedges_g: float | None
    reasons: tuple[str, ...]
    within_blocks: WithinBlocks | None = None
    busy: str | None = None

    def without_difference(self, reason: str) -> "Comparison":
        """This comparison without interval and p-value, because of `reason`."""
        return replace(self, interval=None, p_value=None, difference=None, reasons=(reason, *self.reasons))


def compare(baseline: Runs, other: Runs, *, level: float = LEVEL) -> Comparison:
    """Compare runs by the median of their positive figures (step times, or one figure per run).

    `level`: confidence level of the interval. For several comparisons, call `difference.interval` with the level that
    `holm_levels` gives for each.
    """
    first, second = (np.log([np.median(run) for run in positive(side)]) for side in (baseline, other))
    difference, reason = _difference(first, second)
    return Comparison(
        ratio=float(np.exp(second.mean() - first.mean())) if first.size and second.size else None,
        interval=difference.interval(level) if difference else None,
        p_value=difference.p_value if difference else None,
        difference=difference,
        runs_baseline=first.size,
        runs_other=second.size,
        hedges_g=hedges_g(first, second),
        reasons=(reason,) if reason else (),
    )


def positive(runs: Runs) -> list[Floats]:
    """Positive finite figures of each run, without runs that have none."""
    kept = [figures[figures > 0] for figures, _ in map(finite, runs)]
    return [figures for figures in kept if figures.size]


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
        return None, (
            "the runs of one side have exactly the same figure: no interval (perhaps they are copies of one run)"
        )
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
    return difference, f"{runs}: the interval assumes that runs are normally distributed"


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


# --- power


@cache
def _shift_found(*, degrees: float, alpha: float) -> float:
    """True difference, in standard errors, that a two-sided t test finds with the chance `POWER`.

    Cohen, Statistical Power Analysis, 1988, chapter 2, by the noncentral t distribution.
    """

    def missing(shift: float) -> float:
        return power_of(shift, degrees=degrees, alpha=alpha) - POWER

    # Upper bound of the search: a shift that the test certainly finds.
    certain = 10 + 10 * float(stdtrit(degrees, 1 - alpha / 2))
    return float(brentq(missing, 0.0, certain))


def power_of(shift: float, *, degrees: float, alpha: float) -> float:
    """Chance that a two-sided t test finds a true difference of `shift` standard errors.

    Noncentral t distribution, integrated over the normal part of the statistic: the test finds the difference if the
    estimated standard error is below |normal + shift| / limit. `scipy.special.nctdtr` is not used, because it gives NaN
    at the levels of a correction for many comparisons.
    """
    limit = float(stdtrit(degrees, 1 - alpha / 2))
    estimated_variance = ((POINTS + shift) / limit) ** 2
    return float(WEIGHTS @ gammainc(degrees / 2, degrees / 2 * estimated_variance))


# --- within blocks

# Figures of one configuration's runs by block: usually one run per block.
Blocks = Mapping[Hashable, npt.ArrayLike]


def shared_blocks(baseline: Blocks, other: Blocks) -> list[Hashable]:
    """Blocks with a positive finite figure of both configurations, in the order of the baseline."""
    return [block for block in baseline if block in other and _logs(baseline[block]).size and _logs(other[block]).size]


def compare_within_blocks(
    baseline: Blocks, other: Blocks, *, contrast: Contrast | None = None, level: float = LEVEL
) -> Comparison:
    """Compare the positive figures of runs within their blocks.

    `contrast`: logarithm of other over baseline, from a larger design that contains these runs; if None, it is computed
    from these runs alone. The reasons name the runs without a partner. With fewer than 2 shared blocks there is no
    interval: the caller may compare the runs unpaired instead (`compare`), but must not choose by the better interval.
    """
    blocks = shared_blocks(baseline, other)
    first, second = ([_logs(side[block]) for block in blocks] for side in (baseline, other))
    used = contrast or _contrast(baseline, other)
    difference, reason = difference_of(used)
    with np.errstate(over="ignore"):  # the ratio of vastly different runs overflows to infinity
        ratio = None if used.value is None else float(np.exp(used.value))
    runs = [np.concatenate(side) if side else np.empty(0) for side in (first, second)]
    offered = sum(np.size(figures) for side in (baseline, other) for figures in side.values())
    left_out = offered - runs[0].size - runs[1].size
    reasons = [reason, f"{counted(left_out, 'run')} without a partner in the same block left out" if left_out else None]
    return Comparison(
        ratio=ratio,
        interval=difference.interval(level) if difference else None,
        p_value=difference.p_value if difference else None,
        difference=difference,
        runs_baseline=runs[0].size,
        runs_other=runs[1].size,
        hedges_g=hedges_g(*runs),
        reasons=tuple(text for text in reasons if text),
        within_blocks=WithinBlocks(
            blocks=len(blocks),
            left_out=left_out,
            shared=used.shared,
            noisy=used.noisy,
        ),
    )


def _contrast(baseline: Blocks, other: Blocks) -> Contrast:
    runs = [
        Run(figure=float(figure), configuration=name, block=block)
        for name, side in enumerate((baseline, other))
        for block, figures in side.items()
        for run in positive([figures])
        for figure in run
    ]
    return Design(runs).contrast({0: -1.0, 1: 1.0})


def _logs(figures: npt.ArrayLike) -> Floats:
    usable = positive([figures])
    return np.log(usable[0]) if usable else np.empty(0)


def difference_of(contrast: Contrast) -> tuple[Difference | None, str | None]:
    """Difference from a contrast, and the reason why there is none or the assumption of its interval."""
    if contrast.value is None or contrast.error is None:
        return None, contrast.reason
    difference = Difference(
        value=contrast.value,
        error=contrast.error,
        degrees=contrast.degrees,
        method=Method.TWO_WAY if contrast.shared else Method.PAIRED_T,
    )
    if contrast.blocks >= RUNS_FOR_ANY_DISTRIBUTION:
        return difference, None
    return difference, f"{contrast.blocks} blocks: the interval assumes that differences are normally distributed"


# --- several comparisons: a p-value of NaN means "not tested", stays NaN, and is not counted as a comparison


def holm(p_values: npt.ArrayLike) -> Floats:
    """Holm's adjusted p-values (1979): below 0.05, the risk of any false difference among them is at most 5 %."""

    def adjusted(tested: Floats) -> Floats:
        order = np.argsort(tested, kind="stable")
        steps = (tested.size - np.arange(tested.size)) * tested[order]
        values = np.empty_like(tested)
        values[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
        return values

    return _tested(p_values, adjusted)


def holm_levels(p_values: npt.ArrayLike, *, alpha: float) -> Floats:
    """Confidence level at which Holm's procedure tests each p-value.

    An interval at this level excludes "no difference" if and only if the adjusted p-value is below `alpha`. The k-th
    smallest of m p-values is compared with alpha / (m - k + 1). The first p-value that is not below its limit sets the
    limit of all larger p-values.
    """

    def levels(tested: Floats) -> Floats:
        order = np.argsort(tested, kind="stable")
        limits = alpha / (tested.size - np.arange(tested.size))
        failed = tested[order] >= limits
        if failed.any():
            stopped = int(np.argmax(failed))
            limits[stopped:] = limits[stopped]
        found = np.empty_like(tested)
        found[order] = 1 - limits
        return found

    return _tested(p_values, levels)


def _tested(p_values: npt.ArrayLike, adjust: Callable[[Floats], Floats]) -> Floats:
    values = np.atleast_1d(np.array(p_values, dtype=np.float64))
    known = ~np.isnan(values)
    if ((values[known] < 0) | (values[known] > 1)).any():
        raise ValueError("a p-value lies between 0 and 1")
    if known.any():
        values[known] = adjust(values[known])
    return values

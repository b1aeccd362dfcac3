"""Median over runs, with an interval that has its stated coverage even for few runs.

A nominal 95 % interval of the percentile bootstrap covers 75 % over 3 runs, 93 % at best over 5 runs, and never extends
beyond the observed runs. Therefore 3 to 5 runs use Student's t; 6 or more use order statistics, which assume no
distribution and need 6 runs for 95 %. benchmarks/coverage.py has the simulation.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, stdtrit
from scipy.stats import mstats

from analysis.statistics.autocorrelation import LEAST_STEPS, cautious_time, normal_scores, too_short
from analysis.statistics.bootstrap import RESAMPLES, hierarchical_medians
from analysis.statistics.samples import (
    LEAST_REPLICATES,
    LEVEL,
    SEED,
    Estimate,
    Floats,
    Interval,
    Method,
    Runs,
    counted,
    finite,
    ordered,
    run_medians,
    too_few,
)
from workload.contract.blocks_interval import FIRST_LOOK, alone, precision

# n order statistics cover at most 1 - 2 x 0.5^n: 0.9375 for 5, 0.969 for 6.
RUNS_FOR_ORDER_STATISTICS = 6
# Fewer independent steps give a uselessly wide interval: 12.7 standard errors to either side with 1 degree of freedom.
LEAST_EFFECTIVE_STEPS = 3.0


def over_runs(figures: npt.ArrayLike, *, level: float = LEVEL) -> Estimate:
    """Median over runs of one figure per run (a median step time, images/s), with its interval.

    Student's t uses logarithms if all figures are positive, so that times and rates have the same interval. Order
    statistics: Hettmansperger & Sheather, Confidence intervals based on interpolated order statistics, Statistics &
    Probability Letters 4 (1986).
    """
    values, dropped = finite(figures)
    n = values.size
    if not n:
        return Estimate(value=None, n=0, dropped=dropped, reason="no run: no figure")
    median = float(np.median(values))
    if refusal := no_spread(values):
        return Estimate(value=median, n=n, dropped=dropped, reason=refusal)
    if n < order_statistics_from(level):
        interval, reason = _student(values, level=level), few_runs(n)
    else:
        low, high = (float(limit) for limit in mstats.median_cihs(values, alpha=1 - level))
        # Interpolation between equal figures may miss the median by a rounding error.
        low, high = min(low, median), max(high, median)
        interval, reason = Interval(low=low, high=high, level=level, method=Method.ORDER_STATISTICS), None
    return Estimate(value=median, interval=interval, n=n, dropped=dropped, reason=reason)


def over_blocks(figures: Sequence[float]) -> Estimate:
    """Geometric mean of one figure per block, in the order of the blocks, with the interval of `--until`.

    The interval is valid although earlier blocks were tested before, and allows for correlated blocks. Raises
    `ValueError` for fewer blocks than the first test needs.
    """
    stand = precision(alone(figures), target=1.0)
    if stand.blocks < FIRST_LOOK:
        raise ValueError(f"{stand.blocks} blocks: the rule looks at {FIRST_LOOK} or more")
    if stand.low is None or stand.high is None:
        return Estimate(value=stand.value, n=stand.blocks, reason=stand.reason)
    interval = Interval(low=stand.low, high=stand.high, method=Method.BLOCKS)
    return Estimate(value=stand.value, interval=interval, n=stand.blocks, reason=stand.width)


def no_spread(figures: Floats) -> str | None:
    """Reason why these figures, one per run, give no interval; None if they do."""
    if figures.size == 1:
        return "one run: no interval"
    if figures.size < LEAST_REPLICATES:
        return f"{too_few(figures.size, 'run')} for an interval"
    if np.ptp(figures) == 0:
        return f"all {figures.size} runs read exactly the same: no interval (copies of one run?)"
    return None


def few_runs(n: int) -> str:
    return f"{counted(n, 'run')}: the interval supposes that runs differ as a normal sample does"


def order_statistics_from(level: float) -> int:
    """Fewest runs whose range has the coverage `level`: 6 for 95 %."""
    return int(np.ceil(1 - np.log2(1 - level) - 1e-9))


def _student(values: Floats, *, level: float) -> Interval:
    logarithms = bool((values > 0).all())
    scaled = np.log(values) if logarithms else values
    n = values.size
    reach = float(stdtrit(n - 1, (1 + level) / 2) * scaled.std(ddof=1) / np.sqrt(n))
    ends = np.array([scaled.mean() - reach, scaled.mean() + reach])
    low, high = np.exp(ends) if logarithms else ends
    # The interval surrounds the mean; it is widened to include the median, beside which it is shown.
    median = np.median(values)
    return Interval(low=float(min(low, median)), high=float(max(high, median)), level=level, method=Method.STUDENT_T)


def hierarchical_bootstrap(
    runs: Runs, *, level: float = LEVEL, resamples: int = RESAMPLES, seed: int | np.random.Generator = SEED
) -> Estimate:
    """Median over runs of the median of their steps; percentile interval from resampled runs and blocks of steps.

    Below 6 runs the bootstrap covers too little: the interval and its reason are those of `over_runs`.
    """
    medians, dropped = run_medians(runs)
    if medians.size < order_statistics_from(level) or no_spread(medians):
        plain = over_runs(medians, level=level)
        return Estimate(value=plain.value, interval=plain.interval, n=plain.n, dropped=dropped, reason=plain.reason)
    cleaned = [steps for steps, _ in map(finite, runs) if steps.size]
    drawn = hierarchical_medians(cleaned, rng=np.random.default_rng(seed), resamples=resamples)
    # Tail probability that widens a normal percentile interval to Student's t ("expanded": Hesterberg, American
    # Statistician 69, 2015); without it, 95 % intervals over 7 noisy runs cover 91 %.
    outside = float(ndtr(-stdtrit(medians.size - 1, (1 + level) / 2)))
    low, high = (float(end) for end in np.quantile(drawn, [outside, 1 - outside]))
    interval = Interval(low=low, high=high, level=level, method=Method.HIERARCHICAL_BOOTSTRAP)
    return Estimate(value=float(np.median(medians)), interval=interval, n=medians.size, dropped=dropped)


def within_run(steps: npt.ArrayLike, *, level: float = LEVEL) -> Estimate:
    """Median step time of one run, with an interval for this run alone: it does not predict another run.

    Maritz & Jarrett's standard error of a median (JASA 73, 1978), widened for autocorrelated steps, and Student's t
    with effective n - 1 degrees of freedom. `steps` must be in order and without gaps; with fewer than 100 steps there
    is no interval, because their correlation is unknown.
    """
    series, reason = ordered(steps, least=LEAST_STEPS)
    total = np.size(np.asarray(steps))
    median = float(np.median(series)) if series.size else None
    n, dropped = series.size, total - series.size
    if reason:
        return Estimate(value=median, n=n, dropped=dropped, reason=f"{reason}: no interval")
    if reason := too_short(n):
        return Estimate(value=median, n=n, dropped=dropped, reason=reason)
    tau = cautious_time(normal_scores(series))
    effective = n / tau
    if effective < LEAST_EFFECTIVE_STEPS:
        reason = f"{n} steps are worth {effective:.1f} independent ones: no interval"
        return Estimate(value=median, n=n, reason=reason)
    independent = float(mstats.mjci(series, prob=[0.5])[0])
    # Corrects the spread about the sample's own mean: division by n - 1, for correlated steps.
    widened = independent * np.sqrt(tau * effective / (effective - 1))
    reach = float(stdtrit(effective - 1, (1 + level) / 2) * widened)
    centre = float(np.median(series))
    interval = Interval(low=centre - reach, high=centre + reach, level=level, method=Method.EFFECTIVE_STEPS)
    reason = f"within this run alone: {n} steps are worth {effective:.0f} independent ones"
    return Estimate(value=median, interval=interval, n=n, reason=reason)

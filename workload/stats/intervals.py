"""Intervals of a figure: over blocks, and over the runs of one configuration. Pure.

The interval over blocks is valid although `--until` stops adding blocks once the interval is narrow. Stopping at the
first narrow interval selects samples that happen to vary little. If the interval is checked after every block, 95 %
intervals cover 88 %, and with normal quantiles 68 %. Therefore `launcher/sweep/places.py` checks only at
fixed numbers of blocks, called looks. The interval of each look misses the true value with a probability of 3 %: the
error is spent at a constant nominal level (Lan & DeMets, Biometrika 70, 1983; Pocock, Biometrika 64, 1977; repeated
intervals: Jennison & Turnbull, JRSS B 51, 1989). The level is chosen for stopping by width, which in a normal sample is
independent of the mean (Anscombe, JRSS B 15, 1953; Starr, Annals of Mathematical Statistics 37, 1966).

Consecutive blocks are correlated if a machine warms up, is shared or changes with the hour. Intervals that assume
independent blocks then cover too little: 44 % to 67 % at a correlation of 0.8 from block to block. Few blocks are
not enough to estimate the correlation, so the first look is at 8 blocks. If the correlation may be positive, the
interval is widened for the largest plausible correlation. A series with a trend has no fixed mean: the trend is
reported, and if the trend changes the figure by more than the target width, the interval does not count as narrow.

If something slows one block in ten or thirty down by a fifth, few blocks cannot show its share, and intervals of the
mean cover 43 % to 70 %. Therefore the figure is that of an ordinary block. Once a block is far from the others, this
is said, and the figure is the median with an interval from order statistics, which the other block hardly moves.

benchmarks/blocks.py --parts until simulates the coverage; docs/blocks.md has the figures. Stopping by an observed
difference needs another rule: `launcher.duel.decision`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile
from math import ceil, exp, expm1, log, log2, sqrt
from statistics import fmean, linear_regression, median, stdev

from workload.contract.text import percent
from workload.stats.design import Contrast, Design, Run

# Looks are at 8, 10, 13, 17, 22, 28, 35, 44, 55, ... blocks. With fewer than 8 blocks, the correlation
# cannot be estimated.
FIRST_LOOK = 8
GROWTH = 1.25
# Probability that the interval of one look misses the true value. With 5 % instead, coverage falls to 91 %.
NOMINAL = 0.03
# An interval is widened if the estimated correlation is above SUSPECTED - SUSPECTED_EARLIER / blocks. This threshold is
# -0.3 at 8 blocks, where a true correlation of 0.8 may be estimated so low, and nears 0.2 at very many blocks. The
# interval is widened for the estimate plus CAUTION standard errors. Without CAUTION, intervals of blocks with a
# correlation of 0.8 cover 75 %; without the threshold, a series without correlation needs 50 % more blocks.
SUSPECTED = 0.2
SUSPECTED_EARLIER = 4.0
CAUTION = 2.0
MOST_CORRELATED = 0.95
# A block is unlike the others if it is this many robust standard deviations from the median. Of series of 8 normal
# blocks, 3 % have such a block by chance; the interval is then only wider. Correlation and trend are estimated with
# unlike blocks at half this distance, so that a single one is no trend.
UNLIKE_STDEVS = 6.0
# Largest lag in a sum of powers of a correlation: larger lags change a sum for 0.95 by less than a millionth.
MOST_LAGS = 400
# Probability of a false alarm of the test for a trend, at one look. A false alarm only delays the end.
TREND = 0.05
# Largest total of blocks that is predicted; the prediction is None if more are needed.
MOST_EXPECTED = 10_000


@dataclass(frozen=True, kw_only=True)
class BlocksInterval:
    """Geometric mean of a figure over blocks, with a 95 % interval; the median if blocks are unlike the others.

    The interval stays valid although measuring stops as soon as the interval is narrow.

    `half_width`: distance from the figure to the farther end, as a fraction of the figure. `expected`: approximate
    total of blocks until the interval is narrow; None if unknown. `correlation`: correlation between blocks for which
    the interval is widened, 0 if not widened. `trend`: change per block as a fraction, None without a trend.
    `unlike`: text on blocks that are unlike the others, None if all are alike. `reason`: why there is no interval.
    """

    blocks: int
    value: float | None
    low: float | None = None
    high: float | None = None
    half_width: float | None = None
    target: float
    is_narrow: bool = False
    expected: int | None = None
    correlation: float = 0.0
    trend: float | None = None
    unlike: str | None = None
    reason: str | None = None

    @property
    def width(self) -> str:
        """Half width as `+-1.2 %` with remarks on the blocks and on a trend, or why there is no interval."""
        if self.half_width is None:
            return self.reason or "no interval"
        widened = f", widened for a correlation of {self.correlation:.1f} between blocks" if self.correlation else ""
        median_of = f" of the median ({self.unlike})" if self.unlike else ""
        return f"+-{percent(self.half_width)}{median_of}{widened}{self.trend_text}"

    @property
    def trend_text(self) -> str:
        """Trend in words: `, with a trend of -0.5 % per block`; empty without a trend."""
        return "" if self.trend is None else f", with a trend of {100 * self.trend:+.2g} % per block"


def looks() -> Iterator[int]:
    """Numbers of blocks at which to check whether the interval is narrow; the iterator has no end."""
    blocks = FIRST_LOOK
    while True:
        yield blocks
        blocks = int(-(-blocks * GROWTH // 1))


def single_contrast(figures: Sequence[float]) -> Contrast:
    """Contrast of a single configuration, from one figure per block; figures that are not positive are left out."""
    runs = [Run(figure=figure, configuration="", block=block) for block, figure in enumerate(figures)]
    return Design(runs).contrast({"": 1.0})


def interval_at_look(contrast: Contrast, *, target: float) -> BlocksInterval:
    """Interval of a throughput or a ratio at one look; narrow if its half width is at most the fraction `target`."""
    n = contrast.blocks
    contrast, unlike = _median_if_unlike(contrast)
    value = None if contrast.value is None else exp(contrast.value)
    if n < FIRST_LOOK or value is None or contrast.error is None:
        reason = f"the first check is at {FIRST_LOOK} blocks" if n < FIRST_LOOK else contrast.reason
        return BlocksInterval(blocks=n, value=value, target=target, reason=reason)
    correlation = _estimated_correlation(contrast.series)
    trend = _trend(contrast.series)
    # A trend may be significant and still too small to matter.
    has_mean = trend is None or abs(trend) * (n - 1) <= target
    reach = _reach(contrast, n, correlation)
    further = (max(blocks, n) for blocks in takewhile(lambda blocks: blocks <= MOST_EXPECTED, looks()))
    expected = next((blocks for blocks in further if expm1(_reach(contrast, blocks, correlation)) <= target), None)
    return BlocksInterval(
        blocks=n,
        value=value,
        low=value * exp(-reach),
        high=value * exp(reach),
        half_width=expm1(reach),
        target=target,
        is_narrow=has_mean and expm1(reach) <= target,
        expected=expected if has_mean else None,
        correlation=_allowed_correlation(correlation, n),
        trend=trend,
        unlike=unlike,
    )


def _median_if_unlike(contrast: Contrast) -> tuple[Contrast, str | None]:
    """The contrast, or that of the median if blocks are unlike the others, and a text on these blocks."""
    series, n = contrast.series, contrast.blocks
    if n < FIRST_LOOK or contrast.error is None:
        return contrast, None
    middle = median(series)
    far = UNLIKE_STDEVS * MAD_TO_STDEV * median(abs(figure - middle) for figure in series)
    unlike = [figure - middle for figure in series if abs(figure - middle) > far]
    if not unlike:
        return contrast, None
    low, high = order_statistics(sorted(series), 1 - NOMINAL)
    error = max(high - middle, middle - low) / student_reach(1.0, n - 1, 1 - NOMINAL)
    clipped = tuple(min(max(figure, middle - far / 2), middle + far / 2) for figure in series)
    most = percent(max(abs(expm1(figure)) for figure in unlike))
    differ = "differ by up to" if len(unlike) > 1 else "differs by"
    text = f"{len(unlike)} of {n} blocks {differ} {most}"
    return replace(contrast, value=middle, error=error, degrees=n - 1, series=clipped), text


def _reach(contrast: Contrast, blocks: int, correlation: float) -> float:
    """Half width of the interval of the figure's logarithm, predicted for `blocks` blocks with the present scatter."""
    degrees = max(contrast.degrees * (blocks - 1) // (contrast.blocks - 1), 1)
    error = (contrast.error or 0.0) * sqrt(contrast.blocks / blocks)
    widening = _widening(_allowed_correlation(correlation, blocks), blocks)
    return student_reach(error, degrees, 1 - NOMINAL) * widening


def _estimated_correlation(series: Sequence[float]) -> float:
    """Correlation between neighbouring blocks, corrected for the bias that comes from estimating the mean.

    Marriott & Pope, Biometrika 41 (1954): the plain estimate is too small by (1 + 4 x the correlation) / blocks.
    """
    n, mean = len(series), fmean(series)
    rest = [figure - mean for figure in series]
    squares = sum(residual * residual for residual in rest)
    products = sum(residual * following for residual, following in pairwise(rest))
    return (products / squares + 1 / n) / (1 - 4 / n) if squares else 0.0


def _allowed_correlation(correlation: float, blocks: int) -> float:
    """Correlation for which an interval is widened, from the estimated `correlation`; 0 if the estimate is small."""
    if correlation <= SUSPECTED - SUSPECTED_EARLIER / blocks:
        return 0.0
    error = sqrt((1 - min(abs(correlation), 0.9) ** 2) / blocks)
    return min(max(correlation + CAUTION * error, 0.0), MOST_CORRELATED)


def _widening(correlation: float, blocks: int) -> float:
    """Factor by which correlation between blocks raises the standard error of their mean.

    Model: first-order autoregression. With correlated blocks, the mean varies more than with independent blocks, and
    the blocks scatter less around their mean.
    """
    if correlation <= 0:
        return 1.0
    inflation = 1 + 2 * sum((1 - lag / blocks) * correlation**lag for lag in range(1, min(blocks, MOST_LAGS)))
    return sqrt(inflation / ((blocks - inflation) / (blocks - 1)))


def _trend(series: Sequence[float]) -> float | None:
    """Trend as a fraction per block, if the slope of a straight line is significant (t test); else None."""
    n = len(series)
    slope, start = linear_regression(range(n), series)
    squares = n * (n**2 - 1) / 12
    rest = sum((figure - start - slope * at) ** 2 for at, figure in enumerate(series))
    limit = student_reach(sqrt(rest / (n - 2) / squares), n - 2, 1 - TREND)
    return expm1(slope) if abs(slope) > limit else None


# --- over a few runs
# Here an interval of the median has its stated coverage even for few runs. A nominal 95 % interval of the percentile
# bootstrap covers 75 % over 3 runs, 93 % at best over 5 runs, and never extends beyond the observed runs. Therefore 3
# to 5 runs use Student's t; 6 or more use order statistics, which assume no distribution and need 6 runs for 95 %.
# benchmarks/coverage.py has the simulation.


LEVEL = 0.95
# Fewest runs or blocks for an interval. An interval from two would extend 13 standard errors to either side, because
# two figures estimate a spread only to a factor of 30.
LEAST_REPLICATES = 3
# 1 / Phi^-1(3/4): factor from the median absolute deviation of a normal sample to its standard deviation.
MAD_TO_STDEV = 1.4826022185056018


def interval_over_runs(figures: Sequence[float], level: float = LEVEL) -> tuple[float, float] | None:
    """Ends of the interval of the median of one figure per run; None for too few figures, or for equal ones.

    Student's t uses logarithms if all figures are positive, so that times and rates have the same interval.
    """
    if len(figures) < LEAST_REPLICATES or len(set(figures)) == 1:
        return None
    is_ordered = len(figures) >= order_statistics_from(level)
    low, high = order_statistics(sorted(figures), level) if is_ordered else _student(figures, level)
    # Student's interval is centred at the mean, and interpolation between equal figures may miss by a rounding error.
    middle = median(figures)
    return min(low, middle), max(high, middle)


def order_statistics_from(level: float) -> int:
    """Fewest runs whose range has the coverage `level`: 6 for 95 %, as n runs cover at most 1 - 2 x 0.5^n."""
    return ceil(1 - log2(1 - level) - 1e-9)


def order_statistics(ascending: Sequence[float], level: float) -> tuple[float, float]:
    """Interval of the median, for at least `order_statistics_from` figures; assumes no distribution.

    Hettmansperger & Sheather, Confidence intervals based on interpolated order statistics, Statistics & Probability
    Letters 4 (1986). `scipy.stats.mstats.median_cihs` gives the same, but is slow to import.
    """
    from scipy.special import bdtr

    n = len(ascending)
    # Coverage of the interval from the k-th smallest to the k-th largest figure, for k = 1, 2, ...
    coverage = [1 - 2 * float(bdtr(k - 1, n, 0.5)) for k in range(1, (n + 1) // 2 + 1)] + [0.0]
    k = max(sum(covered >= level for covered in coverage), 1)
    wide, narrow = coverage[k - 1], coverage[k]
    share = (wide - level) / (wide - narrow)
    inward = (n - k) * share / (k + (n - 2 * k) * share)
    low = inward * ascending[k] + (1 - inward) * ascending[k - 1]
    high = inward * ascending[n - k - 1] + (1 - inward) * ascending[n - k]
    return low, high


def student_reach(error: float, degrees: float, level: float) -> float:
    """Distance from an estimate to either end of its interval by Student's t; `error`: standard error."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees, (1 + level) / 2)) * error


def _student(figures: Sequence[float], level: float) -> tuple[float, float]:
    are_positive = all(figure > 0 for figure in figures)
    scaled = [log(figure) for figure in figures] if are_positive else figures
    reach = student_reach(stdev(scaled) / sqrt(len(scaled)), len(scaled) - 1, level)
    low, high = fmean(scaled) - reach, fmean(scaled) + reach
    return (exp(low), exp(high)) if are_positive else (low, high)

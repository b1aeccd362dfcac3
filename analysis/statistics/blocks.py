"""Block bootstrap: length of blocks of neighbouring steps, and resamples of such blocks."""

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from analysis.statistics.autocorrelation import LEAST_STEPS, acf, normal_scores
from analysis.statistics.samples import Floats, finite, ordered

Indices: TypeAlias = npt.NDArray[np.intp]


@dataclass(frozen=True, kw_only=True)
class BlockLength:
    """Mean length of a block, in steps, for the stationary and for the circular bootstrap."""

    n: int
    stationary: float
    circular: float
    reason: str | None = None


def block_length(values: npt.ArrayLike, *, robust: bool = True) -> BlockLength:
    """Length for which the bootstrap's variance of a mean is most accurate; 1 (no blocks) with a reason if unknown.

    Politis & White, Automatic block-length selection for the dependent bootstrap, Econometric Reviews 23 (2004), with
    the correction of Patton, Politis & White, ibid. 28 (2009). `robust`: use normal scores instead of the values.
    """
    series, reason = ordered(values, least=LEAST_STEPS)
    if reason:
        return BlockLength(n=series.size, stationary=1.0, circular=1.0, reason=reason)
    scores = normal_scores(series) if robust else series
    n, correlations = scores.size, acf(scores)
    covariances = correlations * scores.var()
    width = _bandwidth(correlations)
    lags = np.arange(1, width + 1)
    weights = np.clip(2 * (1 - lags / width), 0.0, 1.0)  # flat-top window: 1 up to half of the width
    long_run_variance = float(covariances[0] + 2 * weights @ covariances[1 : width + 1])
    curvature = 2 * float((weights * lags) @ covariances[1 : width + 1])
    longest = math.ceil(min(3 * math.sqrt(n), n / 3))

    def length(constant: float) -> float:
        best = (2 * curvature**2 / (constant * long_run_variance**2) * n) ** (1 / 3) if long_run_variance > 0 else 1.0
        return float(min(max(best, 1.0), longest))

    return BlockLength(n=n, stationary=length(2.0), circular=length(4 / 3))


def _bandwidth(correlations: Floats) -> int:
    """Twice the last lag before several insignificant correlations in a row, as in the packages arch and R's np."""
    n = correlations.size
    in_a_row = max(5, math.ceil(math.sqrt(math.log10(n))))
    most = min(math.ceil(math.sqrt(n)) + in_a_row, n - 1)
    quiet = np.abs(correlations[1:most]) < 2 * math.sqrt(math.log10(n) / n)
    for lag in range(1, quiet.size - in_a_row + 2):
        if quiet[lag - 1 : lag - 1 + in_a_row].all():
            return min(2 * lag, most)
    return most


def circular_indices(rng: np.random.Generator, *, n: int, length: int, resamples: int) -> Indices:
    """Positions of resampled steps, shape (resamples, n); a block may wrap around the end of the series."""
    blocks = math.ceil(n / length)
    starts = rng.integers(n, size=(resamples, blocks, 1))
    return ((starts + np.arange(length)) % n).reshape(resamples, -1)[:, :n]


def resampled_medians(values: npt.ArrayLike, *, rng: np.random.Generator, resamples: int) -> Floats:
    """Medians of circular block resamples of one series, shape (resamples,), with automatic block length."""
    series, _ = finite(values)
    if series.size == 1:
        return np.repeat(series, resamples)
    length = max(1, round(block_length(series).circular))
    drawn = series[circular_indices(rng, n=series.size, length=length, resamples=resamples)]
    return np.asarray(np.median(drawn, axis=1), dtype=np.float64)

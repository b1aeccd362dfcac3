"""Robust summary of a series of step times, independent of their order."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from analysis.statistics.samples import LEAST_FOR_SPREAD, MAD_TO_STDEV, Mask, counted, finite, robust_stdev

# 1 in 1.7 million values of a normal sample lies beyond 5 standard deviations. Step times have heavier tails: with 3,
# a per cent of a good run's steps would be outliers.
OUTLIER_STDEVS = 5.0


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Summary in the unit of the values; both CoV are fractions. Values that are not finite are dropped and counted."""

    n: int
    dropped: int
    median: float | None = None
    mean: float | None = None
    stdev: float | None = None
    robust_cov: float | None = None
    cov: float | None = None
    p5: float | None = None
    p95: float | None = None
    min: float | None = None
    max: float | None = None
    reason: str | None = None


def summarize(values: npt.ArrayLike) -> Summary:
    """Summarize values. Robust CoV = 1.4826 x median absolute deviation / median, which one slow step does not change.

    `stdev` has the divisor n - 1; percentiles are interpolated as in numpy and pandas (Hyndman & Fan 1996, type 7).
    """
    kept, dropped = finite(values)
    if not kept.size:
        return Summary(n=0, dropped=dropped, reason="no value that is a finite number")
    median, mean = float(np.median(kept)), float(kept.mean())
    p5, p95 = (float(value) for value in np.percentile(kept, [5, 95]))
    spread = kept.size > 1
    stdev = float(kept.std(ddof=1)) if spread else None
    mad = float(np.median(np.abs(kept - median)))
    return Summary(
        n=kept.size,
        dropped=dropped,
        median=median,
        mean=mean,
        stdev=stdev,
        robust_cov=MAD_TO_STDEV * mad / median if spread and median > 0 else None,
        cov=stdev / mean if stdev is not None and mean > 0 else None,
        p5=p5,
        p95=p95,
        min=float(kept.min()),
        max=float(kept.max()),
        reason=_reason(kept.size, median=median, mean=mean),
    )


def _reason(n: int, *, median: float, mean: float) -> str | None:
    if n == 1:
        return "1 value: no spread"
    if median <= 0 or mean <= 0:
        return "median or mean is not positive: no spread relative to it"
    return None


@dataclass(frozen=True, kw_only=True)
class Outliers:
    """Values far from the median; `mask` has the shape of the input, False for values that are not finite."""

    n: int
    slow: int
    fast: int
    share: float | None
    low: float | None
    high: float | None
    mask: Mask
    reason: str | None = None

    @property
    def count(self) -> int:
        return self.slow + self.fast


def outliers(values: npt.ArrayLike, *, stdevs: float = OUTLIER_STDEVS) -> Outliers:
    """Values beyond the median +- `stdevs` robust standard deviations (Hampel's identifier)."""
    array = np.atleast_1d(np.asarray(values, dtype=np.float64))
    kept, _ = finite(array)
    if kept.size < LEAST_FOR_SPREAD:
        nothing = np.zeros(array.shape, dtype=np.bool_)
        reason = f"{counted(kept.size, 'value')}: no spread to compare with"
        return Outliers(n=kept.size, slow=0, fast=0, share=None, low=None, high=None, mask=nothing, reason=reason)
    median, reach = float(np.median(kept)), stdevs * robust_stdev(kept)
    slow, fast = array > median + reach, array < median - reach
    return Outliers(
        n=kept.size,
        slow=int(slow.sum()),
        fast=int(fast.sum()),
        share=float((slow | fast).sum() / kept.size),
        low=median - reach,
        high=median + reach,
        mask=slow | fast,
    )

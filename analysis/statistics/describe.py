"""Robust summary of a series of step times, independent of their order."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from analysis.statistics.samples import finite
from workload.stats.runs_interval import MAD_TO_STDEV


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Summary of the `n` finite values, in their unit; both CoV (coefficients of variation) are fractions."""

    n: int
    median: float | None = None
    robust_cov: float | None = None
    cov: float | None = None
    p5: float | None = None
    p95: float | None = None
    reason: str | None = None


def summarize(values: npt.ArrayLike) -> Summary:
    """Summarize values. Robust CoV (coefficient of variation) = 1.4826 x median absolute deviation / median.

    One slow step hardly changes the robust CoV. The standard deviation of the plain CoV has the divisor n - 1;
    percentiles are interpolated as in numpy and pandas (Hyndman & Fan 1996, type 7).
    """
    kept, _ = finite(values)
    if not kept.size:
        return Summary(n=0, reason="no value that is a finite number")
    median, mean = float(np.median(kept)), float(kept.mean())
    p5, p95 = (float(value) for value in np.percentile(kept, [5, 95]))
    mad = float(np.median(np.abs(kept - median)))
    has_spread = kept.size > 1
    reason = None if median > 0 and mean > 0 else "median or mean is not positive: no spread relative to it"
    return Summary(
        n=kept.size,
        median=median,
        robust_cov=MAD_TO_STDEV * mad / median if has_spread and median > 0 else None,
        cov=float(kept.std(ddof=1)) / mean if has_spread and mean > 0 else None,
        p5=p5,
        p95=p95,
        reason=reason if has_spread else "1 value: no spread",
    )

"""Few steps that take far longer than the rest."""

from dataclasses import dataclass

import numpy as np

from analysis.statistics.samples import Floats, Mask
from analysis.statistics.summary import outliers

# Half as long again as the median, and beyond what the other steps vary by: no noise of a clock's.
STALL_RATIO = 1.5
# More than 1 of 10 slow steps are no exceptions, but how the run goes.
MOST_SHARE = 0.1


@dataclass(frozen=True, kw_only=True)
class Stalls:
    """`mask` has the shape of the series; `ratio`: their median over that of the rest; `lost`: share of throughput."""

    n: int
    count: int
    ratio: float | None
    lost: float
    mask: Mask


def stalls(series: Floats) -> Stalls:
    """Steps above 1.5 x the median and 5 robust standard deviations, if they are at most 1 of 10."""
    n = series.size
    median = float(np.median(series)) if n else 0.0
    if median <= 0:
        return Stalls(n=n, count=0, ratio=None, lost=0.0, mask=np.zeros(n, dtype=np.bool_))
    mask = outliers(series).mask & (series > STALL_RATIO * median)
    if not 0 < mask.sum() <= MOST_SHARE * n:
        return Stalls(n=n, count=0, ratio=None, lost=0.0, mask=np.zeros(n, dtype=np.bool_))
    lost = float((series[mask] - median).sum() / series.sum())
    ratio = float(np.median(series[mask]) / np.median(series[~mask]))
    return Stalls(n=n, count=int(mask.sum()), ratio=ratio, lost=lost, mask=mask)

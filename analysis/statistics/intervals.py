"""Figure for several runs, and its interval: their median, or the geometric mean over a sweep's blocks."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from analysis.statistics.samples import Estimate, Floats, Interval, Method, finite, too_few
from workload.contract.text import counted
from workload.stats.blocks_interval import FIRST_LOOK, interval_at_look, single_contrast
from workload.stats.runs_interval import LEAST_REPLICATES, LEVEL, interval_over_runs, order_statistics_from


def over_runs(figures: npt.ArrayLike, *, level: float = LEVEL) -> Estimate:
    """Median over runs of one figure per run (a median step time, images/s), with its interval."""
    values, _ = finite(figures)
    n = values.size
    if not n:
        return Estimate(value=None, n=0, reason="no run: no figure")
    median = float(np.median(values))
    if refusal := no_spread(values):
        return Estimate(value=median, n=n, reason=refusal)
    ends = interval_over_runs(values.tolist(), level)
    assert ends is not None
    is_student = n < order_statistics_from(level)
    reason = f"{counted(n, 'run')}: the interval assumes that runs are normally distributed" if is_student else None
    method = Method.STUDENT_T if is_student else Method.ORDER_STATISTICS
    return Estimate(
        value=median, interval=Interval(low=ends[0], high=ends[1], level=level, method=method), n=n, reason=reason
    )


def over_blocks(figures: Sequence[float]) -> Estimate:
    """Geometric mean of one figure per block, in the order of the blocks, with its interval.

    The launcher's option `--until` decides with this interval when a sweep ends. The interval is valid although
    `--until` also tested the figures after fewer blocks, and allows for correlated blocks. Raises `ValueError` for
    fewer blocks than the first test needs.
    """
    look = interval_at_look(single_contrast(figures), target=1.0)
    if look.blocks < FIRST_LOOK:
        raise ValueError(f"{look.blocks} blocks: an interval needs {FIRST_LOOK} or more")
    if look.low is None or look.high is None:
        return Estimate(value=look.value, n=look.blocks, reason=look.reason)
    interval = Interval(low=look.low, high=look.high, method=Method.BLOCKS)
    return Estimate(value=look.value, interval=interval, n=look.blocks, reason=look.width)


def no_spread(figures: Floats) -> str | None:
    """Reason why these figures, one per run, give no interval; None if they give one."""
    if figures.size == 1:
        return "one run: no interval"
    if figures.size < LEAST_REPLICATES:
        return f"{too_few(figures.size, 'run')} for an interval"
    if np.ptp(figures) == 0:
        return f"all {figures.size} runs have exactly the same figure: no interval (perhaps they are copies of one run)"
    return None

"""Comparison of two configurations within blocks of runs on one machine, which cancels differences between hosts.

`workload.contract.design` has the statistics: two-way analysis of all configurations of the blocks, or of these two.
"""

from collections.abc import Hashable, Mapping

import numpy as np
import numpy.typing as npt

from analysis.statistics.comparison import (
    RUNS_FOR_ANY_DISTRIBUTION,
    Comparison,
    Difference,
    WithinBlocks,
    cliffs_delta,
    compare,
    hedges_g,
    positive,
)
from analysis.statistics.samples import LEVEL, Floats, Method, counted
from workload.contract.design import Contrast, Design, Run

# Figures of one configuration's runs by block: usually one run per block.
Blocks = Mapping[Hashable, npt.ArrayLike]


def shared_blocks(baseline: Blocks, other: Blocks) -> list[Hashable]:
    """Blocks with a usable figure of both configurations, in the order of the baseline."""
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
    found = contrast or _contrast(baseline, other)
    difference, reason = difference_of(found)
    runs = [np.concatenate(side) if side else np.empty(0) for side in (first, second)]
    offered = sum(np.size(figures) for side in (baseline, other) for figures in side.values())
    left_out = offered - runs[0].size - runs[1].size
    reasons = [reason, f"{counted(left_out, 'run')} without a partner in the same block left out" if left_out else None]
    return Comparison(
        ratio=None if found.value is None else _ratio(found.value),
        interval=difference.interval(level) if difference else None,
        p_value=difference.p_value if difference else None,
        difference=difference,
        runs_baseline=runs[0].size,
        runs_other=runs[1].size,
        dropped=0,
        hedges_g=hedges_g(*runs),
        cliffs_delta=cliffs_delta(*runs),
        level=level,
        reasons=tuple(text for text in reasons if text),
        within_blocks=WithinBlocks(
            blocks=len(blocks),
            left_out=left_out,
            narrower=_narrower(difference, *runs, level=level),
            shared=found.shared,
            outstanding=found.outstanding,
        ),
    )


def _ratio(logarithm: float) -> float:
    with np.errstate(over="ignore"):  # the ratio of vastly different runs overflows to infinity
        return float(np.exp(logarithm))


def _contrast(baseline: Blocks, other: Blocks) -> Contrast:
    """Logarithm of other over baseline, from these runs alone."""
    runs = [
        Run(figure=float(figure), configuration=name, block=block)
        for name, side in enumerate((baseline, other))
        for block, figures in side.items()
        for run in positive([figures])[0]
        for figure in run
    ]
    return Design(runs).contrast({0: -1.0, 1: 1.0})


def _logs(figures: npt.ArrayLike) -> Floats:
    """Logarithms of the positive finite figures."""
    usable, _ = positive([figures])
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
    return difference, f"{contrast.blocks} blocks: the interval supposes that differences vary as a normal sample does"


def _narrower(paired: Difference | None, first: Floats, second: Floats, *, level: float) -> float | None:
    """Width of the unpaired interval of the same runs over that of the paired one, on logarithms; None if unknown."""
    unpaired = compare(list(np.exp(first)), list(np.exp(second))).difference
    if paired is None or unpaired is None:
        return None
    intervals = (unpaired.interval(level), paired.interval(level))
    if not all(0 < ends.low < ends.high < np.inf for ends in intervals):
        return None  # an end overflows a float, or an interval has no width
    widths = [float(np.log(ends.high) - np.log(ends.low)) for ends in intervals]
    return widths[0] / widths[1]

"""Two configurations against each other within blocks: runs on one machine, so that hosts do not blur the difference.

A block gives one difference of logarithms, and the blocks are the replicates. A block that lacks one of the two
configurations says nothing about their difference on its machine and is left out, as in an intra-block analysis
(Cochran & Cox, Experimental Designs, 1957, chapter 9): to use it, hosts would have to be taken for a sample whose
variance is known, and a handful of blocks does not tell it.
"""

from collections.abc import Hashable, Mapping
from math import sqrt

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
from analysis.statistics.samples import LEAST_FOR_SPREAD, LEVEL, Floats, Method, counted

# The figures of the runs that a block has of one configuration: usually one run.
Blocks = Mapping[Hashable, npt.ArrayLike]


def shared_blocks(baseline: Blocks, other: Blocks) -> list[Hashable]:
    """Those that have a usable figure of both configurations, in the order of the baseline."""
    return [block for block in baseline if block in other and _logs(baseline[block]).size and _logs(other[block]).size]


def compare_within_blocks(baseline: Blocks, other: Blocks, *, level: float = LEVEL) -> Comparison:
    """Compare the positive figures of runs within their blocks: Student's t of the differences of mean logarithms.

    The reasons name the runs without a partner. With fewer than 2 shared blocks there is no interval: the caller may
    compare the runs unpaired instead (`compare`), but may not choose the one that gives the nicer interval.
    """
    blocks = shared_blocks(baseline, other)
    first, second = ([_logs(side[block]) for block in blocks] for side in (baseline, other))
    differences = np.array([b.mean() - a.mean() for a, b in zip(first, second, strict=True)], dtype=np.float64)
    difference, reason = _difference(differences)
    runs = [np.concatenate(side) if side else np.empty(0) for side in (first, second)]
    offered = sum(np.size(figures) for side in (baseline, other) for figures in side.values())
    left_out = offered - runs[0].size - runs[1].size
    reasons = [reason, f"{counted(left_out, 'run')} without a partner in the same block left out" if left_out else None]
    return Comparison(
        ratio=float(np.exp(differences.mean())) if differences.size else None,
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
            blocks=len(blocks), left_out=left_out, narrower=_narrower(difference, *runs, level=level)
        ),
    )


def _logs(figures: npt.ArrayLike) -> Floats:
    """Of the figures that are usable."""
    usable, _ = positive([figures])
    return np.log(usable[0]) if usable else np.empty(0)


def _difference(differences: Floats) -> tuple[Difference | None, str | None]:
    """Why there is no interval, or what the interval assumes."""
    n = differences.size
    if n < LEAST_FOR_SPREAD:
        return None, f"{counted(n, 'block')} with both: no interval from fewer than 2"
    if np.ptp(differences) == 0:
        return None, f"the difference reads exactly the same in {n} blocks: no interval (copies of one block?)"
    difference = Difference(
        value=float(differences.mean()),
        error=float(differences.std(ddof=1)) / sqrt(n),
        degrees=n - 1.0,
        method=Method.PAIRED_T,
    )
    if n >= RUNS_FOR_ANY_DISTRIBUTION:
        return difference, None
    return difference, f"{n} blocks: the interval supposes that differences vary as a normal sample does"


def _narrower(paired: Difference | None, first: Floats, second: Floats, *, level: float) -> float | None:
    """Width of the unpaired interval of the same runs over that of the paired one."""
    unpaired = compare(list(np.exp(first)), list(np.exp(second))).difference
    if paired is None or unpaired is None:
        return None
    intervals = (unpaired.interval(level), paired.interval(level))
    if not all(0 < ends.low < ends.high < np.inf for ends in intervals):
        return None  # beyond what a float holds, or without any width
    widths = [float(np.log(ends.high) - np.log(ends.low)) for ends in intervals]
    return widths[0] / widths[1]

"""Pure statistics on arrays of step times. The replicate is the run, not the step.

A result without a figure or an interval has a reason instead: no function raises on odd data (too few values, NaN, no
spread). A ValueError means a wrong call: shapes that do not match, a p-value of 2.

Values that are not finite are dropped and counted if the order of steps does not matter, else the series is refused.
"""

from analysis.statistics.autocorrelation import EffectiveN, effective_n
from analysis.statistics.comparison import (
    Comparison,
    Difference,
    WithinBlocks,
    compare,
    compare_within_blocks,
    hedges_g,
    holm,
    holm_levels,
    shared_blocks,
)
from analysis.statistics.components import VarianceSplit, differ, variance_split
from analysis.statistics.describe import Outliers, Summary, outliers, summarize
from analysis.statistics.explained import share_explained
from analysis.statistics.hosts import MachineSplit, PlacedRun, PositionEffect, machine_split, position_effect
from analysis.statistics.intervals import over_blocks, over_runs
from analysis.statistics.periods import Period, period_scan
from analysis.statistics.samples import Estimate, Interval, Method
from analysis.statistics.steady import Change, SteadyState, steady_state
from analysis.statistics.trend import Drift, drift

__all__ = [
    "Change",
    "Comparison",
    "Difference",
    "Drift",
    "EffectiveN",
    "Estimate",
    "Interval",
    "MachineSplit",
    "Method",
    "Outliers",
    "Period",
    "PlacedRun",
    "PositionEffect",
    "SteadyState",
    "Summary",
    "VarianceSplit",
    "WithinBlocks",
    "compare",
    "compare_within_blocks",
    "differ",
    "drift",
    "effective_n",
    "hedges_g",
    "holm",
    "holm_levels",
    "machine_split",
    "outliers",
    "over_blocks",
    "over_runs",
    "period_scan",
    "position_effect",
    "share_explained",
    "shared_blocks",
    "steady_state",
    "summarize",
    "variance_split",
]

"""Pure statistics on arrays of step times. The replicate is the run, not the step.

A result without a figure or an interval has a reason instead: no function raises on odd data (too few values, NaN, no
spread). A ValueError means a wrong call: shapes that do not match, a p-value of 2.

Values that are not finite are dropped and counted if the order of steps does not matter, else the series is refused.
Every random draw comes from `seed` (default 0, or a numpy Generator): the same data give the same figures.
"""

from analysis.statistics.autocorrelation import Correlogram, EffectiveN, correlogram, effective_n
from analysis.statistics.blocks import BlockLength, block_length
from analysis.statistics.comparison import Comparison, Difference, WithinBlocks, cliffs_delta, compare, hedges_g
from analysis.statistics.components import VarianceSplit, variance_split
from analysis.statistics.corrections import benjamini_hochberg, holm, holm_levels
from analysis.statistics.explained import share_explained
from analysis.statistics.intervals import hierarchical_bootstrap, over_blocks, over_runs, within_run
from analysis.statistics.machines import MachineSplit, PlacedRun, PositionEffect, machine_split, position_effect
from analysis.statistics.paired_blocks import compare_within_blocks, shared_blocks
from analysis.statistics.periods import Period, period_scan
from analysis.statistics.power import Detectable, runs_needed, smallest_detectable
from analysis.statistics.repeats import differ
from analysis.statistics.samples import Estimate, Interval, Method
from analysis.statistics.steady import Change, SteadyState, steady_state
from analysis.statistics.summary import Outliers, Summary, outliers, summarize
from analysis.statistics.trend import Drift, drift

__all__ = [
    "BlockLength",
    "Change",
    "Comparison",
    "Correlogram",
    "Detectable",
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
    "benjamini_hochberg",
    "block_length",
    "cliffs_delta",
    "compare",
    "compare_within_blocks",
    "correlogram",
    "differ",
    "drift",
    "effective_n",
    "hedges_g",
    "hierarchical_bootstrap",
    "holm",
    "holm_levels",
    "machine_split",
    "outliers",
    "over_blocks",
    "over_runs",
    "period_scan",
    "position_effect",
    "runs_needed",
    "share_explained",
    "shared_blocks",
    "smallest_detectable",
    "steady_state",
    "summarize",
    "variance_split",
    "within_run",
]

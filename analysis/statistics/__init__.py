"""Pure statistics on arrays of step times. The replicate is the run, not the step.

A result without a figure or an interval has a reason instead: no function raises on odd data (too few values, NaN, no
spread). A ValueError means a wrong call: shapes that do not match, a p-value of 2.

Values that are not finite are dropped if the order of steps does not matter, else the series is refused.
"""

"""Whether the warm-up has ended, and the rest holds still."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from analysis.statistics.samples import Floats, ordered, robust_stdev
from analysis.statistics.trend import Drift, drift

# Two windows on each side of the middle, of 5 steps each: with fewer there is nothing to compare.
LEAST_STEPS = 20
# Windows per series: 5 % of it. A window's median ignores a slow step or two (a print, an epoch boundary).
WINDOWS = 20
LEAST_WINDOW = 5
# A change of less than this share changes no decision between machines, whatever its certainty.
TOLERANCE = 0.01
# Beyond the tolerance, a window must leave the spread of windows of the second half, a step that of its steps.
STDEVS = 4.0


@dataclass(frozen=True, kw_only=True)
class SteadyState:
    """`steady`: None where it cannot be judged. The first `warmup_steps` are slower (or faster) than what follows."""

    n: int
    steady: bool | None
    warmup_steps: int | None
    level_value: float | None
    drift: Drift | None
    reason: str


def steady_state(values: npt.ArrayLike, *, tolerance: float = TOLERANCE) -> SteadyState:
    """Compare the first steps and windows with the second half of the series; then look for a drift in what is left.

    Warm-up: the steps before the first step and the first window whose median are like the second half's median
    (within 1 % or 4 robust standard deviations, whichever is more). Steady: that is at most half of the series, and the
    rest does not drift by more than 1 % with an interval that leaves out 0. The second half is the reference because a
    fixed warm-up is too short on a laptop that heats up for minutes, and because rules that minimise a standard error
    (MSER) take an epoch boundary in the middle for the end of the warm-up.
    """
    series, refusal = ordered(values, least=LEAST_STEPS)
    n = series.size
    if refusal and n >= LEAST_STEPS and np.isfinite(np.asarray(values, dtype=np.float64)).all():
        return SteadyState(
            n=n, steady=True, warmup_steps=0, level_value=float(series[0]), drift=None, reason="all steps read the same"
        )
    if refusal:
        return SteadyState(n=n, steady=None, warmup_steps=None, level_value=None, drift=None, reason=refusal)
    reference = float(np.median(series[n // 2 :]))
    warmup = _warmup_steps(series, reference, tolerance=tolerance)
    rest = drift(series[warmup:]) if warmup <= n // 2 else None
    still = rest is not None and not (rest.certain and abs(rest.change or 0.0) > tolerance)
    return SteadyState(
        n=n,
        steady=still,
        warmup_steps=warmup,
        level_value=float(np.median(series[warmup:])) if still else None,
        drift=rest,
        reason=_reason(series, warmup, rest, steady=still),
    )


def _warmup_steps(series: Floats, reference: float, *, tolerance: float) -> int:
    width = max(LEAST_WINDOW, series.size // WINDOWS)
    windows = np.asarray(np.median(np.lib.stride_tricks.sliding_window_view(series, width), axis=1), dtype=np.float64)
    half = series.size // 2
    least = tolerance * abs(reference)
    by_step = _first_within(series, reference, max(least, STDEVS * robust_stdev(series[half:])))
    by_window = _first_within(windows, reference, max(least, STDEVS * robust_stdev(windows[half:])))
    # A window is unlike the rest as soon as half of it is: it ends the warm-up at its middle, not at its start.
    return max(by_step, by_window + width // 2 if by_window else 0)


def _first_within(values: Floats, reference: float, reach: float) -> int:
    near = np.abs(values - reference) <= reach
    return int(np.argmax(near)) if near.any() else values.size


def _reason(series: Floats, warmup: int, rest: Drift | None, *, steady: bool) -> str:
    n = series.size
    if rest is None:
        return f"still changing after {warmup} of {n} steps: no steady state"
    if not steady:
        change = rest.change or 0.0
        return f"drifts by {change:+.1%} over {rest.n} steps: no steady state"
    if not warmup:
        return f"steady from the first of {n} steps"
    ratio = float(np.median(series[:warmup]) / np.median(series[warmup:]))
    return f"steady after {warmup} of {n} steps, whose median is {ratio:.2f} x that of the rest"

"""Rules on the timing figures of run.json: each is computed again from steps.csv."""

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from analysis.audit.rule import Rule, Severity, each_case
from analysis.loading.cases import Case
from analysis.statistics.samples import Floats
from workload.contract.record import PLACES
from workload.contract.text import percent, seconds

# steps.csv has seven decimals, logs twelve digits: a sum of four such figures has an error of 2e-7 s at most.
ROUNDING_S = 5e-7
DIGITS = 1e-6
# CONTRIBUTING.md, "Rules of measuring": steps and waits must add up to the wall time within 2 %.
WALL_WITHIN = 0.02
# Ending a measurement (waiting for the device, a process that is not scheduled) takes longer than 2 % of a short run.
ENDING_S = 0.2
# CUDA events give milliseconds as 32-bit floats, measured by the device's own clock.
CLOCKS_WITHIN = 1e-3


def _known(values: Floats) -> Floats:
    return values[np.isfinite(values)]


def _described(name: str) -> Callable[[Case], float | None]:
    return lambda case: getattr(case.step_seconds, name) if case.step_seconds else None


def _images(case: Case) -> float:
    return float(np.nansum(case.measured("images")))


def _over_wall(total: Callable[[Case], float]) -> Callable[[Case], float | None]:
    return lambda case: total(case) / case["measured_s"] if case["measured_s"] else None


# Figures of run.json by their column in `runs`, computed from steps.csv.
FIGURES: Mapping[str, Callable[[Case], float | None]] = {
    "images": _images,
    "stated_images_per_s": _over_wall(_images),
    "steps": lambda case: float(_known(case.step_s).size),
    **{f"step_{name}_s": _described(name) for name in ("median", "mean", "stdev", "min", "max", "p5", "p95")},
    "data_wait_fraction": _over_wall(lambda case: float(np.nansum(case.measured("data_s")))),
    "explained_fraction": _over_wall(lambda case: float(np.nansum(case.iteration_s))),
}


def _rounding(column: str, case: Case) -> float:
    """Largest rounding error of a figure computed from steps.csv, in the unit of the figure."""
    if column.endswith("_fraction"):
        return ROUNDING_S * case.step_s.size / case["measured_s"] if case["measured_s"] else 0.0
    return ROUNDING_S if column.startswith("step_") else 0.0


def other_figures(case: Case) -> str | None:
    """Text on figures of run.json that differ from those recomputed from the steps, else None; skips absent figures."""
    if case["imported"] and not case.steps["step"].size:
        # A run that was imported as one row of a table has no steps to compare with.
        return None
    return "; ".join(_differing(case)) or None


def _differing(case: Case) -> Iterator[str]:
    for column, recompute in FIGURES.items():
        stated = case[column]
        if stated is None:
            continue
        figure = recompute(case)
        if figure is None:
            yield f"{PLACES[column]} is {stated:.6g}, but steps.csv gives no such figure"
        elif abs(stated - figure) > _rounding(column, case) + DIGITS * abs(figure):
            yield f"{PLACES[column]} is {stated:.6g}, steps.csv gives {figure:.6g}"


def other_wall_time(case: Case) -> str | None:
    """Text on the wall time if the time stamps of the steps contradict it; else None."""
    stated, span = case["measured_s"], _span_s(case)
    if stated is None or span is None:
        return None
    if case["imported"]:
        low, high = span * (1 - DIGITS), span * (1 + DIGITS)
    else:
        low, high = span * (1 - CLOCKS_WITHIN) - ROUNDING_S, span * (1 + WALL_WITHIN) + ENDING_S
    if low <= stated <= high:
        return None
    return f"timing.measured_s is {stated:.6g}, the steps took {span:.6g} s by their time stamps: {stated / span:.3g} x"


def _span_s(case: Case) -> float | None:
    """Seconds from the start of the first measured step to the end of the last; in a log, from its first time stamp."""
    ended = case.steps["ended_at_s"]
    if case["imported"]:
        begin, end = (ended[0], ended[-1]) if ended.size else (np.nan, np.nan)
        return float(end - begin) if end > begin else None
    if case.region_s is None:
        return None
    begin, end = case.region_s
    return end - begin if end > begin else None


def other_parts(case: Case) -> str | None:
    """Text on steps whose times of forward, backward and optimizer do not add up to `step_s`; None if all add up."""
    forward_s, backward_s, optimizer_s = (case.steps[name] for name in ("forward_s", "backward_s", "optimizer_s"))
    parts = forward_s + backward_s + optimizer_s
    off = np.abs(parts - case.steps["step_s"]) > ROUNDING_S + DIGITS * case.steps["step_s"]
    if not off.any():
        return None
    row = int(np.flatnonzero(off)[0])
    return (
        f"{off.sum()} of {off.size} steps; in step {case.steps['step'][row]:.0f}, forward, backward and optimizer take"
        f" {parts[row]:.6g} s together, but step_s is {case.steps['step_s'][row]:.6g}"
    )


def clock_set_back(case: Case) -> str | None:
    """Text on time stamps that decrease, else None.

    Only imported logs can have decreasing time stamps: loading refuses other bundles that contain them.
    """
    back = np.flatnonzero(np.diff(case.steps["ended_at_s"]) < 0)
    if not back.size:
        return None
    times = "once" if back.size == 1 else f"{back.size} times"
    return f"time stamps go back {times}, first at row {back[0] + 2}"


RULES = (
    Rule(
        name="figures against steps",
        severity=Severity.ERROR,
        threshold=f"the figure computed from steps.csv, within {seconds(ROUNDING_S)} or {DIGITS * 1e6:g} millionth of "
        "the figure: times in steps.csv are rounded",
        why="figures that do not follow from their steps were changed, or belong to another run",
        cure="copy the bundle again from the machine that made it, or run again",
        check=each_case(other_figures),
    ),
    Rule(
        name="wall time against steps",
        severity=Severity.ERROR,
        threshold=f"the time between the first and the last time stamp of the steps, or up to {percent(WALL_WITHIN)} "
        f"and {ENDING_S:g} s more for ending the measurement; for a log, exactly this time",
        why="{unit}/s is {unit} divided by this time, so it is wrong by the same factor",
        cure="copy the bundle again from the machine that made it, or run again",
        check=each_case(other_wall_time),
    ),
    Rule(
        name="parts against steps",
        severity=Severity.ERROR,
        threshold=f"forward, backward and optimizer add up to step_s within {seconds(ROUNDING_S)}: times are rounded",
        why="a time was changed, or a part of the step is missing",
        cure="copy the bundle again from the machine that made it, or run again",
        check=each_case(other_parts),
    ),
    Rule(
        name="clock set back",
        severity=Severity.WARNING,
        threshold="time stamps that increase from row to row",
        why="wall time and {unit}/s are calculated from time stamps, and are wrong if the clock was set during the run",
        cure="use a log with a monotonic clock, or only the part after the jump",
        check=each_case(clock_set_back),
    ),
)

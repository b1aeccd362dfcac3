"""`analyze roofline`."""

import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from analysis import roofline
from analysis.commands.shared import load, tell
from analysis.configurations import completed
from analysis.loading import Results
from analysis.problem import Problem
from workload.contract.errors import ExitCode, NothingToDoError
from workload.contract.tables import Column, Format, Role, render
from workload.contract.text import counted

ROOFS = (
    Column(name="place", heading="place", role=Role.FACT),
    Column(name="device_name", heading="device", role=Role.FACT),
    Column(name="threads", heading="threads", optional=True, role=Role.FACT),
    Column(name="precision", heading="precision", role=Role.FACT),
    Column(name="kind", heading="roof", role=Role.FACT),
    Column(name="flop_per_s", heading="compute", unit="FLOP/s", prefixed=True),
    Column(name="bytes_per_s", heading="memory", unit="B/s", prefixed=True),
    Column(name="ridge", heading="ridge", unit="FLOP/B"),
    Column(name="source", heading="source", role=Role.NOTE),
    Column(name="note", heading="note", optional=True, role=Role.NOTE),
)
POINTS = (
    Column(name="place", heading="place", role=Role.FACT),
    Column(name="device_name", heading="device", role=Role.FACT),
    Column(name="model", heading="model", role=Role.FACT),
    Column(name="batch_size", heading="batch", role=Role.FACT),
    Column(name="precision", heading="precision", role=Role.FACT),
    Column(name="source", heading="source", role=Role.FACT),
    Column(name="flop_per_s", heading="attained without waits", unit="FLOP/s", prefixed=True),
    Column(name="bound", heading="limited by"),
    Column(name="fraction_of_roof", heading="of roof", unit="%", digits=3),
    Column(name="intensity_flop_per_byte", heading="intensity", unit="FLOP/B"),
    Column(name="roof", heading="roof", role=Role.FACT),
    Column(name="fraction_of_peak", heading="of peak", unit="%", digits=3, optional=True),
    Column(name="runs", heading="runs"),
    Column(name="flop_per_s_low", heading="low", unit="FLOP/s", prefixed=True, optional=True),
    Column(name="flop_per_s_high", heading="high", unit="FLOP/s", prefixed=True, optional=True),
    Column(name="intensity_low", heading="low", unit="FLOP/B", optional=True),
    Column(name="intensity_high", heading="high", unit="FLOP/B", optional=True),
    Column(name="note", heading="note", optional=True, role=Role.NOTE),
)
SHIFTS = (
    Column(name="place", heading="place", role=Role.FACT),
    Column(name="device_name", heading="device", role=Role.FACT),
    Column(name="model", heading="model", role=Role.FACT),
    Column(name="source", heading="source", role=Role.FACT),
    Column(name="changed", heading="changed", role=Role.FACT),
    Column(name="left", heading="from", role=Role.FACT),
    Column(name="right", heading="to", role=Role.FACT),
    Column(name="at", heading="at", role=Role.FACT),
    Column(name="intensity_left", heading="intensity", unit="FLOP/B"),
    Column(name="intensity_right", heading="then", unit="FLOP/B"),
    Column(name="intensity_ratio", heading="intensity x"),
    Column(name="flop_per_s_ratio", heading="FLOP/s x"),
    Column(name="bound_left", heading="limited by"),
    Column(name="bound_right", heading="then"),
)
# In JSON and CSV every figure of a point.
ALL_OF_POINTS = tuple(Column(name=name, heading=name) for name in (*roofline.POINT_COLUMNS, *roofline.UNNAMED))


def run(folders: Sequence[Path], *, verify: bool, form: Format, wide: bool = False) -> int:
    """Print the points; for people also roofs and shifts, on stdout, and what is not there, on stderr."""
    results = load(folders, verify=verify)
    found = roofline.points(results)
    if found.empty and (form is not Format.TABLE or _roofs(results).empty):
        raise NothingToDoError(
            f"no point for a roofline: {_why_none(results)}",
            hint="launch local counts FLOP and measures roofs; for a profile: "
            "analyze import FILE --batch-size 32 --precision fp32 --profile-steps 1",
        )
    if form is Format.TABLE:
        print(_for_people(results, found, wide=wide))
    else:
        print(render(found, ALL_OF_POINTS, form))
    if absent := _absent(results):
        sys.stdout.flush()
        print(absent, file=sys.stderr)
    tell([*results.problems, *_named(results)])
    return ExitCode.DONE


def _roofs(results: Results) -> pd.DataFrame:
    """Those of the precisions that were run: a machine measures them all."""
    roofs = roofline.roofs(results)
    return roofs[roofs["precision"].isin(set(results.runs["precision"].dropna()))]


def _why_none(results: Results) -> str:
    done, every = len(completed(results.runs)), len(results.runs)
    if done:
        return f"{counted(done, 'completed run')} without FLOP and bytes of a step"
    return "the only run did not complete" if every == 1 else f"none of {every} runs completed"


def _for_people(results: Results, found: pd.DataFrame, *, wide: bool) -> str:
    roofs = _roofs(results)
    # The address of a source is for JSON and Python.
    sources = [str(source).partition(", http")[0] for source in roofs["source"]]
    roofs = roofs.assign(ridge=roofs["flop_per_s"] / roofs["bytes_per_s"], source=sources)
    shifts = roofline.shifts(results)
    parts = {"roofs": (roofs, ROOFS), "steps": (found, POINTS), "shifts": (shifts, SHIFTS)}
    texts = [
        f"{title}\n{render(table, columns, Format.TABLE, wide=wide)}"
        for title, (table, columns) in parts.items()
        if len(table)
    ]
    return "\n\n".join(texts)


def _absent(results: Results) -> str | None:
    """Completed runs without FLOP and bytes: a log says when steps ended, not what they did."""
    columns = sorted({column for columns in roofline.WORK.values() for column in columns})
    done = completed(results.runs)
    number = int(done[columns].isna().all(axis=1).sum())
    if not number:
        return None
    which = "1 run has" if number == 1 else f"{number} runs have"
    return f"note       {which} neither FLOP nor bytes: no point on a roofline"


def _named(results: Results) -> list[Problem]:
    """Runs that did not complete, by status."""
    broken = results.runs[~results.runs["run_id"].isin(completed(results.runs)["run_id"])]
    return [
        Problem(path=str(path), reason=f"{status}: no point")
        for path, status in zip(broken["path"], broken["status"], strict=True)
    ]

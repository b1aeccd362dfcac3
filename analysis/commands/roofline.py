"""`analyze roofline`."""

import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from analysis.commands.shared import PeaksOption, ResultsArgument, VerifyOption, load, print_problems
from workload.contract.errors import ExitCode, NothingToDoError
from workload.contract.program import FormatOption, WideOption
from workload.contract.tables import Column, Role, TableFormat, facts, render
from workload.contract.text import counted

if TYPE_CHECKING:
    import pandas as pd

    from analysis.loading.index import Problem
    from analysis.loading.tables import Tables

EXAMPLES = """\b
Examples:
  analyze roofline results
  analyze roofline results --format csv > points.csv
"""
ROOFS = (
    *facts(place="place", device_name="device"),
    Column(name="threads", heading="threads", optional=True, role=Role.FACT),
    *facts(precision="precision", kind="roof"),
    Column(name="flop_per_s", heading="compute", unit="FLOP/s", prefixed=True),
    Column(name="bytes_per_s", heading="memory", unit="B/s", prefixed=True),
    Column(name="ridge", heading="ridge", unit="FLOP/B"),
    Column(name="source", heading="source", role=Role.NOTE),
    Column(name="note", heading="note", optional=True, role=Role.NOTE),
)
POINTS = (
    *facts(
        place="place", device_name="device", model="model", batch_size="batch", precision="precision", source="source"
    ),
    Column(name="flop_per_s", heading="attained without waits", unit="FLOP/s", prefixed=True),
    Column(name="bound", heading="limited by"),
    Column(name="device_busy_share", heading="device busy", unit="%", digits=3, optional=True),
    Column(name="fraction_of_roof", heading="of roof", unit="%", digits=3),
    Column(name="intensity_flop_per_byte", heading="intensity", unit="FLOP/B"),
    *facts(roof="roof"),
    Column(name="fraction_of_peak", heading="of peak", unit="%", digits=3, optional=True),
    Column(name="runs", heading="runs"),
    Column(name="flop_per_s_low", heading="low", unit="FLOP/s", prefixed=True, optional=True),
    Column(name="flop_per_s_high", heading="high", unit="FLOP/s", prefixed=True, optional=True),
    Column(name="intensity_low", heading="low", unit="FLOP/B", optional=True),
    Column(name="intensity_high", heading="high", unit="FLOP/B", optional=True),
    Column(name="note", heading="note", optional=True, role=Role.NOTE),
    Column(name="step_s", heading="step", unit="s", prefixed=True, detail=True, optional=True),
    Column(name="flop_per_step", heading="FLOP per step", unit="FLOP", prefixed=True, detail=True, optional=True),
    Column(
        name="theoretical_flop_per_step", heading="by formula", unit="FLOP", prefixed=True, detail=True, optional=True
    ),
    Column(name="counted_over_model", heading="counted / formula", digits=3, detail=True, optional=True),
    Column(name="dram_bytes_per_step", heading="DRAM per step", unit="B", prefixed=True, detail=True, optional=True),
    Column(name="dram_bytes_per_s", heading="DRAM rate", unit="B/s", prefixed=True, detail=True, optional=True),
    Column(name="sm_percent", heading="SM %", digits=4, detail=True, optional=True),
    Column(name="dram_percent", heading="DRAM %", digits=4, detail=True, optional=True),
    Column(name="place_fraction_of_peak", heading="of peak, mean of the place", unit="%", digits=3, detail=True),
)
SHIFTS = (
    *facts(place="place", device_name="device", model="model", source="source", changed="changed"),
    *facts(left="from", right="to", at="at"),
    Column(name="intensity_left", heading="intensity", unit="FLOP/B"),
    Column(name="intensity_right", heading="then", unit="FLOP/B"),
    Column(name="intensity_ratio", heading="intensity x"),
    Column(name="flop_per_s_ratio", heading="FLOP/s x"),
    Column(name="bound_left", heading="limited by"),
    Column(name="bound_right", heading="then"),
)


def roofline(
    *,
    results: ResultsArgument,
    peaks: PeaksOption = None,
    verify: VerifyOption = False,
    output_format: FormatOption = TableFormat.TABLE,
    wide: WideOption = False,
) -> int:
    """Where each step stands below the roofs of its machine, what limits it, and what batch and precision change."""
    from analysis.loading.configurations import UNNAMED
    from analysis.roofline.points import POINT_COLUMNS, points, shifts

    loaded = load(results, verify=verify, peaks=peaks)
    table, roofs = points(loaded), _roofs_of_run_precisions(loaded)
    if table.empty and (output_format is not TableFormat.TABLE or roofs.empty):
        raise NothingToDoError(
            f"no point for a roofline: {_why_no_point(loaded)}",
            hint="launch local counts FLOP and measures roofs; for a profile: "
            "analyze import FILE --batch-size 32 --precision fp32 --profile-steps 1",
        )
    if output_format is TableFormat.TABLE:
        steps = table.assign(bound=_marked(table))
        tables = {"roofs": (roofs, ROOFS), "steps": (steps, POINTS), "shifts": (shifts(loaded), SHIFTS)}
        print(_titled({title: table for title, table in tables.items() if len(table[0])}, wide=wide))
    else:
        # JSON and CSV contain every figure of a point.
        names = (*POINT_COLUMNS, *UNNAMED)
        print(render(table, [Column(name=name, heading=name) for name in names], output_format))
    sys.stdout.flush()
    for note in _runs_without_point(loaded):
        print(note, file=sys.stderr)
    print_problems([*loaded.problems, *_incomplete_runs(loaded)])
    return ExitCode.DONE


def _marked(points: "pd.DataFrame") -> "pd.Series[str]":
    """The limit of each step; `(lower bound)` where the limit is unknown and the step's FLOP are only a lower bound."""
    return points["bound"].where(~points["flop_is_lower_bound"] | points["bound"].notna(), "(lower bound)")


def _titled(tables: Mapping[str, tuple["pd.DataFrame", tuple[Column, ...]]], *, wide: bool) -> str:
    return "\n\n".join(
        f"{title}\n{render(rows, columns, TableFormat.TABLE, wide=wide)}" for title, (rows, columns) in tables.items()
    )


def _roofs_of_run_precisions(results: "Tables") -> "pd.DataFrame":
    """Roofs of the precisions in which runs trained, with `ridge` (FLOP/byte); `source` lacks its web address.

    A machine also measures the roofs of other precisions, which are left out.
    """
    from analysis.roofline.roofs import roofs

    table = roofs(results)
    table = table[table["precision"].isin(set(results.runs["precision"].dropna()))]
    sources = [str(source).partition(", http")[0] for source in table["source"]]
    return table.assign(ridge=table["flop_per_s"] / table["bytes_per_s"], source=sources)


def _why_no_point(results: "Tables") -> str:
    from analysis.loading.configurations import completed

    done, every = len(completed(results.runs)), len(results.runs)
    if done:
        return f"{counted(done, 'completed run')} without FLOP and bytes of a step"
    return "the only run did not complete" if every == 1 else f"none of {every} runs completed"


def _runs_without_point(results: "Tables") -> Iterator[str]:
    """Notes that count the completed runs without FLOP and bytes, and the imported runs without a time."""
    from analysis.loading.configurations import completed
    from analysis.roofline.points import WORK

    done = completed(results.runs)
    columns = sorted({column for columns in WORK.values() for column in columns})
    has_work = done[columns].notna().any(axis=1) | done["kernels_file"].notna()
    has_time = done[["step_median_s", "images_per_s", "kernels_file", "traced_busy_s"]].notna().any(axis=1) | done[
        "imported"
    ].ne(True)
    for runs, lack in ((done[~has_work], "neither FLOP nor bytes"), (done[has_work & ~has_time], "no time")):
        if len(runs):
            which = "1 run has" if len(runs) == 1 else f"{len(runs)} runs have"
            yield f"note       {which} {lack}: no point on a roofline"


def _incomplete_runs(results: "Tables") -> list["Problem"]:
    """Runs that did not complete, as problems with their status."""
    from analysis.loading.configurations import completed
    from analysis.loading.index import Problem

    broken = results.runs[~results.runs["run_id"].isin(completed(results.runs)["run_id"])]
    return [
        Problem(path=str(path), reason=f"{status}: no point")
        for path, status in zip(broken["path"], broken["status"], strict=True)
    ]

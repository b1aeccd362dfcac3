"""`analyze variance`."""

import json
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

from analysis.commands.shared import PeaksOption, ResultsArgument, VerifyOption, load, print_problems, rendered
from workload.contract.errors import ExitCode, NothingToDoError
from workload.contract.help_text import Group
from workload.contract.program import FormatOption, WideOption, option
from workload.contract.tables import TableFormat, as_json, render
from workload.contract.text import counted

if TYPE_CHECKING:
    import pandas as pd

    from analysis.variance.tables import VarianceTable

EXAMPLES = """\b
Examples:
  analyze variance results
  analyze variance results --part causes --format csv > causes.csv
"""


class VariancePart(StrEnum):
    """Names of `analysis.variance.tables.TABLES`, repeated because the command line needs them without pandas."""

    BETWEEN = "between"
    WITHIN = "within"
    MACHINES = "machines"
    CAUSES = "causes"


def variance(
    *,
    results: ResultsArgument,
    part: Annotated[
        VariancePart | None, option("--part", "only this table; CSV needs one (default: between)", Group.OUTPUT)
    ] = None,
    peaks: PeaksOption = None,
    verify: VerifyOption = False,
    output_format: FormatOption = TableFormat.TABLE,
    wide: WideOption = False,
) -> int:
    """How much runs and their steps vary, and why."""
    from analysis.variance.tables import TABLES, table, within

    loaded = load(results, verify=verify, peaks=peaks)
    parts = [part] if part else [VariancePart.BETWEEN] if output_format is TableFormat.CSV else list(VariancePart)
    frames = {name: table(loaded, name) for name in parts}
    of_steps = [frames[name] for name in parts if name in (VariancePart.BETWEEN, VariancePart.WITHIN)]
    first = TABLES[parts[0]]
    if within(loaded).empty or (of_steps and all(frame.empty for frame in of_steps)):
        raise NothingToDoError(
            f"no variance to show: {first.nothing} among {counted(len(loaded.runs), 'run')}",
            hint="analyze summary shows how the runs ended",
        )
    match output_format:
        case TableFormat.TABLE:
            print("\n\n".join(_section(TABLES[name], frame, wide=wide) for name, frame in frames.items()))
        case TableFormat.JSON:
            rows = {
                name: json.loads(render(frame, TABLES[name].columns, output_format)) for name, frame in frames.items()
            }
            print(as_json(rows[part] if part else rows, indent=1))
        case TableFormat.CSV:
            print(render(frames[parts[0]], first.columns, output_format))
    print_problems(loaded.problems)
    return ExitCode.DONE


def _section(part: "VarianceTable", frame: "pd.DataFrame", *, wide: bool) -> str:
    if frame.empty:
        return f"{part.heading}\n{part.nothing}"
    return f"{part.heading}\n{rendered(frame, part.columns, TableFormat.TABLE, wide=wide)}"

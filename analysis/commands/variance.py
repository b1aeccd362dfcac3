"""`analyze variance`."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from analysis.commands.shared import load, tell
from analysis.configurations import DETAILS, NAMED, label
from analysis.part import Part
from analysis.variance import BETWEEN_COLUMNS, WITHIN_COLUMNS, table, within
from workload.contract.errors import ExitCode, NothingToDoError
from workload.contract.tables import Column, Format, Role, as_json, render
from workload.contract.text import counted

# What names a run in a table, and the rest of its configuration.
CONFIGURATION_COLUMNS = (*(Column(name=name, heading=label(name)) for name in NAMED), *DETAILS)
CAUSE_COLUMNS = (
    Column(name="run_id", heading="run", role=Role.FACT),
    Column(name="cause", heading="cause", role=Role.FACT),
    Column(name="share_explained", heading="explains", unit="%", digits=3),
    Column(name="share_low", heading="low", unit="%", digits=3, optional=True),
    Column(name="share_high", heading="high", unit="%", digits=3, optional=True),
    Column(name="share_of", heading="of", role=Role.FACT),
    Column(name="is_fault", heading="fault"),
    Column(name="evidence", heading="evidence", role=Role.SENTENCE),
    Column(name="cure", heading="cure", role=Role.SENTENCE),
    *(replace(column, role=Role.FIGURE, detail=True) for column in CONFIGURATION_COLUMNS),
)


COLUMNS = {Part.BETWEEN: BETWEEN_COLUMNS, Part.WITHIN: WITHIN_COLUMNS, Part.CAUSES: CAUSE_COLUMNS}
HEADINGS = {
    Part.BETWEEN: "between runs, by configuration and place",
    Part.WITHIN: "within runs",
    Part.CAUSES: "causes",
}
NOTHING = {
    Part.BETWEEN: "no completed run with measured steps",
    Part.WITHIN: "no run with measured steps",
    Part.CAUSES: "no cause found in steps and telemetry",
}


def run(folders: Sequence[Path], *, part: Part | None, verify: bool, form: Format, wide: bool = False) -> int:
    """Print one table, or all of them; CSV holds one, which is `between` unless another is asked for."""
    results = load(folders, verify=verify)
    parts = [part] if part else [Part.BETWEEN] if form is Format.CSV else list(Part)
    tables = {each: table(results, each) for each in parts}
    told = [frame for each, frame in tables.items() if each is not Part.CAUSES]
    if within(results).empty or (told and all(frame.empty for frame in told)):
        raise NothingToDoError(
            f"no variance to tell: {NOTHING[parts[0]]} among {counted(len(results.runs), 'run')}",
            hint="analyze summary says how they ended",
        )
    match form:
        case Format.TABLE:
            print("\n\n".join(_section(each, frame, wide=wide) for each, frame in tables.items()))
        case Format.JSON:
            found = {each: json.loads(render(frame, COLUMNS[each], form)) for each, frame in tables.items()}
            print(as_json(found[part] if part else found, indent=1))
        case Format.CSV:
            print(render(tables[parts[0]], COLUMNS[parts[0]], form))
    tell(results.problems)
    return ExitCode.DONE


def _section(part: Part, frame: pd.DataFrame, *, wide: bool) -> str:
    body = NOTHING[part] if frame.empty else render(frame, COLUMNS[part], Format.TABLE, wide=wide)
    return f"{HEADINGS[part]}\n{body}"

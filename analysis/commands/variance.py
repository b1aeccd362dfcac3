"""`analyze variance`."""

import json
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from analysis.causes import causes
from analysis.commands.shared import load, tell
from analysis.loading import Results
from analysis.part import Part
from analysis.variance import BETWEEN_COLUMNS, WITHIN_COLUMNS, between, within
from workload.errors import ExitCode, NothingToDoError
from workload.tables import Column, Format, render
from workload.text import counted

CAUSE_COLUMNS = (
    Column(name="run_id", heading="run"),
    Column(name="cause", heading="cause"),
    Column(name="share_explained", heading="explains", unit="%", digits=3),
    Column(name="share_low", heading="low", unit="%", digits=3, optional=True),
    Column(name="share_high", heading="high", unit="%", digits=3, optional=True),
    Column(name="share_of", heading="of"),
    Column(name="is_fault", heading="fault"),
    Column(name="evidence", heading="evidence"),
    Column(name="cure", heading="cure"),
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


def run(folders: Sequence[Path], *, part: Part | None, verify: bool, form: Format) -> int:
    """Print one table, or all of them; CSV holds one, which is `between` unless another is asked for."""
    results = load(folders, verify=verify)
    parts = [part] if part else [Part.BETWEEN] if form is Format.CSV else list(Part)
    tables = {each: _table(results, each) for each in parts}
    if all(table.empty for each, table in tables.items() if each is not Part.CAUSES or within(results).empty):
        raise NothingToDoError(
            f"no variance to tell: {NOTHING[parts[0]]} among {counted(len(results.runs), 'run')}",
            hint="analyze summary says how they ended",
        )
    match form:
        case Format.TABLE:
            print("\n\n".join(_section(each, table) for each, table in tables.items()))
        case Format.JSON:
            found = {each: json.loads(render(table, COLUMNS[each], form)) for each, table in tables.items()}
            print(json.dumps(found[part] if part else found, indent=1, ensure_ascii=False))
        case Format.CSV:
            print(render(tables[parts[0]], COLUMNS[parts[0]], form))
    tell(results.problems)
    return ExitCode.DONE


def _table(results: Results, part: Part) -> pd.DataFrame:
    return {Part.BETWEEN: between, Part.WITHIN: within, Part.CAUSES: causes}[part](results)


def _section(part: Part, table: pd.DataFrame) -> str:
    body = NOTHING[part] if table.empty else render(table, COLUMNS[part], Format.TABLE)
    return f"{HEADINGS[part]}\n{body}"

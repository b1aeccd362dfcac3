"""Common parts of the commands on results: options, and printing of tables and problems."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import analysis
from workload.contract.invocation import Group
from workload.contract.program import option
from workload.contract.tables import Column, TableFormat, render
from workload.contract.text import printable

if TYPE_CHECKING:
    import pandas as pd

    from analysis.api import Results
    from analysis.loading.index import Problem

ResultsArgument = Annotated[
    list[Path], typer.Argument(metavar="RESULTS...", help="folders of bundles, nested ones too, or single bundles")
]
OutputOption = Annotated[
    Path, option("-o --output", "folder for the bundles", Group.OUTPUT, metavar="DIR", show_default=True)
]
VerifyOption = Annotated[
    bool, option("--verify", "check every file again, also those that look unchanged", Group.RESULTS)
]
PeaksOption = Annotated[
    Path | None,
    option(
        "--peaks",
        "own peaks of devices (default: peaks.toml in the working folder, if present)",
        Group.RESULTS,
        metavar="FILE",
    ),
]
# Most problems that are printed: more would hide the table above them.
SHOWN_PROBLEMS = 20


def use_peaks(path: Path | None) -> None:
    """Use the user's own peaks of devices in this process, and print which."""
    from workload.contract import peaks

    own = peaks.own_peaks(path)
    peaks.use(own)
    if own:
        replaced = {gpu.gpu for gpu in peaks.vendors()}
        names = (f"{gpu.gpu} ({'replaced' if gpu.gpu in replaced else 'added'})" for gpu in own.gpus)
        print(f"peaks      from {printable(own.origin)}: {printable(', '.join(names))}", file=sys.stderr)


def load(results: Sequence[Path], *, verify: bool, peaks: Path | None) -> "Results":
    """Load results for a command, with the peaks that its options and the working folder give."""
    use_peaks(peaks)
    return analysis.load(*results, verify=verify, peaks=peaks)


def rendered(table: "pd.DataFrame", columns: Sequence[Column], form: TableFormat, *, wide: bool) -> str:
    """Text of a table. A printed table names the unit of throughput in its headings, or in a column if units differ."""
    if form is TableFormat.TABLE and "images_per_s" in table:
        from analysis.loading import units

        table, columns = units.filled(table), units.columns(columns, table)
    return render(table, columns, form, wide=wide)


def first_names(names: Sequence[str], most: int) -> str:
    """The first `most` names, and the number of further ones: `a, b and 3 more`."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return printable(", ".join(names[:most])) + more


def print_problems(problems: Sequence["Problem"]) -> None:
    """Print problems on stderr, below the table."""
    sys.stdout.flush()
    for problem in problems[:SHOWN_PROBLEMS]:
        print(f"problem    {printable(str(problem))}", file=sys.stderr)
    if len(problems) > SHOWN_PROBLEMS:
        more = len(problems) - SHOWN_PROBLEMS
        print(f'problem    and {more} more: analysis.load("…").problems in Python lists them', file=sys.stderr)

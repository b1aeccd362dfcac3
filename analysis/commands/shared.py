"""Common parts of the commands on results: options, loading, and printing of problems."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import analysis
from workload.contract.tables import TableFormat
from workload.contract.text import printable

if TYPE_CHECKING:
    from analysis.loading.index import Problem
    from analysis.loading.tables import Tables

ResultsArgument = Annotated[
    list[Path], typer.Argument(metavar="RESULTS...", help="folders of bundles, nested ones too, or single bundles")
]
FormatOption = Annotated[TableFormat, typer.Option("--format", help="format of stdout")]
VerifyOption = Annotated[
    bool, typer.Option("--verify", help="check every file again, also those that look unchanged", show_default=False)
]

# Most problems that are printed: more would hide the table above them.
SHOWN_PROBLEMS = 20


def load(folders: Sequence[Path], *, verify: bool) -> "Tables":
    """The runs in `folders`; see `analysis.load`."""
    return analysis.load(*folders, verify=verify)


def tell(problems: Sequence["Problem"]) -> None:
    """Print problems on stderr, below the table."""
    sys.stdout.flush()
    for problem in problems[:SHOWN_PROBLEMS]:
        print(f"problem    {printable(str(problem))}", file=sys.stderr)
    if len(problems) > SHOWN_PROBLEMS:
        more = len(problems) - SHOWN_PROBLEMS
        print(f'problem    and {more} more: analysis.load("…").problems in Python lists them', file=sys.stderr)

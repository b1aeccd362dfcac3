"""What the commands on results have in common."""

import sys
from collections.abc import Sequence
from pathlib import Path

import analysis
from analysis.loading import Results
from analysis.problem import Problem
from workload.contract.text import printable

# More than fit on a screen hide the table above them.
SHOWN_PROBLEMS = 20


def load(folders: Sequence[Path], *, verify: bool) -> Results:
    """The runs in `folders`; see `analysis.load`."""
    return analysis.load(*folders, verify=verify)


def tell(problems: Sequence[Problem]) -> None:
    """What is not in the table, on stderr, below it."""
    sys.stdout.flush()
    for problem in problems[:SHOWN_PROBLEMS]:
        print(f"problem    {printable(str(problem))}", file=sys.stderr)
    if len(problems) > SHOWN_PROBLEMS:
        more = len(problems) - SHOWN_PROBLEMS
        print(f'problem    and {more} more: analysis.load("…").problems in Python lists them', file=sys.stderr)

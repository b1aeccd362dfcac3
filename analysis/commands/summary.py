"""`analyze summary`."""

from collections.abc import Sequence
from pathlib import Path

from analysis.commands.shared import load, tell
from analysis.summary import COLUMNS, summarize
from workload.contract.errors import ExitCode
from workload.contract.tables import Format, render


def run(folders: Sequence[Path], *, verify: bool, form: Format, wide: bool = False) -> int:
    """Print the table, then the problems on stderr."""
    results = load(folders, verify=verify)
    print(render(summarize(results.runs), COLUMNS, form, wide=wide))
    tell(results.problems)
    return ExitCode.DONE

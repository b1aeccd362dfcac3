"""`analyze compare`."""

from collections.abc import Sequence
from pathlib import Path

from analysis.commands.shared import load, tell
from analysis.compare import COLUMNS, compare
from workload.errors import ExitCode
from workload.tables import Format, render


def run(folders: Sequence[Path], *, by: str, allow_mixed: Sequence[str], verify: bool, form: Format) -> int:
    """Print a line per pair, then the problems on stderr; unlike runs of one side are exit code 9."""
    results = load(folders, verify=verify)
    print(render(compare(results, by, allow_mixed=allow_mixed), COLUMNS, form))
    tell(results.problems)
    return ExitCode.DONE

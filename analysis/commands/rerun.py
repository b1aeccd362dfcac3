"""`analyze rerun`."""

import sys
from pathlib import Path
from typing import Annotated

import analysis
from analysis.commands.shared import ResultsArgument, print_problems
from workload.contract.errors import ExitCode, UsageError
from workload.contract.files import replace_text
from workload.contract.help_text import Group
from workload.contract.program import option
from workload.contract.text import printable

EXAMPLES = """\b
Examples:
  analyze rerun results -o matrix.toml
  launch sweep matrix.toml --dry-run
"""


def rerun(
    *,
    results: ResultsArgument,
    output: Annotated[
        Path | None, option("-o --output", "file for the matrix (stdout)", Group.OUTPUT, metavar="FILE")
    ] = None,
    name: Annotated[str, option("--name", "name of the sweep", Group.OUTPUT, show_default=True)] = "again",
) -> int:
    """Write a matrix for launch sweep that plans the same configurations, repeats and places again."""
    from analysis.report.rerun import rerun as plan

    loaded = analysis.load(*results)
    planned = plan(loaded, name=name)
    if output is None:
        print(planned.text, end="")
    else:
        try:
            replace_text(output, planned.text)
        except OSError as error:
            raise UsageError(f"'{output}' cannot be written: {error.strerror}", hint="-o matrix.toml") from error
        print(printable(str(output)))
    sys.stdout.flush()
    for note in planned.notes:
        print(f"note       {printable(note)}", file=sys.stderr)
    print_problems(loaded.problems)
    return ExitCode.DONE

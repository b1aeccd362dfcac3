"""The command `launch gpus`: the GPUs of all clouds. Imports little, because `launch --help` loads this module."""

import typer

from workload.contract.errors import ExitCode
from workload.contract.program import FormatOption, WideOption, grouped
from workload.contract.tables import TableFormat

# \b: the help shows these lines without wrapping them.
GPUS_EXAMPLES = """\b
Examples:
  launch gpus --wide
  launch gpus --format csv > gpus.csv
"""


def show_gpus(*, wide: WideOption = False, output_format: FormatOption = TableFormat.TABLE) -> int:
    """Show the GPUs that a launch can have, their peaks, and what they cost.

    The figures come from tables of this program, each with its source and date.
    """
    from launcher.backends.gcp import gpus_table

    print(gpus_table.render(output_format, wide=wide))
    return ExitCode.DONE


def register(app: typer.Typer) -> None:
    """Add the command `launch gpus` to `app`."""
    app.command("gpus", cls=grouped("wide"), epilog=GPUS_EXAMPLES)(show_gpus)

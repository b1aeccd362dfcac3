"""The command `launch gpus`: the GPUs of all clouds. Imports little, because `launch --help` loads this module."""

import sys
from typing import Annotated

import typer

from launcher.backends.gcp.options import Where
from launcher.typer_options import parameters_of
from workload.contract.errors import ExitCode
from workload.contract.help_text import Group
from workload.contract.invocation import as_typed
from workload.contract.program import FormatOption, WideOption, grouped, option
from workload.contract.tables import TableFormat

# \b: the help shows these lines without wrapping them.
GPUS_EXAMPLES = """\b
Examples:
  launch gpus --live
  launch gpus --format csv > gpus.csv
"""
ProjectOption = Annotated[str | None, parameters_of(Where)[0].annotation.__metadata__[0]]


def show_gpus(
    *,
    live: Annotated[bool, option("--live", "with today's prices, fetched with your credentials", Group.OUTPUT)] = False,
    wide: WideOption = False,
    project: ProjectOption = None,
    output_format: FormatOption = TableFormat.TABLE,
) -> int:
    """Show the GPUs that a launch can have, their peaks, and what they cost.

    The figures come from tables of this program, each with its source and date. With --live, Google's prices come
    from its price list of today, which is kept for a day and then used without --live too.
    """
    from launcher.backends.gcp import gpus_table
    from launcher.backends.gcp.backend import backend

    prices = backend.prices(backend.settings(Where(project=project)).project if live else None)
    if live and prices.prices is None:
        print(f"warning: prices are from the built-in table: {prices.why}", file=sys.stderr)
        if prices.hint:
            print(f"hint: {as_typed(prices.hint)}", file=sys.stderr)
    print(gpus_table.render(output_format, wide=wide, price_list=prices.prices))
    return ExitCode.DONE


def register(app: typer.Typer) -> None:
    """Add the command `launch gpus` to `app`."""
    app.command("gpus", cls=grouped("live"), epilog=GPUS_EXAMPLES)(show_gpus)

"""The commands of `launch`."""

import json
import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from launcher import local, table
from launcher.options import run_options
from workload.spec import resolve

app = typer.Typer(
    name="launch",
    help="Run an instrumented vision training step somewhere, and bring home what it measured.",
    rich_markup_mode=None,
    no_args_is_help=True,
)


# \b keeps the lines as they are.
EXAMPLES = """\b
Examples:
  launch local --cpu
  launch local --model mobilenet_v2 --batch-size 8 --repeats 3
  launch local --cuda --precision amp --dataset ~/photos --format json
"""


class Format(StrEnum):
    """How a result is printed on stdout."""

    TABLE = "table"
    JSON = "json"


@app.callback()
def _commands() -> None:
    """Keep `local` a subcommand while it is the only one."""


@app.command(
    "local",
    epilog=EXAMPLES,
)
@run_options
def run_local(
    *,
    given: dict[str, object],
    runtime: Annotated[str, typer.Option(metavar="auto|process", help="how to run the trainer")] = "auto",
    output: Annotated[Path, typer.Option("-o", "--output", help="folder for the bundles")] = Path("results"),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the plan and stop", show_default=False)] = False,
    output_format: Annotated[Format, typer.Option("--format", help="what stdout gets")] = Format.TABLE,
) -> int:
    """Train on this machine, a process per repeat, and say what limits the run."""
    plan = local.make_plan(resolve(given, os.environ, Path.cwd()), runtime=runtime, output=output)
    if dry_run:
        print(json.dumps(plan.to_json(), indent=1) if output_format is Format.JSON else plan.text())
        return 0
    print(plan.text(), file=sys.stderr)
    outcome = local.run(plan)
    if output_format is Format.JSON:
        print(json.dumps(outcome.to_json(), indent=1))
    elif outcome.bundles:
        print(table.render(outcome.bundles))
    return outcome.exit_code

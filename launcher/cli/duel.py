"""Options of `launch duel`. Imports little, because `launch --help` loads this module."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from typer.core import TyperCommand

from launcher.duel import LEFT_OUT
from launcher.script.command import ScriptCommand
from launcher.typer_options import Format, FormatOption, OutputOption, run_options
from workload.contract.errors import ExitCode
from workload.contract.invocation import as_typed
from workload.contract.text import printable, printable_lines

# \b keeps the line breaks of the help text.
EXAMPLES = """\b
Options of both sides come before --, those of A after --, and those of B after ---:
  launch duel --model resnet50 -- --precision fp32 --- --precision bf16
  launch duel --cpu --batch-size 8 -- --- --channels-last
Your own script, with two sets of arguments, or at two commits of its repository (. is the working tree):
  launch duel --cpu -- train.py --lr 0.1 --- train.py --lr 0.2
  launch duel --commit main HEAD -- train.py --epochs 1
Two commits of rooflaunch, from a checkout:
  launch duel --commit HEAD . --model mobilenet_v2 --same-within 1%
Two images:
  launch duel --image rooflaunch:cpu rooflaunch:cpu-new --max-time 1h
Exit codes: 11 B is slower than A, 12 faster, by --same-within or more; 0 the same, or slower or faster by less;
13 not decidable within the budget.
"""


class DuelCommand(ScriptCommand):
    """Command `duel`. Its line may end in `-- A --- B`, where A and B are each run options or a script.

    If commits or images are compared, the line may end in `--` and one script for both sides.
    """

    example = "-- train.py --lr 0.1 --- train.py --lr 0.2"
    # All options apply to our trainer and to scripts, so the help has one list without headings.
    format_options = TyperCommand.format_options


def register(app: typer.Typer) -> None:
    """Add the command `duel` to `app`."""
    app.command("duel", cls=DuelCommand, epilog=EXAMPLES)(run_options(run_duel, without=LEFT_OUT))


def run_duel(
    *,
    typed: dict[str, object],
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- A --- B", help="run options, or a script with its arguments", show_default=False),
    ] = None,
    commit: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="A B", help="two commits; . is the working tree", show_default=False),
    ] = None,
    image: Annotated[
        tuple[str, str] | None, typer.Option(metavar="A B", help="two images, in containers", show_default=False)
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="PATH", help="the script's data; {data} in its arguments becomes this path", show_default=False
        ),
    ] = None,
    same_within: Annotated[
        str, typer.Option(metavar="X%", help="a smaller difference counts as the same, with exit code 0")
    ] = "2%",
    max_time: Annotated[str, typer.Option(metavar="TIME", help="end as not decidable after this time")] = "30m",
    max_segments: Annotated[
        int | None, typer.Option(metavar="N", help="end as not decidable after this number of runs", show_default=False)
    ] = None,
    summary: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="append the result as Markdown",
            envvar="GITHUB_STEP_SUMMARY",
            show_default=False,
            show_envvar=True,
        ),
    ] = None,
    output: OutputOption = Path("results"),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the plan and stop", show_default=False)] = False,
    output_format: FormatOption = Format.TABLE,
) -> int:
    """Say whether B is slower than A by 2 % (--same-within) or more, faster, or the same.

    Short runs of both alternate on this machine, ABBA or BAAB by lot, until that is decided.
    """
    from launcher.duel import contest, report, sides

    limits = contest.make_limits(same_within=same_within, max_time=max_time, max_segments=max_segments)
    report.require_writable(summary)
    request = sides.Request(
        shared=typed, words=tuple(words or ()), commits=commit, images=image, output=output, data=data
    )
    with sides.prepared(request, os.environ) as pair:
        plan = report.Plan(pair=pair, limits=limits, output=output)
        shown = printable_lines(as_typed(plan.text()))
        if dry_run:
            print(json.dumps(plan.to_json(), indent=1) if output_format is Format.JSON else shown)
            return ExitCode.DONE
        print(shown, file=sys.stderr)
        outcome = contest.fight(pair, limits, tell=lambda line: print(printable(line), file=sys.stderr, flush=True))
    result = report.Result(pair=pair, limits=limits, outcome=outcome, output=output)
    shown = printable_lines(as_typed(result.text()))
    print(json.dumps(result.to_json(), indent=1) if output_format is Format.JSON else shown)
    if summary:
        report.append(summary, result.markdown())
    if outcome.interrupted:
        raise outcome.interrupted
    return result.exit_code

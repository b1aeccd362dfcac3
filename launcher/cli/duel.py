"""Options of `launch duel`. Imports little, because `launch --help` loads this module."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from launcher.duel import LEFT_OUT
from launcher.script.command import ScriptCommand
from launcher.typer_options import DryRunOption, OutputOption, run_options
from workload.contract.errors import ExitCode
from workload.contract.help_text import Group
from workload.contract.invocation import as_typed
from workload.contract.program import FormatOption, grouped, option
from workload.contract.tables import TableFormat, plain
from workload.contract.text import printable, printable_lines

# \b keeps the line breaks of the help text.
EXAMPLES = """\b
Examples:
  launch duel --cpu -- train.py --lr 0.1 --- train.py --lr 0.2
  launch duel --commit main HEAD -- train.py --epochs 1
"""


class DuelCommand(ScriptCommand):
    """Command `duel`. Its line may end in `-- A --- B`, where A and B are each run options or a script.

    If commits or images are compared, the line may end in `--` and one script for both sides.
    """

    example = "-- train.py --lr 0.1 --- train.py --lr 0.2"


def register(app: typer.Typer) -> None:
    """Add the command `duel` to `app`."""
    command = grouped("commit", "same_within", "max_time", kind=DuelCommand)
    app.command("duel", cls=command, epilog=EXAMPLES)(run_options(run_duel, without=LEFT_OUT))


def run_duel(
    *,
    typed: dict[str, object],
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- A --- B", help="run options, or a script with its arguments", show_default=False),
    ] = None,
    commit: Annotated[
        tuple[str, str] | None, option("--commit", "two commits; . is the working tree", Group.FIRST, metavar="A B")
    ] = None,
    image: Annotated[
        tuple[str, str] | None, option("--image", "two images, in containers", Group.PLACE, metavar="A B")
    ] = None,
    gpu_index: Annotated[
        int | None, option("--gpu-index", "the GPU with this index in nvidia-smi", Group.PLACE, metavar="N", min=0)
    ] = None,
    data: Annotated[
        str | None,
        option("--data", "the script's data; {data} in its arguments becomes this path", Group.SCRIPT, metavar="PATH"),
    ] = None,
    same_within: Annotated[
        str,
        option(
            "--same-within",
            "a smaller difference counts as the same, with exit code 0",
            Group.FIRST,
            metavar="X%",
            show_default=True,
        ),
    ] = "2%",
    max_time: Annotated[
        str,
        option(
            "--max-time",
            "end as not decidable after this time; --max-run-time limits a machine",
            Group.FIRST,
            metavar="TIME",
            show_default=True,
        ),
    ] = "30m",
    max_runs: Annotated[
        int | None,
        option(
            "--max-runs --max-segments", "end as not decidable after this number of runs", Group.MEASURING, metavar="N"
        ),
    ] = None,
    summary: Annotated[
        Path | None,
        option(
            "--summary",
            "append the result as Markdown",
            Group.OUTPUT,
            metavar="FILE",
            envvar="GITHUB_STEP_SUMMARY",
            show_envvar=True,
        ),
    ] = None,
    output: OutputOption = Path("results"),
    dry_run: DryRunOption = False,
    output_format: FormatOption = TableFormat.TABLE,
) -> int:
    """Say whether B is slower than A by 2 % (--same-within) or more, faster, or the same.

    Short runs of both alternate on this machine, ABBA or BAAB by lot, until that is decided. Options of both sides come
    before --, those of A after --, and those of B after ---: run options of our trainer, or a script of your own with
    its arguments. With --commit or --image, one script after -- is for both sides.

    Exit codes: 11 B is slower than A, 12 faster, by --same-within or more; 0 the same, or slower or faster by less; 13
    not decidable within the limits.
    """
    from launcher.duel import contest, report, sides

    limits = contest.make_limits(same_within=same_within, max_time=max_time, max_segments=max_runs)
    report.require_writable(summary)
    request = sides.Request(
        shared=typed,
        words=tuple(words or ()),
        commits=commit,
        images=image,
        output=output,
        data=data,
        gpu_index=gpu_index,
    )
    with sides.prepared(request, os.environ) as pair:
        plan = report.Plan(pair=pair, limits=limits, output=output)
        shown = printable_lines(as_typed(plan.text()))
        if dry_run:
            print(shown if output_format is TableFormat.TABLE else plain(plan.to_json(), output_format))
            return ExitCode.DONE
        print(shown, file=sys.stderr)
        outcome = contest.fight(pair, limits, tell=lambda line: print(printable(line), file=sys.stderr, flush=True))
    result = report.Result(pair=pair, limits=limits, outcome=outcome, output=output)
    shown = printable_lines(as_typed(result.text()))
    print(shown if output_format is TableFormat.TABLE else plain(result.to_json(), output_format))
    if summary:
        report.append(summary, result.markdown())
    if outcome.interrupted:
        raise outcome.interrupted
    return result.exit_code

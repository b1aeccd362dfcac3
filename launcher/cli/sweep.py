"""Options of `launch sweep` and `launch duel`. Imports little, because `launch --help` loads this module."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from launcher import values
from launcher.duel import LEFT_OUT, SEPARATOR
from launcher.script.options import ScriptCommand
from launcher.typer_options import DryRunOption, OutputOption, declare, instance_of, parameters_of, run_options
from launcher.values import choice
from workload.contract.errors import ExitCode, UsageError
from workload.contract.invocation import Group, as_typed, examples
from workload.contract.program import FormatOption, grouped
from workload.contract.tables import TableFormat, plain
from workload.contract.text import cut_long_words, printable, printable_lines, terminal_width

MATRICES = Path(__file__).parents[1] / "sweep" / "matrices"
SWEEP_EXAMPLES = examples("launch sweep --example first > first.toml", "launch sweep first.toml --dry-run")
DUEL_EXAMPLES = examples(
    "launch duel --cpu -- train.py --lr 0.1 --- train.py --lr 0.2",
    "launch duel --commit main HEAD -- train.py --epochs 1",
)


def example_names() -> list[str]:
    """Names of the example matrices that come with this program, sorted."""
    return sorted(path.stem for path in MATRICES.glob("*.toml"))


@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """Options of `launch sweep`, besides those that several commands share."""

    on: tuple[str, ...] = choice("run only at this place; repeatable", default=(), metavar="NAME")
    until: str | None = choice(
        "add blocks until every throughput is known within this share, for example 1%", default=None, metavar="SHARE"
    )
    max_repeats: int | None = choice("with --until: at most this number of blocks", default=None, metavar="N", min=1)
    max_cost: float | None = choice(
        "cost limit of the whole sweep, kept by time limits of the machines", default=None, metavar="USD"
    )
    max_time: str | None = choice(
        "begin no run after this time, for example 8h; --max-run-time limits a machine", default=None, metavar="TIME"
    )
    fresh: bool = choice("measure everything again, even if results exist", default=False)
    example: str | None = choice(
        "print an example of a matrix",
        default=None,
        metavar="NAME",
        autocompletion=example_names,
        rich_help_panel=Group.OUTPUT,
    )


@dataclass(frozen=True, kw_only=True)
class DuelOptions:
    """Options of `launch duel`, besides those of its runs."""

    commit: tuple[str, str] | None = choice("two commits; . is the working tree", default=None, metavar="A B")
    image: tuple[str, str] | None = choice(
        "two images, in containers", default=None, metavar="A B", rich_help_panel=Group.PLACE
    )
    gpu_index: int | None = choice(
        "the GPU with this index in nvidia-smi", default=None, metavar="N", min=0, rich_help_panel=Group.PLACE
    )
    data: str | None = choice(
        "the script's data; {data} in its arguments becomes this path",
        default=None,
        metavar="PATH",
        rich_help_panel=Group.SCRIPT,
    )
    referee: bool = choice("refuse B, with exit code 10, if it does less work than A, or another one", default=False)
    losses: str = choice(
        "with --referee: how the losses of B may differ", default="rounding", metavar="same|rounding|any"
    )
    same_within: str = choice("a smaller difference counts as the same, with exit code 0", default="2%", metavar="X%")
    max_time: str = choice(
        "end as not decidable after this time; --max-run-time limits a machine", default="30m", metavar="TIME"
    )
    max_runs: int | None = choice("end as not decidable after this number of runs", default=None, metavar="N")
    summary: Path | None = choice(  # noqa: RUF009 - a path is immutable
        "append the result as Markdown",
        default=None,
        metavar="FILE",
        envvar="GITHUB_STEP_SUMMARY",
        show_envvar=True,
        rich_help_panel=Group.OUTPUT,
    )


class DuelCommand(ScriptCommand):
    """Command `duel`. Its line may end in `-- A --- B`, where A and B are each run options or a script.

    If commits or images are compared, the line may end in `--` and one script for both sides.
    """

    example = "-- train.py --lr 0.1 --- train.py --lr 0.2"
    separator = SEPARATOR


def register(app: typer.Typer) -> None:
    """Add the commands of this module to `app`."""
    declare(run_sweep, parameters_of(SweepOptions, group=Group.MEASURING), before="output")
    declare(run_duel, parameters_of(DuelOptions, group=Group.MEASURING), before="output")
    app.command("sweep", cls=grouped("dry_run", "on", "until"), epilog=SWEEP_EXAMPLES)(run_sweep)
    duel = grouped("commit", "same_within", "max_time", kind=DuelCommand)
    app.command("duel", cls=duel, epilog=DUEL_EXAMPLES)(run_options(run_duel, without=LEFT_OUT))


def run_sweep(
    *,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="MATRIX.toml", help="the matrix: what to run, and where", show_default=False),
    ] = None,
    output: OutputOption = Path("results"),
    dry_run: DryRunOption = False,
    output_format: FormatOption = TableFormat.TABLE,
    **own: Any,
) -> int:
    """Run a matrix of configurations, in blocks, at one place or several.

    Running the command again does only what is missing.
    """
    options = instance_of(SweepOptions, own)
    if (example := options.example) is not None:
        if example not in example_names():
            raise UsageError(f"there is no example '{example}'", hint=f"one of {', '.join(example_names())}")
        print((MATRICES / f"{example}.toml").read_text(encoding="utf-8"), end="")
        return ExitCode.DONE
    if file is None:
        raise UsageError("launch sweep takes a matrix", hint="launch sweep --example first > first.toml")
    from launcher.machine import runtime
    from launcher.sweep import matrix
    from launcher.sweep.drive import drive
    from launcher.sweep.places import LOCAL, until_of
    from launcher.sweep.sweep_plan import make_plan

    until_rule = until_of(options.until, options.max_repeats)
    max_cost_usd = values.positive_usd(options.max_cost, "--max-cost")
    max_time_s = None if options.max_time is None else values.parse_duration_s(options.max_time, "--max-time")
    loaded = matrix.read(matrix.load(file), file=file, environment=os.environ, config_folder=Path.cwd())
    matrix.require_places(loaded, options.on)
    for name in {configuration.spec.model for place in loaded.places for configuration in place.configurations}:
        runtime.require_model(name)
    for place in loaded.places:
        for configuration in place.configurations:
            runtime.require_data(configuration.spec, is_here=place.place.backend == LOCAL)
    for warning in loaded.warnings:
        print(f"warning: {cut_long_words(printable(warning))}", file=sys.stderr)
    plan = make_plan(
        loaded,
        file=file,
        output=output,
        only=options.on,
        offline=dry_run,
        is_fresh=options.fresh,
        until=until_rule,
        max_cost_usd=max_cost_usd,
    )
    if dry_run:
        text = as_typed(plan.text(terminal_width(sys.stdout)))
        print(text if output_format is TableFormat.TABLE else plain(plan.to_json(), output_format))
        return ExitCode.DONE
    print(as_typed(plan.text(terminal_width(sys.stderr))), file=sys.stderr)
    outcome = drive(
        plan.sweep,
        output=output,
        until=until_rule,
        max_cost_usd=max_cost_usd,
        max_time_s=max_time_s,
        damaged=plan.damaged,
    )
    text = outcome.text(terminal_width(sys.stdout))
    print(text if output_format is TableFormat.TABLE else plain(outcome.to_json(), output_format))
    return outcome.exit_code


def run_duel(
    *,
    typed: dict[str, object],
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- A --- B", help="run options, or a script with its arguments", show_default=False),
    ] = None,
    output: OutputOption = Path("results"),
    dry_run: DryRunOption = False,
    output_format: FormatOption = TableFormat.TABLE,
    **own: Any,
) -> int:
    """Say whether B is slower than A by 2 % (--same-within) or more, faster, or the same.

    Short runs of both alternate on this machine, ABBA or BAAB by lot, until that is decided. Options of both sides come
    before --, those of A after --, and those of B after ---: run options of our trainer, or a script of your own with
    its arguments. With --commit or --image, one script after -- is for both sides.

    Exit codes: 11 B is slower than A, 12 faster, by --same-within or more; 0 the same, or slower or faster by less; 13
    not decidable within the limits; 10 the referee refuses B.
    """
    from launcher.duel import contest, referee, report, sides

    options = instance_of(DuelOptions, own)
    limits = contest.make_limits(
        same_within=options.same_within, max_time=options.max_time, max_segments=options.max_runs
    )
    report.require_writable(options.summary)
    request = sides.Request(
        shared=typed,
        words=tuple(words or ()),
        commits=options.commit,
        images=options.image,
        output=output,
        data=options.data,
        gpu_index=options.gpu_index,
        keeps_losses=options.referee,
    )
    rule = referee.parse_losses(options.losses)
    with sides.prepared(request, os.environ) as pair:
        plan = report.Plan(pair=pair, limits=limits, output=output)
        shown = printable_lines(as_typed(plan.text()))
        if dry_run:
            print(shown if output_format is TableFormat.TABLE else plain(plan.to_json(), output_format))
            return ExitCode.DONE
        print(shown, file=sys.stderr)
        outcome = contest.fight(pair, limits, tell=lambda line: print(printable(line), file=sys.stderr, flush=True))
    ruling = referee.ruling_of(outcome.segments, rule) if options.referee else None
    result = report.Result(pair=pair, limits=limits, outcome=outcome, output=output, ruling=ruling)
    shown = printable_lines(as_typed(result.text()))
    print(shown if output_format is TableFormat.TABLE else plain(result.to_json(), output_format))
    if options.summary:
        report.append(options.summary, result.markdown())
    if outcome.interrupted:
        raise outcome.interrupted
    return result.exit_code

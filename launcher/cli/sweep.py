"""Options of `launch sweep`. Imports little, because `launch --help` loads this module."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from launcher import sizes
from launcher.typer_options import DryRunOption, OutputOption
from workload.contract.errors import ExitCode, UsageError
from workload.contract.help_text import Group
from workload.contract.invocation import as_typed
from workload.contract.program import FormatOption, option
from workload.contract.tables import TableFormat, plain
from workload.contract.text import cut_long_words, printable, terminal_width

MATRICES = Path(__file__).parents[1] / "sweep" / "matrices"
# \b keeps the line breaks of the help text.
SWEEP_EXAMPLES = """\b
Examples:
  launch sweep --example first > first.toml
  launch sweep first.toml --dry-run
"""


def examples() -> list[str]:
    """Names of the example matrices that come with this program, sorted."""
    return sorted(path.stem for path in MATRICES.glob("*.toml"))


def place_names(ctx: typer.Context) -> list[str]:
    """Shell completion of `--on`: names of the places in the matrix that is already typed; [] if it cannot be read."""
    from launcher.sweep import matrix

    try:
        file = Path(str(ctx.params.get("file")))
        loaded = matrix.read(matrix.load(file), file=file, environment={}, config_folder=None, allow_many_runs=True)
    except UsageError:
        return []
    return [place.place.name for place in loaded.places]


def run_sweep(
    *,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="MATRIX.toml", help="the matrix: what to run, and where", show_default=False),
    ] = None,
    on: Annotated[
        list[str] | None,
        option("--on", "run only at this place; repeatable", Group.PLACE, metavar="NAME", autocompletion=place_names),
    ] = None,
    until: Annotated[
        str | None,
        option(
            "--until",
            "add blocks until every throughput is known within this share, for example 1%",
            Group.MEASURING,
            metavar="SHARE",
        ),
    ] = None,
    until_ratio: Annotated[
        str | None,
        option(
            "--until-ratio",
            "add blocks until every ratio to --baseline is known within this share",
            Group.MEASURING,
            metavar="SHARE",
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        option(
            "--baseline",
            "baseline of --until-ratio, for example precision=fp32",
            Group.MEASURING,
            metavar="NAME=VALUE,...",
        ),
    ] = None,
    max_repeats: Annotated[
        int | None,
        option("--max-repeats", "with --until: at most this number of blocks", Group.MEASURING, metavar="N", min=1),
    ] = None,
    max_cost: Annotated[
        float | None,
        option(
            "--max-cost",
            "cost limit of the whole sweep, kept by time limits of the machines",
            Group.MEASURING,
            metavar="USD",
        ),
    ] = None,
    max_time: Annotated[
        str | None,
        option(
            "--max-time",
            "begin no run after this time, for example 8h; --max-run-time limits a machine",
            Group.MEASURING,
            metavar="TIME",
        ),
    ] = None,
    fresh: Annotated[
        bool, option("--fresh", "measure everything again, even if results exist", Group.MEASURING)
    ] = False,
    yes: Annotated[bool, option("--yes -y", "allow more than 10,000 runs", Group.MEASURING)] = False,
    example: Annotated[
        str | None,
        option("--example", "print an example of a matrix", Group.OUTPUT, metavar="NAME", autocompletion=examples),
    ] = None,
    output: OutputOption = Path("results"),
    dry_run: DryRunOption = False,
    output_format: FormatOption = TableFormat.TABLE,
) -> int:
    """Run a matrix of configurations, in blocks, at one place or several.

    Running the command again does only what is missing.
    """
    if example is not None:
        if example not in examples():
            raise UsageError(f"there is no example '{example}'", hint=f"one of {', '.join(examples())}")
        print((MATRICES / f"{example}.toml").read_text(encoding="utf-8"), end="")
        return ExitCode.DONE
    if file is None:
        raise UsageError("launch sweep takes a matrix", hint="launch sweep --example first > first.toml")
    from launcher import models
    from launcher.sweep import matrix
    from launcher.sweep.drive import drive
    from launcher.sweep.places import LOCAL
    from launcher.sweep.plan import make_plan
    from launcher.sweep.shared import require_positive_usd
    from launcher.sweep.until import until_of

    until_rule = until_of(until, until_ratio, baseline, max_repeats)
    max_cost_usd = require_positive_usd(max_cost)
    max_time_s = None if max_time is None else sizes.parse_duration_s(max_time, "--max-time")
    loaded = matrix.read(
        matrix.load(file), file=file, environment=os.environ, config_folder=Path.cwd(), allow_many_runs=yes
    )
    matrix.require_places(loaded, on or ())
    for name in {configuration.spec.model for place in loaded.places for configuration in place.configurations}:
        models.require(name)
    for place in loaded.places:
        for configuration in place.configurations:
            models.require_data(configuration.spec, is_here=place.place.backend == LOCAL)
    for warning in loaded.warnings:
        print(f"warning: {cut_long_words(printable(warning))}", file=sys.stderr)
    plan = make_plan(
        loaded,
        file=file,
        output=output,
        only=on or (),
        offline=dry_run,
        is_fresh=fresh,
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

"""Options of `launch sweep`. Imports little, because `launch --help` loads this module."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from launcher import sizes
from launcher.typer_options import Format, FormatOption, OutputOption
from workload.contract.errors import ExitCode, UsageError
from workload.contract.invocation import as_typed
from workload.contract.text import cut_long_words, printable, terminal_width

MATRICES = Path(__file__).parents[1] / "sweep" / "matrices"
# \b keeps the line breaks of the help text.
SWEEP_EXAMPLES = """\b
Examples:
  launch sweep --example first > first.toml
  launch sweep first.toml --dry-run
  launch sweep first.toml
  launch sweep first.toml --until 5% --max-repeats 10
  launch sweep first.toml --until-ratio 2% --baseline precision=fp32
  launch sweep night.toml --on t4 --max-cost 5
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
        typer.Argument(metavar="MATRIX.toml", help="the sweep's file: what to run, and where", show_default=False),
    ] = None,
    on: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="run only at this place; repeatable", autocompletion=place_names),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE", help="add blocks until every throughput is known within this share, for example 1%"
        ),
    ] = None,
    until_ratio: Annotated[
        str | None,
        typer.Option(metavar="SHARE", help="add blocks until every ratio to --baseline is known within this share"),
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(metavar="NAME=VALUE,...", help="baseline of --until-ratio, for example precision=fp32")
    ] = None,
    max_repeats: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="with --until: at most this number of blocks")
    ] = None,
    max_cost: Annotated[
        float | None,
        typer.Option(metavar="USD", help="maximum cost of the whole sweep, kept by time limits of the machines"),
    ] = None,
    max_time: Annotated[
        str | None, typer.Option(metavar="TIME", help="begin no run after this time, for example 8h or 90m")
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="measure everything again, even if results exist", show_default=False)
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="allow more than 10,000 runs", show_default=False)] = False,
    example: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="print an example of a sweep's file", autocompletion=examples, show_default=False
        ),
    ] = None,
    output: OutputOption = Path("results"),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the plan and stop", show_default=False)] = False,
    output_format: FormatOption = Format.TABLE,
) -> int:
    """Run a matrix of configurations, in blocks, at one place or several.

    Running the command again does only what is missing.
    """
    if example is not None:
        print(_example(example), end="")
        return ExitCode.DONE
    if file is None:
        raise UsageError("launch sweep takes a matrix", hint="launch sweep --example first > first.toml")
    from launcher import models
    from launcher.sweep import matrix
    from launcher.sweep.budget import require_positive_usd
    from launcher.sweep.drive import drive
    from launcher.sweep.places import LOCAL
    from launcher.sweep.plan import make_plan
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
        text = plan.text(terminal_width(sys.stdout))
        print(json.dumps(plan.to_json(), indent=1) if output_format is Format.JSON else as_typed(text))
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
    print(json.dumps(outcome.to_json(), indent=1) if output_format is Format.JSON else text)
    return outcome.exit_code


def _example(name: str) -> str:
    if name not in examples():
        raise UsageError(f"there is no example '{name}'", hint=f"one of {', '.join(examples())}")
    return (MATRICES / f"{name}.toml").read_text(encoding="utf-8")

"""Options of `launch tune`. Imports little, because `launch --help` loads this module."""

import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from launcher import values
from launcher.duel import LEFT_OUT
from launcher.script.options import ScriptCommand, Words
from launcher.typer_options import OutputOption, declare, instance_of, parameters_of, run_options
from launcher.values import choice
from workload.contract.errors import ExitCode, UsageError
from workload.contract.invocation import Group, as_typed, examples
from workload.contract.program import FormatOption, grouped
from workload.contract.tables import TableFormat, as_json, plain
from workload.contract.text import counted, printable, printable_lines, terminal_width

if TYPE_CHECKING:
    from launcher.tune.report import Tuned

EXAMPLES = examples("launch tune --try batch-size=64,128 -- train.py", "launch tune --check tune/evidence.json")


@dataclass(frozen=True, kw_only=True)
class TuneOptions:
    """Options of `launch tune`, besides those of its runs."""

    tries: tuple[str, ...] = choice(
        "also try an argument of the script, or a change; repeatable", default=(), flag="--try", metavar="NAME=V1,V2"
    )
    margin: str = choice("a change must bring this much", default="2%", metavar="X%")
    losses: str = choice(
        "what a change may do to the losses; rounding: not more than other rounding does",
        default="rounding",
        metavar="same|rounding|any",
    )
    max_time: str = choice("end after this time with what is proved", default="20m", metavar="TIME")
    data: str | None = choice(
        "the script's data; {data} in its arguments becomes this path",
        default=None,
        metavar="PATH",
        rich_help_panel=Group.SCRIPT,
    )
    on: str | None = choice(
        "tune on another machine, each time anew: a backend with its options, such as 'ssh --host box'",
        default=None,
        metavar="'BACKEND ...'",
        rich_help_panel=Group.PLACE,
    )
    check: Path | None = choice(  # noqa: RUF009 - a path is immutable
        "compute an evidence file again from its bundles",
        default=None,
        metavar="FILE",
        rich_help_panel=Group.OUTPUT,
    )


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    declare(run_tune, parameters_of(TuneOptions, group=Group.MEASURING), before="output")
    tune = grouped("tries", "max_time", "check", kind=ScriptCommand)
    app.command("tune", cls=tune, epilog=EXAMPLES)(run_options(run_tune, without=(*LEFT_OUT, "change")))


def run_tune(
    *,
    words: Words = None,
    typed: dict[str, object],
    output: OutputOption = Path("tune"),
    output_format: FormatOption = TableFormat.TABLE,
    **own: Any,
) -> int:
    """Try changes to a training script, prove each by a duel, and write those that help as a patch.

    Nothing is written into the script's own files. Run it again to go on where it ended.

    Exit codes: 12 the accepted changes make the script faster by --margin or more; 0 no change does; 13 not decidable
    within the limits.
    """
    options = instance_of(TuneOptions, own)
    if options.check:
        return _check(options.check)
    if not words:
        raise UsageError("launch tune takes a script, after --", hint="launch tune -- train.py")
    from launcher.duel.referee import parse_losses
    from launcher.duel.sides import Request, plan_of_script
    from launcher.script import local_script
    from launcher.script.options import HereOptions
    from launcher.tune import candidates, report, session
    from workload.contract.script_words import line_of

    candidates.asked(options.tries)
    tuning: dict[str, Any] = {
        "margin": values.parse_share(options.margin, "--margin", example="2%", least=0.001, most=0.5),
        "max_time_s": values.parse_duration_s(options.max_time, "--max-time"),
        "losses": parse_losses(options.losses),
        "tries": options.tries,
    }
    if options.on is not None:
        return _end(_tuned_there(options.on, words, typed, options.data, tuning, output), output_format)
    workplace = local_script.workplace_of(
        words, HereOptions(data=options.data), Path.cwd(), os.environ, line_of("launch", "tune")
    )
    workplace.require(words)
    local_script.require_module(words, workplace.folder)
    request = Request(shared=typed, words=tuple(words), commits=None, images=None, output=output, data=options.data)

    def plan_of(words: Sequence[str], change: str | None, ceilings: bool) -> Any:
        side = replace(request, words=tuple(words))
        return plan_of_script(side, workplace, os.environ, change=change, ceilings=ceilings)

    asked = session.Asked(words=tuple(words), folder=workplace.folder, output=output, plan_of=plan_of, **tuning)
    is_table = output_format is TableFormat.TABLE

    def show(row: Any) -> None:
        # The table below tells which changes were not tried.
        if is_table and row.trial:
            print(printable(report.line(row)), file=sys.stderr, flush=True)
        elif output_format is TableFormat.JSON:
            print(as_json(report.row_json(row)), flush=True)

    tuned = session.tune(asked, tell=lambda text: print(printable(text), file=sys.stderr, flush=True), show=show)
    return _end(tuned, output_format, are_shown=True)


def _tuned_there(
    on: str, words: list[str], typed: dict[str, object], data: str | None, tuning: dict[str, Any], output: Path
) -> "Tuned":
    """Tune the script where `--on` says, and return the tuning."""
    from launcher.backends import BACKENDS
    from launcher.duel.sides import SEGMENT_S
    from launcher.jobs import commands
    from launcher.jobs.places import Place, options_of
    from launcher.script.options import ThereOptions
    from launcher.tune import report
    from launcher.typer_options import instances_from
    from workload.contract.program import plain_message
    from workload.contract.script_words import script_name

    backend, *rest = shlex.split(on) or [""]
    if backend not in BACKENDS:
        raise UsageError(f"--on takes a backend and its options; got '{on}'", hint="--on 'ssh --host box'")
    module = options_of(backend)
    try:
        own, where, there = instances_from((module.Options, module.Where, ThereOptions), rest)
    except typer.TyperException as error:
        raise UsageError(f"--on: {plain_message(error, rest)}", hint="launch " + backend + " --help") from error
    there = replace(there, data=data) if data else there
    script = commands.Script(words=tuple(words), options=there, is_fresh=module.COMMAND.is_fresh)
    place, defaults = Place(backend=backend, where=where), {"min_seconds": SEGMENT_S}
    try:
        rows = commands.tune(place, own, {**defaults, **typed}, script=script, tuning=tuning, output=output)
    except UsageError as error:
        # Options of the place that `launch tune` has only as a part of --on.
        if any(f"--{item.name}" in error.hint for item in fields(ThereOptions) if item.name != "data"):
            error.hint = f"in --on: {error.hint}"
        raise
    return report.received(rows, output, script_name(words))


def _end(tuned: "Tuned", output_format: TableFormat, *, are_shown: bool = False) -> int:
    """Print a tuning and return its exit code. `are_shown`: `--format json` has printed its rows already."""
    from launcher.tune import report

    if output_format is TableFormat.JSON and not are_shown:
        print("\n".join(as_json(report.row_json(row)) for row in tuned.rows))
    if output_format is TableFormat.TABLE:
        print(printable_lines(as_typed(report.text(tuned, terminal_width(sys.stdout)))))
    elif output_format is TableFormat.JSON:
        print(as_json(report.end_json(tuned)))
    else:
        print(plain({"changes": [report.row_json(row) for row in tuned.rows]}, output_format, rows_of="changes"))
    if tuned.interrupted:
        raise tuned.interrupted
    return tuned.exit_code


def _check(file: Path) -> int:
    from launcher.tune import evidence

    found = evidence.read(file)
    wrong = list(evidence.check(found, file.parent))
    for line in wrong:
        print(printable(line))
    runs = sum(len(trial.bundles) for trial in found.trials) + len({**found.originals, **found.others})
    if not wrong:
        print(f"{counted(len(found.trials), 'decision')} recomputed from the {runs} runs that {file} names")
    return ExitCode.FINDINGS if wrong else ExitCode.DONE

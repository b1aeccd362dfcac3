"""Options of `launch <backend>` for every backend, and of `status`, `logs`, `down` and `reap`.

This module imports little, because `launch --help` loads it. The code of a command is imported when it runs.
"""

import importlib
import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from launcher.backends import BACKENDS, OWN_COMMANDS
from launcher.choice import Command
from launcher.jobs.places import Place, options_of, place_of
from launcher.script.command import ScriptCommand, ThereOptions, Words, refuse_without_script
from launcher.typer_options import (
    Format,
    FormatOption,
    OutputOption,
    instance_of,
    parameters_of,
    run_options,
    signed,
)

if TYPE_CHECKING:
    from launcher.jobs.commands import Script

# \b keeps the line breaks of the help text.
STATUS_EXAMPLES = """\b
Examples:
  launch status
  launch status 3fa9c1
  launch status --all --format json
  launch status --backend aws
"""
LOGS_EXAMPLES = """\b
Examples:
  launch logs 3fa9c1
  launch logs rooflaunch-t4-20261121-142530-3fa9c1 -f
"""
DOWN_EXAMPLES = """\b
Examples:
  launch down 3fa9c1
  launch down --all
  launch down --all --yes --format json
"""
REAP_EXAMPLES = """\b
Examples:
  launch reap --dry-run
  launch reap
"""
BACKEND_HELP = (
    "backend of the launches (default: that of the other options, of a table such as [aws] in rooflaunch.toml, or gcp)"
)
RUN_HELP = (
    "the launch's name, or its beginning or end if unique (for example the last 6 characters), or one of its runs"
)


def register(app: typer.Typer) -> None:
    """Add the commands of this module to `app`."""
    for name in BACKENDS:
        module = options_of(name)
        _add_backend(app, name, module)
        if name in OWN_COMMANDS:
            importlib.import_module(OWN_COMMANDS[name]).register(app)
    for name, command, examples in (
        ("status", show_status, STATUS_EXAMPLES),
        ("logs", show_logs, LOGS_EXAMPLES),
        ("down", take_down, DOWN_EXAMPLES),
        ("reap", reap, REAP_EXAMPLES),
    ):
        app.command(name, epilog=examples)(with_where(command))


def _add_backend(app: typer.Typer, name: str, module: Any) -> None:
    declared: Command = module.COMMAND

    def launch(
        *,
        words: Words = None,
        typed: dict[str, object],
        detach: Annotated[
            bool,
            typer.Option(
                "--detach", help=f"return as soon as the {declared.noun} runs; it ends by itself", show_default=False
            ),
        ] = False,
        output: OutputOption = Path("results"),
        dry_run: Annotated[bool, typer.Option("--dry-run", help="print the plan and stop", show_default=False)] = False,
        request: Annotated[
            bool,
            typer.Option(
                "--request", help=f"with --dry-run: also print the request to {declared.sent_to}", show_default=False
            ),
        ] = False,
        output_format: FormatOption = Format.TABLE,
        **own: Any,
    ) -> int:
        from launcher.jobs import commands

        options, where = instance_of(module.Options, own), instance_of(module.Where, own)
        of_script = instance_of(ThereOptions, own)
        refuse_without_script(of_script, words)
        return commands.launch(
            Place(backend=name, where=where),
            options,
            typed,
            script=_script(words, of_script, declared),
            detach=detach,
            output=output,
            dry_run=dry_run,
            request=request,
            output_format=output_format,
        )

    launch.__doc__ = declared.help
    kinds = (module.Options, module.Where, ThereOptions)
    declare(launch, [parameter for kind in kinds for parameter in parameters_of(kind)], before="detach")
    app.command(name, cls=ScriptCommand, epilog=declared.examples)(run_options(launch))


def _script(words: list[str] | None, options: ThereOptions, declared: Command) -> "Script | None":
    from launcher.jobs.commands import Script

    return Script(words=tuple(words), options=options, is_fresh=declared.is_fresh) if words else None


def declare(command: Callable[..., int], options: list[inspect.Parameter], *, before: str) -> None:
    """Replace the `**` parameter of `command` by these options, which come before its own parameter `before`."""
    own = [
        parameter
        for parameter in inspect.signature(command).parameters.values()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    at = [parameter.name for parameter in own].index(before)
    signed(command, [*own[:at], *options, *own[at:]])


def with_where(command: Callable[..., int], *, names_backend: bool = True) -> Callable[..., int]:
    """Give a command the options of all backends that select a place; the command gets them as `**where`.

    `names_backend`: add the option `--backend` too.
    """
    options: dict[str, inspect.Parameter] = {}
    if names_backend:
        info = typer.Option("--backend", metavar="NAME", help=BACKEND_HELP, autocompletion=lambda: list(BACKENDS))
        annotation = Annotated[str | None, info]
        options["backend"] = inspect.Parameter(
            "backend", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
        )
    for name in BACKENDS:
        for parameter in parameters_of(options_of(name).Where, required=False):
            options.setdefault(parameter.name, parameter)

    @wraps(command)
    def placed(**arguments: Any) -> int:
        return command(**arguments)

    declare(placed, list(options.values()), before="output_format")
    return placed


def show_status(
    *,
    name: Annotated[str | None, typer.Argument(metavar="RUN", help=RUN_HELP, show_default=False)] = None,
    every: Annotated[
        bool,
        typer.Option("--all", help="all launches, not only the newest and those with a machine", show_default=False),
    ] = False,
    output_format: FormatOption = Format.TABLE,
    **where: Any,
) -> int:
    """Show what has become of launches.

    The state is read from the place where the launches run and from the store of their bundles. This works on any
    computer, also after the command that launched them was ended.
    """
    from launcher.jobs import commands

    return commands.show_status(place_of(where), name=name, every=every, output_format=output_format)


def show_logs(
    *,
    name: Annotated[str, typer.Argument(metavar="RUN", help=RUN_HELP)],
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="follow until the VM or the job is gone", show_default=False)
    ] = False,
    output_format: FormatOption = Format.TABLE,
    **where: Any,
) -> int:
    """Show what a launch prints.

    While a VM exists, this is the output of its serial port; afterwards it is the log in the bucket.
    """
    from launcher.jobs import commands

    return commands.show_logs(place_of(where), name=name, follow=follow, output_format=output_format)


def take_down(
    *,
    names: Annotated[list[str] | None, typer.Argument(metavar="RUN", help=RUN_HELP, show_default=False)] = None,
    every: Annotated[
        bool, typer.Option("--all", help="all launches in the project, or on the host", show_default=False)
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="with --all: do not ask", show_default=False)] = False,
    output_format: FormatOption = Format.TABLE,
    **where: Any,
) -> int:
    """Delete VMs and stop jobs now, and wait until they are gone.

    Uploaded bundles are kept.
    """
    from launcher.jobs import commands

    return commands.take_down(place_of(where), names=names or (), every=every, yes=yes, output_format=output_format)


def reap(
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="only show what would be deleted", show_default=False)
    ] = False,
    output_format: FormatOption = Format.TABLE,
    **where: Any,
) -> int:
    """Delete VMs that are stopped for good, and VMs and disks that are past their time limit.

    The cloud deletes a VM at its time limit, but never a stopped one. This command deletes what is left.
    """
    from launcher.jobs import commands

    return commands.reap(place_of(where), dry_run=dry_run, output_format=output_format)

"""Options of `launch <backend>` for every backend, and of `status`, `logs`, `down` and `reap`.

This module imports little, because `launch --help` loads it. The code of a command is imported when it runs.
"""

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from launcher.backends import BACKENDS
from launcher.backends.rented_options import FitOptions
from launcher.cli import gpus
from launcher.jobs.places import Place, options_of, place_of
from launcher.script.options import MachinesCommand, ScriptCommand, ThereOptions, Words, refuse_without_script
from launcher.typer_options import (
    DryRunOption,
    OutputOption,
    declare,
    instance_of,
    keyword,
    parameters_of,
    run_options,
    the_only,
)
from launcher.values import Command
from workload.contract.invocation import Group, examples
from workload.contract.program import FormatOption, grouped, option
from workload.contract.tables import TableFormat

STATUS_EXAMPLES = examples("launch status", "launch status 3fa9c1")
LOGS_EXAMPLES = examples("launch logs 3fa9c1", "launch logs rooflaunch-t4-20261121-142530-3fa9c1 -f")
DOWN_EXAMPLES = examples("launch down 3fa9c1", "launch down --all")
REAP_EXAMPLES = examples("launch reap --dry-run", "launch reap")
BACKEND_HELP = (
    "backend of the launches (by the other options, or by a table such as [aws] in rooflaunch.toml, else gcp)"
)
RUN_HELP = "the launch's name, or its beginning or end if unique (for example the last 6 characters)"


def register(app: typer.Typer) -> None:
    """Add the commands of this module to `app`."""
    for name in BACKENDS:
        module = options_of(name)
        _add_backend(app, name, module)
        if name == "gcp":  # the first cloud: the list of commands has its GPUs next to it
            gpus.register(app)
    for name, command, first, epilog in (
        ("status", show_status, ("every",), STATUS_EXAMPLES),
        ("logs", show_logs, ("follow",), LOGS_EXAMPLES),
        ("down", take_down, ("every", "yes"), DOWN_EXAMPLES),
        ("reap", reap, ("dry_run",), REAP_EXAMPLES),
    ):
        app.command(name, cls=grouped(*first), epilog=epilog)(with_where(command))


def _add_backend(app: typer.Typer, name: str, module: Any) -> None:
    declared: Command = module.COMMAND

    def launch(
        *,
        words: Words = None,
        typed: dict[str, object],
        detach: Annotated[
            bool, option("--detach", f"return as soon as the {declared.noun} runs; it ends by itself", Group.OUTPUT)
        ] = False,
        output: OutputOption = Path("results"),
        dry_run: DryRunOption = False,
        request: Annotated[
            bool, option("--request", f"with --dry-run: also print the request to {declared.sent_to}", Group.OUTPUT)
        ] = False,
        output_format: FormatOption = TableFormat.TABLE,
        **own: Any,
    ) -> int:
        from launcher.jobs import commands

        hosts: Any = own.get("host")
        beside = tuple(hosts[1:]) if isinstance(hosts, list) else ()
        if beside:
            own["host"] = hosts[0]
            typed.setdefault("machines", str(1 + len(beside)))
        options, where = instance_of(module.Options, own), instance_of(module.Where, own)
        options = replace(options, beside=beside) if beside else options
        of_script = instance_of(ThereOptions, own)
        fit = instance_of(FitOptions, own) if declared.is_fresh else FitOptions(anyway=True)
        refuse_without_script(of_script, words)
        script = commands.Script(words=tuple(words or ()), options=of_script, is_fresh=declared.is_fresh)
        return commands.launch(
            Place(backend=name, where=where),
            options,
            typed,
            script=script if words else None,
            detach=detach,
            output=output,
            dry_run=dry_run,
            request=request,
            anyway=fit.anyway,
            output_format=output_format,
        )

    launch.__doc__ = declared.help
    place = [*parameters_of(module.Options), *parameters_of(module.Where)]
    if declared.is_fresh:
        place += parameters_of(FitOptions)
    declare(launch, [*place, *parameters_of(ThereOptions, group=Group.SCRIPT)], before="detach")
    command = grouped(*declared.first, "dry_run", kind=MachinesCommand if declared.several_machines else ScriptCommand)
    app.command(name, cls=command, epilog=declared.examples)(run_options(launch))


def with_where(command: Callable[..., int], *, names_backend: bool = True) -> Callable[..., int]:
    """Give a command the options of all backends that select a place; the command gets them as `**where`.

    `names_backend`: add the option `--backend` too.
    """
    options: dict[str, inspect.Parameter] = {}
    if names_backend:
        info = option("--backend", BACKEND_HELP, Group.PLACE, metavar="NAME", autocompletion=lambda: list(BACKENDS))
        options["backend"] = keyword("backend", Annotated[str | None, info])
    for name in BACKENDS:
        for parameter in parameters_of(options_of(name).Where, required=False):
            options.setdefault(parameter.name, parameter)

    @wraps(command)
    def placed(**arguments: Any) -> int:
        return command(**{**arguments, "host": the_only("--host", arguments["host"])})

    declare(placed, list(options.values()), before="output_format")
    return placed


def show_status(
    *,
    name: Annotated[str | None, typer.Argument(metavar="RUN", help=RUN_HELP, show_default=False)] = None,
    every: Annotated[
        bool, option("--all", "all launches, not only the newest and those with a machine", Group.OUTPUT)
    ] = False,
    output_format: FormatOption = TableFormat.TABLE,
    **where: Any,
) -> int:
    """Show what has become of launches.

    The state is read from the place where the launches run and from the store of their bundles. This works on any
    machine, also after the command that launched them was ended.
    """
    from launcher.jobs import commands

    return commands.show_status(place_of(where), name=name, every=every, output_format=output_format)


def show_logs(
    *,
    name: Annotated[str, typer.Argument(metavar="RUN", help=RUN_HELP)],
    follow: Annotated[bool, option("-f --follow", "follow until the VM or the job is gone", Group.OUTPUT)] = False,
    output_format: FormatOption = TableFormat.TABLE,
    **where: Any,
) -> int:
    """Show what a launch prints.

    While a VM exists, this is the output of its serial port; afterwards it is the log in the bucket.
    """
    from launcher.jobs import commands

    return commands.show_logs(place_of(where), name=name, follow=follow, output_format=output_format)


def take_down(
    *,
    names: Annotated[list[str] | None, typer.Argument(metavar="RUN...", help=RUN_HELP, show_default=False)] = None,
    every: Annotated[bool, option("--all", "all launches at this place", Group.PLACE)] = False,
    yes: Annotated[bool, option("--yes -y", "with --all: do not ask", Group.OUTPUT)] = False,
    output_format: FormatOption = TableFormat.TABLE,
    **where: Any,
) -> int:
    """Delete VMs and stop jobs now, and wait until they are gone.

    Uploaded bundles are kept.
    """
    from launcher.jobs import commands

    return commands.take_down(place_of(where), names=names or (), every=every, yes=yes, output_format=output_format)


def reap(
    *,
    dry_run: Annotated[bool, option("--dry-run", "only show what would be deleted", Group.OUTPUT)] = False,
    output_format: FormatOption = TableFormat.TABLE,
    **where: Any,
) -> int:
    """Delete VMs that are stopped for good, and VMs and disks that are past their time limit.

    The cloud deletes a VM at its time limit, but never a stopped one. This command deletes what is left.
    """
    from launcher.jobs import commands

    return commands.reap(place_of(where), dry_run=dry_run, output_format=output_format)

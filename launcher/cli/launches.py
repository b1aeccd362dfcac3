"""Options of `launch <backend>` for every backend, and of `status`, `logs`, `down` and `reap`.

This module imports little, because `launch --help` loads it. The code of a command is imported when it runs.
"""

import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from launcher.backends import BACKENDS
from launcher.jobs.places import Place, options_of, place_of
from launcher.script.options import ScriptCommand, ThereOptions, Words, refuse_without_script
from launcher.typer_options import DryRunOption, OutputOption, declare, instance_of, parameters_of, run_options
from launcher.values import Command
from workload.contract import tables
from workload.contract.errors import ExitCode
from workload.contract.invocation import Group, as_typed
from workload.contract.program import FormatOption, WideOption, grouped, option
from workload.contract.spec import Precision
from workload.contract.tables import Column, TableFormat
from workload.contract.text import terminal_width, wrapped

if TYPE_CHECKING:
    from launcher.backends.shared_plan import MachineType
    from workload.contract.prices import VmPrice

# \b keeps the line breaks of the help text.
STATUS_EXAMPLES = """\b
Examples:
  launch status
  launch status 3fa9c1
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
"""
REAP_EXAMPLES = """\b
Examples:
  launch reap --dry-run
  launch reap
"""
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
            app.command("gpus", cls=grouped("wide"), epilog=GPUS_EXAMPLES)(show_gpus)
    for name, command, first, examples in (
        ("status", show_status, ("every",), STATUS_EXAMPLES),
        ("logs", show_logs, ("follow",), LOGS_EXAMPLES),
        ("down", take_down, ("every", "yes"), DOWN_EXAMPLES),
        ("reap", reap, ("dry_run",), REAP_EXAMPLES),
    ):
        app.command(name, cls=grouped(*first), epilog=examples)(with_where(command))


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

        options, where = instance_of(module.Options, own), instance_of(module.Where, own)
        of_script = instance_of(ThereOptions, own)
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
            output_format=output_format,
        )

    launch.__doc__ = declared.help
    place = [*parameters_of(module.Options), *parameters_of(module.Where)]
    declare(launch, [*place, *parameters_of(ThereOptions, group=Group.SCRIPT)], before="detach")
    command = grouped(*declared.first, "dry_run", kind=ScriptCommand)
    app.command(name, cls=command, epilog=declared.examples)(run_options(launch))


def with_where(command: Callable[..., int], *, names_backend: bool = True) -> Callable[..., int]:
    """Give a command the options of all backends that select a place; the command gets them as `**where`.

    `names_backend`: add the option `--backend` too.
    """
    options: dict[str, inspect.Parameter] = {}
    if names_backend:
        info = option("--backend", BACKEND_HELP, Group.PLACE, metavar="NAME", autocompletion=lambda: list(BACKENDS))
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


# Clouds with a module `gpus`.
CLOUDS = ("gcp", "aws")
UNKNOWN, NOT_SOLD = "unknown", "not sold"
GPU_NOTES = (
    "fp32 to bf16: the vendors' dense peaks in TFLOP/s; -: not supported by the GPU. GB/s: peak of its memory",
    "USD/h: the VM with its GPUs, without disk, address and traffic; a run's cost: launch gcp --gpu t4 --dry-run",
    "(8) after a machine: it has 8 GPUs, and its price is that of all",
    "spot: cheaper, but may be taken away at any time; on aws that of the dearest zone",
    "not sold: on demand only by reservation",
    "zones and unrounded figures: launch gpus --format json",
)
RATES = tuple(f"{precision}_flop_per_s" for precision in Precision)
# Columns of JSON and CSV: every figure; unknown figures are absent.
GPU_DATA = tuple(
    Column(name=name, heading=name)
    for name in (
        *("gpu", "machine_type", "gpus", "vcpus", "memory_gb", *RATES, "bytes_per_s", "region", "usd_per_h"),
        *("usd_per_h_spot", "sold_on_demand", "read", "source", "zones", "provider"),
    )
)
GPU_COLUMNS = (
    Column(name="provider", heading="cloud"),
    Column(name="gpu", heading="GPU"),
    Column(name="machine_type", heading="machine"),
    Column(name="region", heading="region"),
    Column(name="usd_per_h", heading="USD/h"),
    Column(name="usd_per_h_spot", heading="spot"),
    Column(name="read", heading="as of"),
    Column(name="memory_gb", heading="GB"),
    Column(name="bytes_per_s", heading="GB/s"),
    *(Column(name=f"{precision}_flop_per_s", heading=precision) for precision in Precision),
)


def gpu_rows() -> Iterator[dict[str, Any]]:
    """Yield a row for each price in prices.toml.

    A GPU without a price gets a row for its default machine type. Unknown values are None. Rows of the same GPU in
    different clouds follow each other.
    """
    offers = [(cloud, gpu) for cloud in CLOUDS for gpu in _table(cloud).load().values()]
    for name in dict.fromkeys(gpu.name for _, gpu in offers):
        for cloud, gpu in offers:
            for price in (gpu.prices or (None,)) if gpu.name == name else ():
                machine = gpu.machine_types[price.machine_type if price else gpu.default_machine_type]
                yield _row(cloud, gpu, machine, price)


def _table(cloud: str) -> Any:
    return importlib.import_module(f"{BACKENDS[cloud]}.gpus")


def _row(cloud: str, gpu: Any, machine: "MachineType", price: "VmPrice | None") -> dict[str, Any]:
    from workload.contract import peaks

    device = {row.gpu: row for row in peaks.gpus()}[gpu.device]
    flop_per_s = {peak.precision: peak.tflop_per_s * 1e12 for peak in device.peaks}
    return {
        "provider": cloud,
        "gpu": gpu.name,
        "machine_type": machine.name,
        "memory_gb": gpu.memory_gb,
        **{f"{precision}_flop_per_s": flop_per_s.get(precision) for precision in Precision},
        "bytes_per_s": device.bytes_per_s,
        "vcpus": machine.vcpus,
        "sold_on_demand": not machine.spot_only,
        "zones": list(gpu.zones),
        "gpus": price.gpus if price else machine.gpus[0],
        **{name: getattr(price, name, None) for name in ("region", "usd_per_h", "usd_per_h_spot", "read", "source")},
    }


def gpus_text(form: TableFormat, *, wide: bool = False) -> str:
    """The table as text in the format `form`. TABLE adds notes below the table, wrapped to the terminal's width."""
    found = list(gpu_rows())
    if form is not TableFormat.TABLE:
        return tables.render(found, GPU_DATA, form)
    sources = dict.fromkeys(f"as of {row['read']}: {row['source']}" for row in found if row["read"])
    refused = (f"not offered: {name}*, which {why}" for name, why in _table("aws").table().refused.items())
    notes = [wrapped(as_typed(note), terminal_width(sys.stdout)) for note in (*sources, *refused, *GPU_NOTES)]
    return "\n".join([tables.render([_for_people(row) for row in found], GPU_COLUMNS, form, wide=wide), "", *notes])


def _for_people(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **row,
        **{rate: None if row[rate] is None else f"{row[rate] / 1e12:g}" for rate in RATES},
        "bytes_per_s": round(row["bytes_per_s"] / 1e9),
        "machine_type": row["machine_type"] + (f" ({row['gpus']})" if row["gpus"] > 1 else ""),
        "region": row["region"] or UNKNOWN,
        "usd_per_h": _usd(row["usd_per_h"], UNKNOWN if row["sold_on_demand"] else NOT_SOLD),
        "usd_per_h_spot": _usd(row["usd_per_h_spot"], UNKNOWN),
    }


def _usd(usd_per_h: float | None, otherwise: str) -> str:
    return otherwise if usd_per_h is None else f"{usd_per_h:.3f}"


# \b: the help shows these lines without wrapping them.
GPUS_EXAMPLES = """\b
Examples:
  launch gpus --wide
  launch gpus --format csv > gpus.csv
"""


def show_gpus(*, wide: WideOption = False, output_format: FormatOption = TableFormat.TABLE) -> int:
    """Show the GPUs that a launch can have, their peaks, and what they cost.

    The figures come from tables of this program, each with its source and date.
    """
    print(gpus_text(output_format, wide=wide))
    return ExitCode.DONE

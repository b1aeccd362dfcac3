"""The options of `launch gcp`, `status`, `logs`, `down`, `reap` and `gpus`. What one does is imported when it runs.

Nothing heavy may be imported here: `launch --help` loads neither google nor docker nor what a launch is made of.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from launcher.backends.gcp.options import DEFAULT_DISK_GB, Options, VmDriver, Where
from launcher.options import Format, FormatOption, run_options
from workload.contract import tables
from workload.contract.errors import ExitCode
from workload.contract.invocation import as_typed
from workload.contract.program import WideOption

if TYPE_CHECKING:
    from launcher.jobs import commands

# \b keeps the lines as they are.
GCP_EXAMPLES = """\b
Examples:
  launch gcp --gpu t4 --dry-run
  launch gcp --gpu t4 --zone us-central1-a --precision amp --profile ncu
  launch gcp --gpu l4 --spot --rerun-preempted 2 --repeats 3 --max-cost 1
  launch gcp --gpu v100 --max-run-time 90m --detach
  launch gcp --gpu t4 --image HOST/PROJECT/NAME@sha256:DIGEST --no-external-ip
"""
GPUS_EXAMPLES = """\b
Examples:
  launch gpus
  launch gpus --live
  launch gpus --format csv > gpus.csv
"""
STATUS_EXAMPLES = """\b
Examples:
  launch status
  launch status 3fa9c1
  launch status --all --format json
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
RUN_HELP = "the launch's name, a start or end of it that no other has (its 6 last digits), or a run that it left"


def _gpu_names() -> list[str]:
    from launcher.backends.gcp import gpus

    return list(gpus.load())


def _zone_names(context: typer.Context) -> list[str]:
    """The zones of the GPU that is typed already, else of every GPU."""
    from launcher.backends.gcp import gpus

    known = gpus.load()
    row = known.get(str(context.params.get("gpu")))
    return sorted({zone for each in ([row] if row else known.values()) for zone in each.zones})


def _text(flag: str, metavar: str, about: str) -> Any:
    return typer.Option(flag, metavar=metavar, help=about, show_default=False)


ProjectOption = Annotated[str | None, _text("--project", "P", "the Google Cloud project (that of your credentials)")]
BucketOption = Annotated[str | None, _text("--bucket", "B", "where launches and bundles lie (PROJECT-rooflaunch)")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("gcp", epilog=GCP_EXAMPLES)(run_options(run_gcp))
    app.command("gpus", epilog=GPUS_EXAMPLES)(show_gpus)
    app.command("status", epilog=STATUS_EXAMPLES)(show_status)
    app.command("logs", epilog=LOGS_EXAMPLES)(show_logs)
    app.command("down", epilog=DOWN_EXAMPLES)(take_down)
    app.command("reap", epilog=REAP_EXAMPLES)(reap)


def run_gcp(
    *,
    given: dict[str, object],
    gpu: Annotated[
        str, typer.Option(metavar="t4|l4|v100|a100|…", help="which GPU the VM has", autocompletion=_gpu_names)
    ],
    zone: Annotated[
        list[str] | None,
        typer.Option(
            metavar="Z",
            help="try this zone first; again for more (every zone with the GPU, known prices first)",
            autocompletion=_zone_names,
            show_default=False,
        ),
    ] = None,
    fallback: Annotated[
        bool, typer.Option("--fallback/--no-fallback", help="other zones too if the named ones have none free")
    ] = True,
    spot: Annotated[
        bool, typer.Option("--spot", help="cheaper, and may be taken back at any time", show_default=False)
    ] = False,
    rerun_preempted: Annotated[
        int, typer.Option(metavar="N", min=0, max=20, help="start a spot VM that was taken back again, N times at most")
    ] = 0,
    machine_type: Annotated[str | None, _text("--machine-type", "M", "instead of the GPU's usual one")] = None,
    gpu_count: Annotated[int, typer.Option(metavar="N", min=1, help="GPUs of the VM; a run uses one")] = 1,
    max_run_time: Annotated[
        str, typer.Option(metavar="TIME", help="when the cloud deletes the VM, as 60m or 1h30m")
    ] = "60m",
    max_cost: Annotated[
        float | None, typer.Option(metavar="USD", help="lower the time limit to what this buys", show_default=False)
    ] = None,
    usd_per_h: Annotated[
        float | None,
        typer.Option(metavar="USD", help="your own price per hour of VM, disk and address", show_default=False),
    ] = None,
    disk_gb: Annotated[int, typer.Option(metavar="GB", help="size of the VM's disk")] = DEFAULT_DISK_GB,
    external_ip: Annotated[
        bool,
        typer.Option("--external-ip/--no-external-ip", help="without one the network needs Cloud NAT"),
    ] = True,
    image: Annotated[
        str | None, _text("--image", "REF", "run this image, by digest, instead of the one for this code")
    ] = None,
    vm_image: Annotated[
        str | None,
        _text("--vm-image", "PROJECT/FAMILY", "what the VM boots, Ubuntu or Debian; or an image's or a family's path"),
    ] = None,
    vm_driver: Annotated[
        VmDriver | None,
        typer.Option(
            metavar="preinstalled|install",
            help="whether --vm-image has a driver (it has, but for Ubuntu's and Debian's own)",
            show_default=False,
        ),
    ] = None,
    secure_boot: Annotated[
        bool | None,
        typer.Option(
            "--secure-boot/--no-secure-boot", help="boot signed code alone; the driver too", show_default="off"
        ),
    ] = None,
    vtpm: Annotated[bool | None, typer.Option("--vtpm/--no-vtpm", help="a virtual TPM", show_default="on")] = None,
    integrity_monitoring: Annotated[
        bool | None,
        typer.Option(
            "--integrity-monitoring/--no-integrity-monitoring",
            help="compare each boot with the first one; needs the vTPM",
            show_default="on",
        ),
    ] = None,
    project: ProjectOption = None,
    bucket: BucketOption = None,
    repository: Annotated[str | None, _text("--repository", "HOST/NAME", "where the image is pushed to")] = None,
    service_account: Annotated[str | None, _text("--service-account", "EMAIL", "what the VM acts as")] = None,
    network: Annotated[str | None, _text("--network", "NAME", "the VM's network (default)")] = None,
    subnetwork: Annotated[str | None, _text("--subnetwork", "NAME", "the VM's subnetwork")] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="leave as soon as the VM runs; it ends by itself", show_default=False)
    ] = False,
    output: Annotated[Path, typer.Option("-o", "--output", help="folder for the bundles")] = Path("results"),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the plan and stop", show_default=False)] = False,
    request: Annotated[
        bool,
        typer.Option("--request", help="with --dry-run: also what Compute Engine would be sent", show_default=False),
    ] = False,
    output_format: FormatOption = Format.TABLE,
) -> int:
    """Train on a VM of Google Cloud, and bring the bundles home.

    The VM deletes itself at its end, and the cloud deletes it at its time limit, whatever becomes of this command.
    """
    from launcher.backends.gcp import choices
    from launcher.jobs import commands

    options = Options(
        gpu=gpu,
        zones=tuple(zone or ()),
        spot=spot,
        machine_type=machine_type,
        gpu_count=gpu_count,
        max_run_time_s=choices.parse_duration_s(max_run_time, "--max-run-time"),
        max_cost_usd=max_cost,
        usd_per_h=usd_per_h,
        external_ip=external_ip,
        fallback=fallback,
        disk_gb=disk_gb,
        rerun_preempted=rerun_preempted,
        vm_image=vm_image,
        vm_driver=vm_driver,
        secure_boot=secure_boot,
        vtpm=vtpm,
        integrity_monitoring=integrity_monitoring,
        image=image,
        repository=repository,
        service_account=service_account,
        network=network,
        subnetwork=subnetwork,
    )
    return commands.launch(
        _place(project, bucket),
        options,
        given,
        detach=detach,
        output=output,
        dry_run=dry_run,
        request=request,
        output_format=output_format,
    )


def _place(project: str | None, bucket: str | None) -> "commands.Place":
    from launcher.jobs import commands

    return commands.Place(backend="gcp", where=Where(project=project, bucket=bucket))


def show_status(
    *,
    name: Annotated[str | None, typer.Argument(metavar="RUN", help=RUN_HELP, show_default=False)] = None,
    every: Annotated[
        bool, typer.Option("--all", help="not only the newest and those with a VM", show_default=False)
    ] = False,
    project: ProjectOption = None,
    bucket: BucketOption = None,
    output_format: FormatOption = Format.TABLE,
) -> int:
    """Show what has become of launches.

    It asks the bucket and the VMs, so it works on any machine and for launches whose command was ended.
    """
    from launcher.jobs import commands

    return commands.show_status(_place(project, bucket), name=name, every=every, output_format=output_format)


def show_logs(
    *,
    name: Annotated[str, typer.Argument(metavar="RUN", help=RUN_HELP)],
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="go on until the VM is gone", show_default=False)
    ] = False,
    project: ProjectOption = None,
    bucket: BucketOption = None,
    output_format: FormatOption = Format.TABLE,
) -> int:
    """Show what a VM says.

    That is its serial port while it is there, then the log that it left in the bucket.
    """
    from launcher.jobs import commands

    return commands.show_logs(_place(project, bucket), name=name, follow=follow, output_format=output_format)


def take_down(
    *,
    names: Annotated[list[str] | None, typer.Argument(metavar="RUN", help=RUN_HELP, show_default=False)] = None,
    every: Annotated[
        bool, typer.Option("--all", help="the VMs of all launches in the project", show_default=False)
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="--all without a question", show_default=False)] = False,
    project: ProjectOption = None,
    bucket: BucketOption = None,
    output_format: FormatOption = Format.TABLE,
) -> int:
    """Delete VMs now, and wait until they are gone.

    What they have uploaded stays.
    """
    from launcher.jobs import commands

    return commands.take_down(
        _place(project, bucket), names=names or (), every=every, yes=yes, output_format=output_format
    )


def reap(
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="show what would be deleted", show_default=False)] = False,
    project: ProjectOption = None,
    bucket: BucketOption = None,
    output_format: FormatOption = Format.TABLE,
) -> int:
    """Delete VMs that are stopped for good or past their time limit, and disks past it.

    The cloud deletes a VM at its limit, and never one that is stopped; this is for what is left.
    """
    from launcher.jobs import commands

    return commands.reap(_place(project, bucket), dry_run=dry_run, output_format=output_format)


def show_gpus(
    *,
    live: Annotated[
        bool, typer.Option("--live", help="with today's prices, by your credentials", show_default=False)
    ] = False,
    wide: WideOption = False,
    project: ProjectOption = None,
    output_format: Annotated[tables.Format, typer.Option("--format", help="what stdout gets")] = tables.Format.TABLE,
) -> int:
    """Show the GPUs that a launch can have, their peaks, and what they cost.

    From tables that come with this program, each figure with its source and date, or from Google's price list of today:
    without --live nobody is asked, and what was read within a day is shown.
    """
    from launcher.backends.gcp import offers
    from launcher.backends.gcp.backend import backend

    prices = backend.prices(backend.settings(Where(project=project)).project if live else None)
    if live and prices.prices is None:
        print(f"warning: these are the prices of the table: {prices.why}", file=sys.stderr)
        if prices.hint:
            print(f"hint: {as_typed(prices.hint)}", file=sys.stderr)
    print(offers.render(output_format, wide=wide, today=prices.prices))
    return ExitCode.DONE

"""`launch gcp`, and `status`, `logs`, `down` and `reap` for the launches that it makes."""

import json
import os
import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from launcher import build as building
from launcher import engine as docker_engine
from launcher import images, table
from launcher.engine import Engine
from launcher.gcp import cleanup, compute, gpus, launches, logs
from launcher.gcp import plan as planning
from launcher.gcp.compute import Compute
from launcher.gcp.plan import Options, Plan
from launcher.gcp.progress import Progress
from launcher.gcp.provision import remove
from launcher.gcp.records import LAUNCHES
from launcher.gcp.resources import Instance
from launcher.gcp.run import LeftRunningError, Outcome, run
from launcher.gcp.settings import Settings, resolve_settings
from launcher.options import Format, FormatOption, run_options
from workload.errors import ExitCode, InterruptedRunError, NothingToDoError, RooflaunchError, ToolError, UsageError
from workload.interrupt import stoppable
from workload.invocation import as_typed
from workload.spec import Device, Resolved, resolve
from workload.storage import bucket as storage
from workload.storage.bucket import Bucket
from workload.text import printable

# \b keeps the lines as they are.
GCP_EXAMPLES = """\b
Examples:
  launch gcp --gpu t4 --dry-run
  launch gcp --gpu t4 --zone us-central1-a --precision amp --profile ncu
  launch gcp --gpu l4 --spot --rerun-preempted 2 --repeats 3 --max-cost 1
  launch gcp --gpu v100 --max-run-time 90m --detach
  launch gcp --gpu t4 --image HOST/PROJECT/NAME@sha256:DIGEST --no-external-ip
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


@dataclass(frozen=True, kw_only=True)
class World:
    """What a command reaches out to; a test lays out one of its own."""

    compute: Callable[[str], Compute]
    bucket: Callable[[str], Bucket]
    engine: Callable[[], Engine]
    default_project: Callable[[], str | None]
    now: Callable[[], float]
    sleep: Callable[[float], None]
    is_terminal: Callable[[], bool]
    confirm: Callable[[str, bool], bool]


def this_world() -> World:
    """The real one."""
    return World(
        compute=compute.connect,
        bucket=lambda name: storage.connect(name, prefix=LAUNCHES, jobs=launches.READERS),
        engine=docker_engine.connect,
        default_project=compute.default_project,
        now=time.time,
        sleep=time.sleep,
        is_terminal=lambda: sys.stdin.isatty() and sys.stderr.isatty(),
        confirm=lambda question, default: typer.confirm(question, default=default, err=True),
    )


def _gpu_names() -> list[str]:
    return list(gpus.load())


def _zone_names(context: typer.Context) -> list[str]:
    """The zones of the GPU that is typed already, else of every GPU."""
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
        float | None, typer.Option(metavar="USD", help="price per hour, where the table has none", show_default=False)
    ] = None,
    disk_gb: Annotated[int, typer.Option(metavar="GB", help="size of the VM's disk")] = planning.DEFAULT_DISK_GB,
    external_ip: Annotated[
        bool,
        typer.Option(
            "--external-ip/--no-external-ip", help="without one the network needs NAT (infra/: create_network)"
        ),
    ] = True,
    image: Annotated[
        str | None, _text("--image", "REF", "run this image, by digest, instead of the one for this code")
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
    output_format: FormatOption = Format.TABLE,
) -> int:
    """Train on a VM of Google Cloud, and bring the bundles home.

    The VM deletes itself at its end, and the cloud deletes it at its time limit, whatever becomes of this command.
    """
    world = this_world()
    typed = {
        "project": project,
        "bucket": bucket,
        "repository": repository,
        "service_account": service_account,
        "network": network,
        "subnetwork": subnetwork,
    }
    settings = _settings(world, typed, offline=dry_run)
    if detach and rerun_preempted:
        raise UsageError(
            f"--detach leaves nobody to start a preempted VM again; got --rerun-preempted {rerun_preempted}",
            hint="one of the two",
        )
    options = Options(
        gpu=gpu,
        zones=tuple(zone or ()),
        spot=spot,
        machine_type=machine_type,
        gpu_count=gpu_count,
        max_run_time_s=planning.parse_duration_s(max_run_time, "--max-run-time"),
        max_cost_usd=max_cost,
        usd_per_h=usd_per_h,
        external_ip=external_ip,
        fallback=fallback,
        disk_gb=disk_gb,
        rerun_preempted=rerun_preempted,
    )
    resolved = resolve(given, os.environ, Path.cwd())
    # Whatever is wrong with what was asked for is told before anything is built, pushed or asked.
    plan = _plan(world, resolved, options, settings, image or _image_to_be(resolved, options, settings))
    if dry_run:
        print(json.dumps(plan.to_json(), indent=1) if output_format is Format.JSON else plan.text())
        return ExitCode.DONE
    started: list[tuple[Compute, Bucket]] = []
    try:
        with stoppable():
            outcome = _launch(world, resolved, plan, image, output=output, detach=detach, started=started)
    except LeftRunningError as left:
        _ask_whether_to_keep(world, left, *started[0])
        raise
    return _tell(outcome, plan, output_format)


def _settings(world: World, typed: Mapping[str, str | None], *, offline: bool = False) -> Settings:
    default_project = _no_project if offline else world.default_project
    return resolve_settings(typed, os.environ, Path.cwd(), default_project=default_project)[0]


def _no_project() -> NoReturn:
    """Credentials may have to be asked for over the network, even for the name of their project."""
    raise UsageError(
        "no project is set, and a dry run does not ask the credentials for theirs", hint="--project PROJECT"
    )


def _plan(world: World, resolved: Resolved, options: Options, settings: Settings, image: str) -> Plan:
    launched = datetime.fromtimestamp(world.now(), UTC)
    return planning.make_plan(resolved, options, settings, image=image, now=launched, token=secrets.token_hex(3))


def _flavour(resolved: Resolved, options: Options) -> str:
    return "cpu" if resolved.spec.device is Device.CPU else gpus.require(options.gpu).flavour


def _image_to_be(resolved: Resolved, options: Options, settings: Settings) -> str:
    """What the image for this code will be called; its digest is not known before it is pushed."""
    recipe = images.make_recipe(images.require_flavour(_flavour(resolved, options)), commit=images.current_commit())
    return f"{settings.repository}:{recipe.tag.partition(':')[2]}"


def _launch(
    world: World,
    resolved: Resolved,
    draft: Plan,
    image: str | None,
    *,
    output: Path,
    detach: bool,
    started: list[tuple[Compute, Bucket]],
) -> Outcome:
    """Connect, have the image where the VM can pull it, and run; `started` gets the connections, for afterwards."""
    options, settings = draft.options, draft.settings
    cloud, bucket = world.compute(settings.project), world.bucket(settings.bucket)
    started.append((cloud, bucket))
    if image is None:
        # Before an image is built and sent for minutes: whether this project answers us at all.
        cloud.project_quotas()
    reference = _by_digest(world, image) if image else _pushed(world, _flavour(resolved, options), settings.repository)
    plan = _plan(world, resolved, options, settings, reference)
    print(_summary(plan), file=sys.stderr)
    progress = Progress(sys.stderr, world.now)
    try:
        return run(
            plan,
            cloud,
            bucket,
            output=output,
            detach=detach,
            now=world.now,
            sleep=world.sleep,
            on_event=progress,
        )
    finally:
        progress.clear()


def _summary(plan: Plan) -> str:
    """The plan without the request that is sent."""
    return plan.text().partition("\nrequest ")[0].rstrip()


def _by_digest(world: World, image: str) -> str:
    """A reference that means the same content for ever; a tag is looked up in its registry."""
    if "@sha256:" in image:
        return image
    try:
        digest = world.engine().registry_digest(image)
    except ToolError as error:
        raise ToolError(
            f"--image needs a digest, and the tag of '{image}' cannot be looked up: {error}",
            hint="--image HOST/NAME@sha256:…, as `launch build --push` prints it",
        ) from error
    head, slash, last = image.rpartition("/")
    return f"{head}{slash}{last.partition(':')[0]}@{digest}"


def _pushed(world: World, flavour: str, repository: str) -> str:
    """Have the image for this code in `repository`, built if the engine lacks it; returns it by digest."""
    engine = world.engine()
    row = images.require_flavour(flavour)
    held = engine.image(row.pinned_base)
    recipe = images.make_recipe(row, base_id=held.id if held else "", commit=images.current_commit())
    matching = engine.images({images.FLAVOUR_LABEL: flavour, images.INPUTS_LABEL: recipe.inputs})
    # An image on another base, built with `launch build --base`, is one for this code too.
    built = building.held(recipe, matching[0]) if matching else building.build(engine, recipe)
    try:
        pushed = building.push(engine, built, repository)
    except ToolError as error:
        host = repository.partition("/")[0]
        if host.endswith((".pkg.dev", "gcr.io")):
            raise ToolError(str(error), hint=f"gcloud auth configure-docker {host}, then the same again") from error
        raise
    return f"{repository}@{pushed.digest}"


def _ask_whether_to_keep(world: World, left: LeftRunningError, cloud: Compute, bucket: Bucket) -> None:
    """On a terminal: keep the VM or delete it; raises once it is deleted. No answer keeps it."""
    try:
        if not world.is_terminal() or world.confirm(f"\nKeep '{left.name}' running?", True):
            return
    except (typer.Abort, KeyboardInterrupt):
        return
    if not remove(cloud, left.zone, left.name, now=world.now, sleep=world.sleep):
        raise ToolError(f"'{left.name}' is not confirmed to be gone", hint=f"launch down {left.name}") from left
    said = "its VM was deleted on Ctrl-C"
    cleanup.settle(bucket, left.name, left.zone, ExitCode.INTERRUPTED, said, now=world.now)
    raise InterruptedRunError(f"interrupted; '{left.name}' is deleted", hint="launch again") from left


def _tell(outcome: Outcome, plan: Plan, output_format: Format) -> int:
    if output_format is Format.JSON:
        print(json.dumps(outcome.to_json(), indent=1))
    elif outcome.detached:
        rows = [("launch", outcome.name), ("zone", outcome.zone)]
        rows += [("next", f"launch {verb}") for verb in (f"status {outcome.name}", f"logs {outcome.name} -f")]
        print(as_typed("\n".join(f"{label:<8} {text}" for label, text in rows)))
    else:
        lines = [as_typed(table.render(outcome.bundles))] if outcome.bundles else []
        print("\n".join([*lines, *(f"  {label:<13} {text}" for label, text in _closing(outcome, plan))]))
    if outcome.error:
        raise outcome.error
    return outcome.exit_code


def _closing(outcome: Outcome, plan: Plan) -> list[tuple[str, str]]:
    """What the launch took, below the table of what it measured."""
    price = plan.request.price(outcome.zone)
    cost = "unknown: no price for this zone" if price is None else "unknown: the VM left no account"
    if price is not None and outcome.usd is not None:
        per_h = f"{price.usd_per_h:g} USD per hour as of {price.read}"
        cost = f"{outcome.usd:.3f} USD, at {per_h}; without disk and egress"
    rows = [("VM", f"{plan.request.machine_type} in {outcome.zone}"), ("cost", cost)]
    if outcome.attempts > 1:
        rows.append(("attempts", f"{outcome.attempts}, the last one counted"))
    if outcome.tried:
        rows.append(("tried", ", ".join(f"{each.zone}: {each.code}" for each in outcome.tried)))
    return rows


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
    world = this_world()
    cloud, store = _connect(world, project, bucket)
    now_s = world.now()
    if name is not None:
        launch = launches.one_launch(cloud, store, _find(cloud, store, name), now_s=now_s)
        text = as_typed(launches.render_one(launch, store.name, now_s))
        print(json.dumps(launch.to_json(), indent=1) if output_format is Format.JSON else text)
        return ExitCode.DONE
    found = launches.list_launches(cloud, store, now_s=now_s, limit=None if every else launches.SHOWN)
    if output_format is Format.JSON:
        print(json.dumps([each.to_json() for each in found], indent=1))
    elif found:
        print(launches.render(found, now_s))
    else:
        print(f"no launch in gs://{store.name}, and no VM of one in {cloud.project}", file=sys.stderr)
    return ExitCode.DONE


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
    world = this_world()
    cloud, store = _connect(world, project, bucket)
    whole = _find(cloud, store, name)
    for piece in logs.read(cloud, store, whole, follow=follow, now=world.now, sleep=world.sleep):
        if output_format is Format.JSON:
            print(json.dumps({"launch": whole, "source": piece.source, "text": piece.text}), flush=True)
        else:
            print(piece.text, end="", flush=True)
    return ExitCode.DONE


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
    if bool(names) == every:
        raise UsageError("launch down takes launches or --all, one of the two", hint="launch down RUN, or --all")
    world = this_world()
    settings = _settings(world, {"project": project, "bucket": bucket})
    cloud = world.compute(settings.project)
    store = _bucket_or_none(world, settings)
    there = cleanup.running(cloud)
    chosen = there if every else _chosen(names or [], there, store)
    if every and chosen and not yes:
        _confirm_all(world, chosen, settings.project)
    removed = cleanup.down(chosen, cloud, store, now=world.now, sleep=world.sleep)
    return _told(removed, output_format, nothing=f"no VM of a launch in {settings.project}")


def _chosen(words: Sequence[str], there: Sequence[Instance], store: Bucket | None) -> list[Instance]:
    """The VMs that are meant; what has none any more is told, and an error if none is left."""
    by_name = {each.name: each for each in there}
    chosen: dict[str, Instance] = {}
    for word in words:
        try:
            name = launches.find(word, list(by_name), None)
        except NothingToDoError:
            if store is None:
                raise
            name = launches.find(word, launches.known_names(store), store)
        if name in by_name:
            chosen[name] = by_name[name]
        else:
            print(f"'{name}' has no VM: it is gone already", file=sys.stderr)
    return list(chosen.values())


def _confirm_all(world: World, chosen: Sequence[Instance], project: str) -> None:
    for each in chosen:
        print(f"{each.name}  {each.zone}  {each.status}", file=sys.stderr)
    question = f"Delete {'this VM' if len(chosen) == 1 else f'these {len(chosen)} VMs'} in {project}?"
    if not world.is_terminal():
        raise UsageError(f"--all deletes {len(chosen)} VMs and there is no terminal to ask on", hint="--all --yes")
    if not world.confirm(question, False):
        raise InterruptedRunError("nothing is deleted", hint="launch down RUN, for one of them")


def reap(
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="show what would be deleted", show_default=False)] = False,
    project: ProjectOption = None,
    bucket: BucketOption = None,
    output_format: FormatOption = Format.TABLE,
) -> int:
    """Delete VMs and disks that are past their time limit.

    The cloud itself deletes them then; this is for what it failed to delete.
    """
    world = this_world()
    settings = _settings(world, {"project": project, "bucket": bucket})
    cloud = world.compute(settings.project)
    left = cleanup.leftovers(cloud, world.now())
    nothing = f"nothing of a launch is past its limit in {settings.project}"
    if not dry_run:
        return _told(cleanup.reap(left, cloud, now=world.now, sleep=world.sleep), output_format, nothing=nothing)
    if output_format is Format.JSON:
        print(json.dumps([each.to_json() for each in left], indent=1))
    else:
        print("\n".join(f"{each.kind} {each.name} in {each.zone}: {each.why}" for each in left) or nothing)
    return ExitCode.DONE


def _told(removed: Sequence[cleanup.Removed], output_format: Format, *, nothing: str) -> int:
    if output_format is Format.JSON:
        print(json.dumps([each.to_json() for each in removed], indent=1))
    else:
        gone = [f"{each.kind} {each.name} in {each.zone} is gone" for each in removed if each.gone]
        print("\n".join(gone) if removed else nothing)
    cleanup.require_gone(removed)
    return ExitCode.DONE


def _connect(world: World, project: str | None, bucket: str | None) -> tuple[Compute, Bucket]:
    settings = _settings(world, {"project": project, "bucket": bucket})
    return world.compute(settings.project), world.bucket(settings.bucket)


def _bucket_or_none(world: World, settings: Settings) -> Bucket | None:
    """A VM can be deleted without the bucket; what it was is then not noted there."""
    try:
        return world.bucket(settings.bucket)
    except RooflaunchError as error:
        print(f"warning: {printable(str(error))}", file=sys.stderr)
        return None


def _find(cloud: Compute, store: Bucket, word: str) -> str:
    """The name that `word` means, of a launch in the bucket or of a VM."""
    names = launches.known_names(store)
    names += [each.name for each in cleanup.running(cloud) if each.name not in set(names)]
    return launches.find(word, names, store)

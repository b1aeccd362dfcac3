"""`launch gcp`, and `status`, `logs`, `down` and `reap` for the launches that it makes."""

import json
import os
import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import typer

from launcher import build as building
from launcher import images, models, table
from launcher.backends.door import Listing, Removed
from launcher.backends.gcp import catalog, compute, gpus, offers, vm_images
from launcher.backends.gcp import plan as planning
from launcher.backends.gcp.compute import Compute
from launcher.backends.gcp.plan import Options, Plan
from launcher.backends.gcp.provision import remove
from launcher.backends.gcp.resources import Instance
from launcher.backends.gcp.run import LeftRunningError, Outcome, run
from launcher.backends.gcp.settings import ANY_PROJECT, Settings, resolve_settings
from launcher.jobs import cleanup, launches, logs
from launcher.jobs.launches import Launch
from launcher.jobs.progress import Progress
from launcher.jobs.records import LAUNCHES
from launcher.machine import engine as docker_engine
from launcher.machine.engine import Engine
from launcher.options import Format
from workload.contract import tables
from workload.contract.errors import (
    ExitCode,
    InterruptedRunError,
    NothingToDoError,
    RooflaunchError,
    ToolError,
    UsageError,
)
from workload.contract.interrupt import stoppable
from workload.contract.invocation import as_typed
from workload.contract.spec import Device, Resolved, resolve
from workload.contract.text import printable, terminal_width
from workload.storage import gcs as storage
from workload.storage.gcs import Bucket


@dataclass(frozen=True, kw_only=True)
class World:
    """What a command reaches out to; a test lays out one of its own.

    `now` is this machine's clock, which may be hours off: what is asked of a cloud goes by `Compute.now_s`.
    """

    compute: Callable[[str], Compute]
    bucket: Callable[[str], Bucket]
    engine: Callable[[], Engine]
    default_project: Callable[[], str | None]
    now: Callable[[], float]
    sleep: Callable[[float], None]
    is_terminal: Callable[[], bool]
    confirm: Callable[[str, bool], bool]
    # Of a project, or without one as they were kept: then nobody is asked.
    prices: Callable[[str | None], catalog.Current] = lambda _: catalog.Current()


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
        prices=_prices,
    )


def _prices(project: str | None) -> catalog.Current:
    now_s = time.time()
    return catalog.cached(now_s) if project is None else catalog.current(project, now_s=now_s)


def run_gcp(
    options: Options,
    given: Mapping[str, object],
    where: Mapping[str, str | None],
    *,
    image: str | None,
    detach: bool,
    output: Path,
    dry_run: bool,
    request: bool,
    output_format: Format,
) -> int:
    """`launch gcp`; `given` are the run options that were typed, `where` the settings."""
    world = this_world()
    gpus.require(options.gpu)
    if detach and options.rerun_preempted:
        raise UsageError(
            f"--detach leaves nobody to start a preempted VM again; got --rerun-preempted {options.rerun_preempted}",
            hint="one of the two",
        )
    if request and not dry_run:
        raise UsageError("--request shows what a dry run would send", hint="--dry-run --request")
    resolved = resolve(given, os.environ, Path.cwd())
    models.require(resolved.spec.model)
    settings = _settings(world, where, offline=dry_run)
    # Whatever is wrong with what was asked for is told before anything is built, pushed or asked.
    # Its name and its time are this machine's; what is launched has the cloud's.
    prices = world.prices(None if dry_run or options.usd_per_h is not None else settings.project)
    reference = image or _image_to_be(resolved, options, settings)
    plan = _plan(resolved, options, settings, reference, prices, now_s=world.now())
    if dry_run:
        print(_shown(plan, request=request, output_format=output_format))
        return ExitCode.DONE
    started: list[tuple[Compute, Bucket]] = []
    try:
        with stoppable():
            outcome = _launch(world, resolved, plan, image, prices, output=output, detach=detach, started=started)
    except LeftRunningError as left:
        _ask_whether_to_keep(world, left, *started[0])
        raise
    return _tell(outcome, plan, output_format)


def _shown(plan: Plan, *, request: bool, output_format: Format) -> str:
    """A dry run's answer."""
    if output_format is Format.JSON:
        return json.dumps(plan.to_json(), indent=1)
    return plan.text(terminal_width(sys.stdout)) + (f"\n\n{plan.request_text()}" if request else "")


def _settings(world: World, where: Mapping[str, str | None], *, offline: bool = False) -> Settings:
    # The name of the credentials' project may have to be asked for over the network, which a dry run does not.
    default_project = (lambda: ANY_PROJECT) if offline else world.default_project
    return resolve_settings(where, os.environ, Path.cwd(), default_project=default_project)[0]


def _plan(
    resolved: Resolved, options: Options, settings: Settings, image: str, prices: catalog.Current, *, now_s: float
) -> Plan:
    return planning.make_plan(
        resolved,
        options,
        settings,
        image=image,
        now=datetime.fromtimestamp(now_s, UTC),
        token=secrets.token_hex(3),
        today=prices.prices,
        notes=[f"prices are those of a table: {prices.why}"] if prices.why and options.usd_per_h is None else [],
    )


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
    prices: catalog.Current,
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
    vm_image, notes = vm_images.resolve(draft.vm_images, cloud, is_named=options.vm_image is not None)
    if image:
        reference = _by_digest(world, image)
        notes += _architecture_notes(world, reference)
    else:
        reference = _pushed(world, _flavour(resolved, options), settings.repository)
    plan = _plan(resolved, options, settings, reference, prices, now_s=cloud.now_s()).on_image(vm_image, notes)
    print(plan.text(terminal_width(sys.stderr)), file=sys.stderr)
    progress = Progress(sys.stderr, cloud.now_s)
    try:
        return run(
            plan,
            cloud,
            bucket,
            output=output,
            detach=detach,
            now=cloud.now_s,
            sleep=world.sleep,
            on_event=progress,
        )
    finally:
        progress.clear()


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


def _architecture_notes(world: World, reference: str) -> tuple[str, ...]:
    """Raises `UsageError` for an image that no VM runs; where the registry cannot be asked, that it is unchecked."""
    try:
        platforms = world.engine().registry_platforms(reference)
    except ToolError as error:
        return (f"whether the image is one for {images.VM_PLATFORM} is not checked: {error}",)
    if not platforms:
        return (f"whether the image is one for {images.VM_PLATFORM} is not checked: its registry does not tell",)
    if images.VM_PLATFORM not in platforms:
        raise UsageError(
            f"'{reference}' is an image for {', '.join(sorted(platforms))}; the VMs are {images.VM_PLATFORM}",
            hint=f"--image of one for {images.VM_PLATFORM}, as `launch build --push` makes it",
        )
    return ()


def _pushed(world: World, flavour: str, repository: str) -> str:
    """Have the image for this code in `repository`, built if the engine lacks it; returns it by digest."""
    engine = world.engine()
    row = images.require_flavour(flavour)
    held = engine.image(row.pinned_base)
    platform = building.platform_of_a_vm(engine)
    recipe = images.make_recipe(row, base_id=held.id if held else "", commit=images.current_commit(), platform=platform)
    labelled = engine.images({images.FLAVOUR_LABEL: flavour, images.INPUTS_LABEL: recipe.inputs})
    matching = [image for image in labelled if image.architecture in ("", images.VM_ARCHITECTURE)]
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
    if not remove(cloud, left.zone, left.name, now=cloud.now_s, sleep=world.sleep):
        raise ToolError(f"'{left.name}' is not confirmed to be gone", hint=f"launch down {left.name}") from left
    said = "its VM was deleted on Ctrl-C"
    cleanup.settle(bucket, left.name, left.zone, ExitCode.INTERRUPTED, said, now=cloud.now_s)
    raise InterruptedRunError(f"interrupted; '{left.name}' is deleted", hint="launch again") from left


def _tell(outcome: Outcome, plan: Plan, output_format: Format) -> int:
    if output_format is Format.JSON:
        print(json.dumps(outcome.to_json(), indent=1))
    elif outcome.detached:
        rows = [("launch", outcome.name), ("zone", outcome.zone)]
        rows += [("next", f"launch {verb}") for verb in (f"status {outcome.name}", f"logs {outcome.name} -f")]
        print(as_typed("\n".join(f"{label:<8} {text}" for label, text in rows)))
    else:
        lines = [table.render(outcome.bundles, width=terminal_width(sys.stdout))] if outcome.bundles else []
        print("\n".join([*lines, *(f"  {label:<13} {text}" for label, text in _closing(outcome, plan))]))
    if outcome.error:
        raise outcome.error
    return outcome.exit_code


def _closing(outcome: Outcome, plan: Plan) -> list[tuple[str, str]]:
    """What the launch took, below the table of what it measured."""
    price = plan.request.price(outcome.zone)
    cost = "unknown: no price for this zone" if price is None else "unknown: nobody says when the VM began"
    if price is not None and outcome.usd is not None:
        per_h = f"{price.whole_usd_per_h:.4g} USD per hour as of {price.read}"
        since = f"from {outcome.billed_from} to {outcome.billed_to}"
        cost = f"{outcome.usd:.3f} USD {since}, at {per_h}; without {price.uncounted}"
    rows = [("VM", f"{plan.request.machine_type} in {outcome.zone}"), ("cost", cost)]
    if outcome.attempts > 1:
        rows.append(("attempts", f"{outcome.attempts}, the last one counted"))
    if outcome.tried:
        rows.append(("tried", ", ".join(f"{each.zone}: {each.code}" for each in outcome.tried)))
    return rows


def show_gpus(*, live: bool, wide: bool, project: str | None, output_format: tables.Format) -> int:
    """`launch gpus`."""
    world = this_world()
    prices = world.prices(_settings(world, {"project": project}).project if live else None)
    if live and prices.prices is None:
        print(f"warning: these are the prices of the table: {prices.why}", file=sys.stderr)
        if prices.hint:
            print(f"hint: {as_typed(prices.hint)}", file=sys.stderr)
    print(offers.render(output_format, wide=wide, today=prices.prices))
    return ExitCode.DONE


def show_status(
    *, name: str | None, every: bool, project: str | None, bucket: str | None, output_format: Format
) -> int:
    """`launch status`."""
    world = this_world()
    cloud, store = _connect(world, project, bucket)
    now_s = cloud.now_s()
    if name is not None:
        launch = launches.one_launch(cloud, store, _find(cloud, store, name), now_s=now_s)
        text = as_typed(launches.render_one(launch, store.name, now_s))
        _warn_of_stopped([launch], now_s)
        print(json.dumps(launch.to_json(), indent=1) if output_format is Format.JSON else text)
        return ExitCode.DONE
    found = launches.list_launches(cloud, store, now_s=now_s, limit=None if every else launches.SHOWN)
    _warn_of_stopped(found.there, now_s)
    if found.unreachable:
        silent = ", ".join(found.unreachable)
        print(f"warning: no answer from {silent}: a VM there that the bucket lacks is not shown", file=sys.stderr)
    if output_format is Format.JSON:
        print(json.dumps([each.to_json() for each in found], indent=1))
    elif found.there:
        print(launches.render(found.there, now_s))
    elif not found.unreachable:
        print(f"no launch in gs://{store.name}, and no VM of one in {cloud.project}", file=sys.stderr)
    return ExitCode.DONE


def _warn_of_stopped(shown: Sequence[Launch], now_s: float) -> None:
    stopped = [each.seen.name for each in shown if each.seen.instance and each.seen.instance.stopped_for_good(now_s)]
    if stopped:
        vms = "a VM is" if len(stopped) == 1 else f"{len(stopped)} VMs are"
        left = f"warning: {vms} stopped, which no cloud deletes: {', '.join(stopped)}"
        print(f"{left}\nhint: {as_typed('launch reap')}", file=sys.stderr)


def show_logs(*, name: str, follow: bool, project: str | None, bucket: str | None, output_format: Format) -> int:
    """`launch logs`."""
    world = this_world()
    cloud, store = _connect(world, project, bucket)
    whole = _find(cloud, store, name)
    for piece in logs.read(cloud, store, whole, follow=follow, now=cloud.now_s, sleep=world.sleep):
        if output_format is Format.JSON:
            print(json.dumps({"launch": whole, "source": piece.source, "text": piece.text}), flush=True)
        else:
            print(piece.text, end="", flush=True)
    return ExitCode.DONE


def take_down(
    *, names: Sequence[str], every: bool, yes: bool, project: str | None, bucket: str | None, output_format: Format
) -> int:
    """`launch down`."""
    if bool(names) == every:
        raise UsageError("launch down takes launches or --all, one of the two", hint="launch down RUN, or --all")
    world = this_world()
    settings = _settings(world, {"project": project, "bucket": bucket})
    cloud = world.compute(settings.project)
    store = _bucket_or_none(world, settings)
    there = cleanup.running(cloud)
    chosen, unknown = (list(there), []) if every else _chosen(names, there, cloud, store)
    if every and chosen and not yes:
        _confirm_all(world, chosen, settings.project)
    removed = cleanup.down(chosen, cloud, store, now=cloud.now_s, sleep=world.sleep) + unknown
    unlisted = there.unreachable if every else ()
    return _told(removed, output_format, nothing=f"no VM of a launch in {settings.project}", unlisted=unlisted)


def _chosen(
    words: Sequence[str], there: Listing[Instance], cloud: Compute, store: Bucket | None
) -> tuple[list[Instance], list[Removed]]:
    """The VMs that are meant, and those of which nothing is known; what has none any more is told."""
    by_name = {each.name: each for each in there}
    chosen: dict[str, Instance] = {}
    unknown: dict[str, Removed] = {}
    for word in words:
        name = _named(word, list(by_name), there, store)
        vm, silent = by_name.get(name), list[str]()
        if vm is None and there.unreachable and store is not None:
            vm, silent = cleanup.look_in(cloud, launches.unlisted(there, launches.look(store, name, None)), name)
        if vm is not None:
            chosen[name] = vm
        elif silent:
            unknown[name] = cleanup.no_answer("VM", name, silent)
        else:
            print(f"'{name}' has no VM: it is gone already", file=sys.stderr)
    return list(chosen.values()), list(unknown.values())


def _named(word: str, names: list[str], there: Listing[Instance], store: Bucket | None) -> str:
    """The launch that is meant, of those that have a VM or are in the bucket."""
    try:
        return launches.find(word, names, None)
    except NothingToDoError:
        with suppress(NothingToDoError):
            if store is not None:
                return launches.find(word, launches.known_names(store), store)
        if not there.unreachable:
            raise
        silent = ", ".join(there.unreachable)
        raise ToolError(
            f"whether '{printable(word)}' has a VM is not known: {silent} does not answer",
            hint="the same command again; launch status",
        ) from None


def _confirm_all(world: World, chosen: Sequence[Instance], project: str) -> None:
    for each in chosen:
        print(f"{each.name}  {each.zone}  {each.status}", file=sys.stderr)
    question = f"Delete {'this VM' if len(chosen) == 1 else f'these {len(chosen)} VMs'} in {project}?"
    if not world.is_terminal():
        raise UsageError(f"--all deletes {len(chosen)} VMs and there is no terminal to ask on", hint="--all --yes")
    if not world.confirm(question, False):
        raise InterruptedRunError("nothing is deleted", hint="launch down RUN, for one of them")


def reap(*, dry_run: bool, project: str | None, bucket: str | None, output_format: Format) -> int:
    """`launch reap`."""
    world = this_world()
    settings = _settings(world, {"project": project, "bucket": bucket})
    cloud = world.compute(settings.project)
    left = cleanup.leftovers(cloud)
    nothing = f"nothing of a launch is stopped for good or past its limit in {settings.project}"
    if not dry_run:
        removed = cleanup.reap(left, cloud, now=cloud.now_s, sleep=world.sleep)
        return _told(removed, output_format, nothing=nothing, unlisted=left.unreachable)
    if output_format is Format.JSON:
        print(json.dumps([each.to_json() for each in left], indent=1))
    elif left.there or not left.unreachable:
        print("\n".join(f"{each.kind} {each.name} in {each.zone}: {each.why}" for each in left) or nothing)
    cleanup.require_gone((), left.unreachable)
    return ExitCode.DONE


def _told(removed: Sequence[Removed], output_format: Format, *, nothing: str, unlisted: Sequence[str] = ()) -> int:
    gone = [f"{each.kind} {each.name} in {each.zone} is gone" for each in removed if each.gone]
    if output_format is Format.JSON:
        print(json.dumps([each.to_json() for each in removed], indent=1))
    elif gone or not (removed or unlisted):
        print("\n".join(gone) or nothing)
    cleanup.require_gone(removed, unlisted)
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

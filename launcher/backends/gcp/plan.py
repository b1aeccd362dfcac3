"""Plans the VM of `launch gcp` from the user's options, the table of GPUs and the settings. Uses no network."""

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from launcher.backends.gcp import gpus
from launcher.backends.gcp.compute import Compute
from launcher.backends.gcp.gpus import Driver, GpuOffer, VmImage
from launcher.backends.gcp.options import Options
from launcher.backends.gcp.planned_vm import CLOUD, PROGRAMS, VmPlan, check_size
from launcher.backends.gcp.refusals import DeniedError
from launcher.backends.gcp.settings import ANY_PROJECT, Settings
from launcher.backends.machine_types import compact
from launcher.backends.rented_plan import Draft, draft_of, needs_price, own_price, require, work_notes
from launcher.backends.shared_plan import program_text
from launcher.protocol.records import Price, region_of
from launcher.protocol.task import Task
from launcher.sizes import shown
from workload.contract import prices
from workload.contract.errors import ToolError, UsageError
from workload.contract.spec import Resolved

PROGRAM_FOLDER = Path(__file__).parent
NEEDS_NAT = "without an external address the VM needs Cloud NAT, for its packages"


def make_plan(
    resolved: Resolved,
    options: Options,
    settings: Settings,
    *,
    image: str,
    now: datetime,
    token: str,
    task: Task | None = None,
) -> VmPlan:
    """Plan of `launch gcp`. Reads only this program's own tables (such as gpus.toml) and the VM's start-up programs.

    `task`: runs of a sweep, which replace the run of `resolved`. `image`: reference with a digest, except in a dry run.
    `token`: 6 hex digits that make the name unique. `now` is timezone-aware. Raises `UsageError` for a run that
    a VM cannot do or options that do not fit the GPU, `ToolError` for a broken installation.
    """
    gpu = gpus.require(options.gpu)
    draft = draft_of(CLOUD, gpu, options, resolved, task)
    driver = gpu.vm_image.driver if draft.uses_gpu else Driver.NONE
    zones = _zone_order(gpu, options, settings)
    known = _known_prices(draft, options, gpu, zones, now)
    if options.max_cost_usd is not None:
        unknown = [zone for zone in options.zones if region_of(zone) not in known]
        if not known or unknown:
            raise needs_price(options, CLOUD, f"in {compact(unknown)}" if unknown else "anywhere")
        zones = tuple(zone for zone in zones if region_of(zone) in known)
    more = {
        "project": settings.project,
        "flavour": draft.flavour,
        "vm_image": gpu.vm_image.path,
        "driver": str(driver),
    }
    plan = VmPlan(
        request=draft.request(now, token, image=image, bucket=settings.bucket, zones=zones, known=known, more=more),
        settings=settings,
        gpu=gpu,
        machine=draft.machine,
        vm_images=gpu.vm_images,
        driver=driver,
        options=options,
        zones=zones,
        programs={key: program_text(PROGRAM_FOLDER / name) for key, name in PROGRAMS.items()},
    )
    check_size(plan)
    return replace(plan, notes=(*draft.changed, *_notes(plan)))


def _notes(plan: VmPlan) -> Iterator[str]:
    yield from work_notes(plan, uses_gpu=plan.driver is not Driver.NONE)
    if plan.settings.project == ANY_PROJECT:
        yield f"no project is set: {ANY_PROJECT} stands for your project; name it with --project"
    if plan.ready_s + plan.run_s > plan.limit_s:
        yield f"the run may take longer than the limit of {plan.limit_s} s: --max-run-time"
    if not plan.options.external_ip:
        yield NEEDS_NAT
    if plan.settings.subnetwork and "/" not in plan.settings.subnetwork:
        yield (
            f"every region needs a subnetwork '{plan.settings.subnetwork}'; name it with its region to use only "
            "that region"
        )


def find_image(images: Sequence[VmImage], compute: Compute) -> tuple[VmImage, tuple[str, ...]]:
    """The first image that exists, and notes for the user on missing images before that image.

    The VM boots this image; the container of the run has another one.
    A family is replaced by its newest image, so that every zone and attempt boots the same image.
    Raises `ToolError` if no image exists.
    """
    notes: list[str] = []
    for image in images:
        try:
            newest = compute.get_image(image.project, image.name)
        except DeniedError as error:
            # The user may not look up the image, but perhaps may boot a VM from it.
            notes.append(f"VM image {image.project}/{image.name} could not be looked up: {error}")
            return image, tuple(notes)
        if newest:
            if notes:
                notes.append(f"the VM boots {newest} of {image.project} instead")
            return replace(image, name=newest, is_family=False), tuple(notes)
        notes.append(f"VM image family {image.name} no longer exists in project {image.project}")
    missing = ", ".join(f"{image.project}/{image.name}" for image in images)
    raise ToolError(
        f"no VM image is left, because none of these families exists any more: {missing}",
        hint="a newer version of rooflaunch, which names the families of today",
    )


# The run on a VM, its zones and its prices.


def _zone_order(gpu: GpuOffer, options: Options, settings: Settings) -> tuple[str, ...]:
    """Zones to try: named zones, then other zones of their regions, then zones with a listed price, then the rest.

    With `fallback` False only the named zones. Raises `UsageError` for a zone without the GPU or outside the network.
    """
    reach = _reach(gpu, settings)
    for zone in options.zones:
        if zone not in gpu.zones:
            raise UsageError(
                f"no {gpu.title} in zone '{shown(zone)}'; the zones with one: {compact(gpu.zones)}",
                hint=f"--zone {next(iter(difflib.get_close_matches(zone, gpu.zones, n=1)), gpu.zones[0])}",
            )
        require(
            zone in reach,
            f"zone '{zone}' is not in the region of subnetwork '{settings.subnetwork}'",
            hint=f"--zone {reach[0]}",
        )
    named = tuple(dict.fromkeys(options.zones))
    if not options.fallback:
        return named
    near = {region_of(zone) for zone in named}
    listed = {price.region for price in gpu.prices}
    others = [zone for zone in reach if zone not in named]
    return (*named, *sorted(others, key=lambda zone: (region_of(zone) not in near, region_of(zone) not in listed)))


def _reach(gpu: GpuOffer, settings: Settings) -> tuple[str, ...]:
    """Zones that the network allows. A subnetwork named with its region exists in that region only."""
    named_region = re.search(r"regions/([^/]+)/", settings.subnetwork or "")
    zones = tuple(zone for zone in gpu.zones if not named_region or region_of(zone) == named_region[1])
    require(
        zones,
        f"no {gpu.title} in the region of subnetwork '{settings.subnetwork}'; the zones with one: {compact(gpu.zones)}",
        hint="--subnetwork regions/REGION/subnetworks/NAME in the region of one of these zones",
    )
    return zones


def _known_prices(
    draft: Draft, options: Options, gpu: GpuOffer, zones: Iterable[str], now: datetime
) -> dict[str, Price]:
    """Prices by region, from the table; a region without a known price is left out.

    The user's own price (`usd_per_h`) replaces these prices in all regions, and includes disk and address.
    """
    regions = dict.fromkeys(map(region_of, zones))
    if options.usd_per_h is not None:
        return dict.fromkeys(regions, own_price(options.usd_per_h, now))
    address = prices.load().address
    listed = {region: draft.price(region, gpu.disk_type, address) for region in regions}
    return {region: price for region, price in listed.items() if price}

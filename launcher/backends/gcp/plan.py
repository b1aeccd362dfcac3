"""Plans the VM of `launch gcp` from the user's options, the table of GPUs and the settings. Uses no network."""

import difflib
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from launcher.backends.gcp import gpus
from launcher.backends.gcp.gpus import Driver, GpuOffer, MachineType, VmImage
from launcher.backends.gcp.options import DEFAULT_DISK_GB, Options
from launcher.backends.gcp.planned_vm import (
    AROUND_S,
    PROGRAMS,
    SECONDS_PER_H,
    VmPlan,
    check_size,
    checked_image,
    launch_name,
    time_stamp,
)
from launcher.backends.gcp.price_list import PriceList
from launcher.backends.gcp.refusals import DeniedError
from launcher.backends.gcp.settings import ANY_PROJECT, PROJECT, RESOURCE_NAME, Settings
from launcher.kinds import Runtime
from launcher.machine.runtime import CPU_FLAVOUR, NO_COMPILER
from launcher.protocol.records import Price, Request, region_of
from launcher.protocol.task import Task
from launcher.sizes import MAX_LIMIT_S, MIN_LIMIT_S, shown
from workload.contract import prices
from workload.contract.errors import ToolError, UsageError
from workload.contract.spec import CIFAR10, IMAGENETTE, SYNTHETIC, Device, Precision, Resolved, RunSpec

PROGRAM_FOLDER = Path(__file__).parent
# NVIDIA's bf16 units came with Ampere: https://docs.nvidia.com/cuda/ampere-tuning-guide (improved tensor cores).
BF16_CAPABILITY = (8, 0)
NEEDS_NAT = "without an external address the VM needs Cloud NAT, for its packages"
# Shortest useful lifetime of a VM, which needs minutes to boot. A cost limit that allows less time is refused.
MIN_USEFUL_S = 600
MIN_DISK_GB, MAX_DISK_GB = 50, 65536
TF32_CAPABILITY = (8, 0)
IMAGE_FAMILY = re.compile(rf"(?P<project>{PROJECT})/(?P<name>{RESOURCE_NAME})")
IMAGE_PATH = re.compile(
    r"(?:https://(?:www|compute)\.googleapis\.com/compute/v1/)?"
    rf"projects/(?P<project>{PROJECT})/global/images/(?P<family>family/)?(?P<name>{RESOURCE_NAME})"
)
# Projects of Google's public operating systems with apt, which have no driver.
BARE_PROJECTS = frozenset({"ubuntu-os-cloud", "debian-cloud"})


def make_plan(
    resolved: Resolved,
    options: Options,
    settings: Settings,
    *,
    image: str,
    now: datetime,
    token: str,
    task: Task | None = None,
    price_list: PriceList | None = None,
    notes: Sequence[str] = (),
) -> VmPlan:
    """Plan of `launch gcp`. Reads only this program's own tables (such as gpus.toml) and the VM's start-up programs.

    `task`: runs of a sweep, which replace the run of `resolved`. `image`: reference with a digest, except in a dry run.
    `token`: 6 hex digits that make the name unique. `now` is timezone-aware. `price_list`: Google's price list, if
    available. Raises `UsageError` for a run that a VM cannot do or options that do not fit the GPU, `ToolError` for
    a broken installation.
    """
    gpu = gpus.require(options.gpu)
    _check_options(options)
    machine, count = _choose_machine(gpu, options)
    spec, changed = _on_vm(resolved.spec, gpu)
    if task is not None:
        vm_task = task.mapped(lambda run_spec: _on_vm(run_spec, gpu)[0].checked())
        changed = list(dict.fromkeys(note for run in task.runs for note in _on_vm(run.spec, gpu)[1]))
        task = vm_task
    specs = [run.spec for run in task.runs] if task else [spec]
    with_driver = any(run_spec.device is not Device.CPU for run_spec in specs)
    images = candidate_images(gpu, options, with_driver=with_driver)
    driver = images[0].driver if with_driver else Driver.NONE
    zones = _zone_order(gpu, options, settings)
    known = _known_prices(gpu, machine, count, options, zones, now, price_list)
    if options.max_cost_usd is not None:
        zones = _with_price(zones, known, options)
    request = Request(
        name=launch_name(gpu, now, token=token),
        backend="gcp",
        launched_at=time_stamp(now),
        store=f"gs://{settings.bucket}",
        place=f"gcp-{gpu.name}",
        runtime=Runtime.DOCKER,
        limit_s=_time_limit_s(options, known.values()),
        spec=spec.to_json(),
        spec_origin={key: str(value) for key, value in resolved.origin.items() if key != "data_dir"},
        image=checked_image(image),
        gpu=gpu.name,
        gpu_count=count,
        machine_type=machine.name,
        zones=list(zones),
        spot=options.spot,
        prices={region: asdict(price) for region, price in known.items()},
        options={
            "project": settings.project,
            "flavour": gpu.flavour if with_driver else CPU_FLAVOUR,
            "vm_image": images[0].path,
            "driver": str(driver),
            "secure_boot": bool(options.secure_boot),
        },
        task=task.to_json(spec) if task else {},
    )
    plan = VmPlan(
        request=request,
        settings=settings,
        gpu=gpu,
        machine=machine,
        vm_images=images,
        driver=driver,
        shielded=shielded_config(options),
        options=options,
        zones=zones,
        programs={key: program_text(PROGRAM_FOLDER / name) for key, name in PROGRAMS.items()},
    )
    check_size(plan)
    return replace(plan, notes=(*changed, *notes, *_notes(plan)))


def _notes(plan: VmPlan) -> Iterator[str]:
    if plan.spec.script:
        yield "the time before a script's first step is unknown: the time of our own trainer is assumed"
    if plan.driver is Driver.NONE:
        yield f"the run computes on the VM's CPU, but its {plan.gpu.title} must be paid too"
    elif plan.request.gpu_count > 1:
        yield f"the run computes on one GPU of {plan.request.gpu_count}"
    if (
        plan.driver is not Driver.NONE
        and any(run.spec.precision is Precision.BF16 for run in plan.request.work.runs)
        and plan.gpu.capability < BF16_CAPABILITY
    ):
        capability = ".".join(map(str, plan.gpu.capability))
        yield (
            f"the {plan.gpu.title} has no bf16 units (compute capability {capability}; they come with 8.0): bf16 is "
            "emulated there and slow; --precision amp uses its tensor cores"
        )
    if plan.shielded.get("enableSecureBoot") and plan.driver is not Driver.NONE and plan.vm_image.signed is None:
        image = plan.vm_image.name
        yield f"under Secure Boot the driver of {image} loads only if the VM's firmware trusts its signature"
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


def program_text(path: Path) -> str:
    """Text of a program that the launcher sends to a machine. Raises `ToolError` for a broken installation."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ToolError(f"this installation lacks {path.name}", hint="install rooflaunch again") from error


# Checks of the options, and the machine type that they select.


def _require(held: object, message: str, *, hint: str) -> None:
    if not held:
        raise UsageError(message, hint=hint)


def _check_options(options: Options) -> None:
    """Raise `UsageError` for a number out of bounds. Options with text are checked in the functions that use them."""
    for flag, usd in {"--max-cost": options.max_cost_usd, "--usd-per-h": options.usd_per_h}.items():
        _require(
            usd is None or (math.isfinite(usd) and usd > 0),
            f"{flag} must be a positive sum in USD; got '{usd}'",
            hint=f"{flag} 1.50",
        )
    _require(
        MIN_DISK_GB <= options.disk_gb <= MAX_DISK_GB,
        f"--disk-gb must be {MIN_DISK_GB} to {MAX_DISK_GB}, for two images and data; got '{options.disk_gb}'",
        hint=f"--disk-gb {DEFAULT_DISK_GB}",
    )
    _require(
        MIN_LIMIT_S <= options.max_run_time_s <= MAX_LIMIT_S,
        f"--max-run-time must be 30 s to 120 d; got '{options.max_run_time_s} s'",
        hint="--max-run-time 60m",
    )
    _require(
        options.rerun_preempted == 0 or (options.spot and options.rerun_preempted > 0),
        f"--rerun-preempted is only for spot VMs, because only these are preempted; got '{options.rerun_preempted}'",
        hint="--spot --rerun-preempted 2",
    )
    _require(
        options.fallback or options.zones,
        "--no-fallback allows only the zones that are named with --zone, but none is named",
        hint="--zone us-central1-a --no-fallback",
    )


def _choose_machine(gpu: GpuOffer, options: Options) -> tuple[MachineType, int]:
    """Machine type and its number of GPUs, built in or attached. Raises `UsageError` if they do not fit."""
    machine = _named_machine(gpu, options.machine_type) if options.machine_type else _fitting_machine(gpu, options)
    count = options.gpu_count
    if gpu.accelerator is None and count == 1:
        count = machine.gpus[0]
    if count not in machine.gpus:
        counts = " or ".join(map(str, machine.gpus))
        raise UsageError(
            f"{machine.name} has {counts} GPUs of {gpu.title}; got --gpu-count {count}",
            hint=f"--gpu-count {machine.gpus[0]}, or another --machine-type",
        )
    if machine.spot_only and not options.spot:
        on_demand = [other.name for other in gpu.machine_types.values() if not other.spot_only]
        raise UsageError(
            f"{machine.name} is not sold on demand, only as spot, flex-start or by reservation",
            hint=" or ".join(["--spot", *(f"--machine-type {name}" for name in on_demand)]),
        )
    return machine, count


def _named_machine(gpu: GpuOffer, name: str) -> MachineType:
    if name not in gpu.machine_types:
        raise UsageError(
            f"machine type for {gpu.name} must be one of {', '.join(gpu.machine_types)}; got '{shown(name)}'",
            hint=f"--machine-type {gpu.default_machine_type}",
        )
    return gpu.machine_types[name]


def _fitting_machine(gpu: GpuOffer, options: Options) -> MachineType:
    """Default machine type of the GPU, or the first machine type with the requested number of GPUs."""
    default = gpu.machine_types[gpu.default_machine_type]
    count = options.gpu_count
    if count == 1 or count in default.gpus:
        return default
    fitting = [machine for machine in gpu.machine_types.values() if count in machine.gpus]
    if not fitting:
        counts = sorted({count_of_type for machine in gpu.machine_types.values() for count_of_type in machine.gpus})
        raise UsageError(
            f"a VM has {', '.join(map(str, counts))} GPUs of {gpu.title}; got --gpu-count {count}",
            hint=f"--gpu-count {counts[0]}",
        )
    return fitting[0]


# Images that the VM may boot. The container of the run has another image.


class Images(Protocol):
    """The part of the Compute Engine client that `find_image` uses."""

    def get_image(self, project: str, family: str) -> str | None: ...


def parse_image(text: str) -> VmImage:
    """Image for PROJECT/FAMILY, or for the path or address of an image or a family. Raises `UsageError` for other text.

    For a family in our table, the facts on the driver come from the table. Another image is assumed to have a driver,
    unless its project is that of Ubuntu's or Debian's public images.
    """
    form = IMAGE_PATH.fullmatch(text) or IMAGE_FAMILY.fullmatch(text)
    if form is None:
        raise UsageError(
            "--vm-image must be PROJECT/FAMILY, projects/PROJECT/global/images/family/FAMILY or "
            f"projects/PROJECT/global/images/IMAGE; got '{shown(text)}'",
            hint="--vm-image ubuntu-os-cloud/ubuntu-2404-lts-amd64",
        )
    parts = form.groupdict()
    is_family = parts.get("family", "family/") is not None
    known = {image.path: image for gpu in gpus.load().values() for image in gpu.vm_images}
    driver = Driver.INSTALL if parts["project"] in BARE_PROJECTS else Driver.PREINSTALLED
    named = VmImage(project=parts["project"], name=parts["name"], is_family=is_family, driver=driver)
    return known.get(named.path, named)


def candidate_images(gpu: GpuOffer, options: Options, *, with_driver: bool) -> tuple[VmImage, ...]:
    """Images to look for, in this order: the requested image, or else the GPU's images.

    Under Secure Boot, only images whose driver loads. Raises `UsageError` if none is left.
    """
    chosen = (parse_image(options.vm_image),) if options.vm_image else gpu.vm_images
    if options.vm_driver:
        # A driver that is built on the VM is unsigned, whatever the image.
        driver = Driver(options.vm_driver)
        signed = False if driver is Driver.INSTALL else None
        chosen = tuple(
            image if image.driver is driver else replace(image, driver=driver, signed=signed) for image in chosen
        )
    if not options.secure_boot or not with_driver:
        return chosen
    loads = tuple(image for image in chosen if image.signed is not False and image.driver is not Driver.INSTALL)
    if not loads:
        how = "is built on the VM" if chosen[0].driver is Driver.INSTALL else f"in {chosen[0].name} is not signed"
        raise UsageError(
            f"Secure Boot loads only signed drivers, but the {gpu.title}'s {how}: it would not load",
            hint="--no-secure-boot, or --vm-image of an image with a signed driver and --vm-driver preinstalled",
        )
    return loads


def shielded_config(options: Options) -> dict[str, bool]:
    """Value of the insert's `shieldedInstanceConfig`; {} if none of its options is set.

    If Secure Boot, vTPM or integrity monitoring is set, all three are sent, the others with Google's default: on, but
    Secure Boot off. Raises `UsageError` for integrity monitoring without a vTPM.
    """
    if options.secure_boot is options.vtpm is options.integrity_monitoring is None:
        return {}
    vtpm = options.vtpm is not False
    # Integrity can only be measured with a vTPM.
    integrity = vtpm if options.integrity_monitoring is None else options.integrity_monitoring
    if integrity and not vtpm:
        raise UsageError(
            "--integrity-monitoring needs the vTPM; got --no-vtpm", hint="--no-vtpm --no-integrity-monitoring"
        )
    return {"enableSecureBoot": bool(options.secure_boot), "enableVtpm": vtpm, "enableIntegrityMonitoring": integrity}


def find_image(images: Sequence[VmImage], compute: Images, *, is_named: bool) -> tuple[VmImage, tuple[str, ...]]:
    """The first image that exists, and notes for the user on missing images before that image.

    A family is replaced by its newest image, so that every zone and attempt boots the same image.
    `is_named`: the user chose the image. If no image exists, raises `UsageError` for a named image, else `ToolError`.
    """
    notes: list[str] = []
    for image in images:
        if not image.is_family:
            return image, tuple(notes)
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
    listing = f"gcloud compute images list --project {images[0].project} --no-standard-images"
    if is_named:
        raise UsageError(
            f"--vm-image: there is no image family '{images[0].name}' in project '{images[0].project}'", hint=listing
        )
    missing = ", ".join(f"{image.project}/{image.name}" for image in images)
    raise ToolError(
        f"no VM image is left, because none of these families exists any more: {missing}",
        hint=f"--vm-image PROJECT/FAMILY with a family that exists ({listing})",
    )


# The run on a VM, its zones and its prices.


def _on_vm(spec: RunSpec, gpu: GpuOffer) -> tuple[RunSpec, list[str]]:
    """Spec adapted to a VM, and notes on the changes. Raises `UsageError` for a run that a VM cannot do."""
    notes = list[str]()
    _require(spec.device is not Device.MPS, "a VM has no Apple GPU; got --mps", hint="leave --mps out")
    _require(not spec.compile, f"{NO_COMPILER}; a VM runs one of these images", hint="leave --compile out")
    if spec.dataset not in (SYNTHETIC, CIFAR10, IMAGENETTE):
        raise UsageError(
            f"a VM cannot read the folder '{shown(spec.dataset)}' of this machine",
            hint="--dataset synthetic, or --dataset imagenette --download",
        )
    if spec.device is Device.AUTO:
        spec = replace(spec, device=Device.CUDA)
    if spec.precision is Precision.TF32 and gpu.capability < TF32_CAPABILITY:
        major, minor = gpu.capability
        raise UsageError(
            f"precision tf32 needs compute capability 8.0 or newer; a {gpu.title} has {major}.{minor}",
            hint="--precision fp32, or --precision amp",
        )
    if spec.dataset != SYNTHETIC and not spec.download:
        spec = replace(spec, download=True)
        notes.append(f"the VM downloads {spec.dataset}, because it starts without data")
    if spec.data_dir != RunSpec().data_dir:
        spec = replace(spec, data_dir=RunSpec().data_dir)
        notes.append("data_dir is a folder of this machine: the VM uses its own folder")
    return spec, notes


def _zone_order(gpu: GpuOffer, options: Options, settings: Settings) -> tuple[str, ...]:
    """Zones to try: named zones, then other zones of their regions, then zones with a listed price, then the rest.

    With `fallback` False only the named zones. Raises `UsageError` for a zone without the GPU or outside the network.
    """
    reach = _reach(gpu, settings)
    for zone in options.zones:
        if zone not in gpu.zones:
            raise UsageError(
                f"no {gpu.title} in zone '{shown(zone)}'; the zones with one: {gpus.compact(gpu.zones)}",
                hint=f"--zone {next(iter(difflib.get_close_matches(zone, gpu.zones, n=1)), gpu.zones[0])}",
            )
        _require(
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
    _require(
        zones,
        f"no {gpu.title} in the region of subnetwork '{settings.subnetwork}'; the zones with one: "
        f"{gpus.compact(gpu.zones)}",
        hint="--subnetwork regions/REGION/subnetworks/NAME in the region of one of these zones",
    )
    return zones


def _known_prices(
    gpu: GpuOffer,
    machine: MachineType,
    count: int,
    options: Options,
    zones: Iterable[str],
    now: datetime,
    price_list: PriceList | None,
) -> dict[str, Price]:
    """Prices by region, from today's list or else from the table; a region without a known price is left out.

    The user's own price (`usd_per_h`) replaces these prices in all regions, and includes disk and address.
    """
    regions = dict.fromkeys(map(region_of, zones))
    if options.usd_per_h is not None:
        read = f"{now.astimezone(UTC):%Y-%m-%d}"
        own = Price(
            usd_per_h=options.usd_per_h, source="--usd-per-h", read=read, disk_usd_per_h=0.0, address_usd_per_h=0.0
        )
        return dict.fromkeys(regions, own)
    listed = {region: _listed(gpu, machine, count, options, region, price_list) for region in regions}
    return {region: price for region, price in listed.items() if price}


def _listed(
    gpu: GpuOffer, machine: MachineType, count: int, options: Options, region: str, price_list: PriceList | None
) -> Price | None:
    """Price of VM, disk and address in one region; None if neither today's list nor the table has VM and disk."""
    if price_list and (price := price_list.price(gpu, machine, count, region, options)):
        return price
    table = prices.load()
    vm = gpu.price(machine.name, gpus=count, region=region, spot=options.spot)
    disk = table.disk_usd_per_gb_month(gpu.disk_type, region)
    if vm is None or disk is None:
        return None
    address = table.address.usd_per_h_spot if options.spot else table.address.usd_per_h
    return replace(
        vm,
        disk_usd_per_h=prices.disk_usd_per_h(disk, options.disk_gb),
        address_usd_per_h=address if options.external_ip else 0.0,
    )


def _with_price(zones: tuple[str, ...], known: Mapping[str, Price], options: Options) -> tuple[str, ...]:
    """Zones with a known price, so that their cost can be limited. Raises `UsageError` if a named zone has none."""
    unknown = [zone for zone in options.zones if region_of(zone) not in known]
    if not known or unknown:
        where = f"in {gpus.compact(unknown)}" if unknown else "anywhere"
        kind = "spot" if options.spot else "on demand"
        raise UsageError(
            f"--max-cost needs a price, but the price of this machine type ({kind}) is unknown {where}",
            hint="--usd-per-h with the figure of cloud.google.com/products/calculator, or leave --max-cost out",
        )
    return tuple(zone for zone in zones if region_of(zone) in known)


def _time_limit_s(options: Options, known: Iterable[Price]) -> int:
    """Time limit in seconds, lowered so that all attempts in the dearest zone cost at most `--max-cost`.

    The cost of an attempt covers VM, disk and address, from the insert request to the end of a late deletion.
    """
    if options.max_cost_usd is None:
        return options.max_run_time_s
    dearest = max(price.whole_usd_per_h for price in known)
    each_usd = options.max_cost_usd / (options.rerun_preempted + 1)
    # The added 1e-6 s offsets binary rounding: a tenth of 0.70 USD buys 630 s at 0.40 USD per hour, not 629.
    affordable_s = math.floor(each_usd / dearest * SECONDS_PER_H + 1e-6) - AROUND_S
    if affordable_s < MIN_USEFUL_S:
        least_usd = (MIN_USEFUL_S + AROUND_S) / SECONDS_PER_H * dearest * (options.rerun_preempted + 1)
        raise UsageError(
            f"--max-cost {options.max_cost_usd:g} buys {max(affordable_s, 0)} s at {dearest:.4g} USD per hour with "
            f"disk and address, beside {AROUND_S} s to start and to stop; a run needs {MIN_USEFUL_S} s or more",
            hint=f"--max-cost {math.ceil(least_usd * 100) / 100:.2f}",
        )
    return min(options.max_run_time_s, affordable_s)

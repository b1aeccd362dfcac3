"""Plan of a machine that a cloud rents out: the run on it, its cost, and its text for the user. Pure functions.

Compute Engine and EC2 plan with this module; each adds its own request, machine types and limits.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, ClassVar, Self

from launcher.backends.rented_options import DEFAULT_DISK_GB, RentedOptions
from launcher.backends.shared_plan import Gpu, MachineType
from launcher.machine.runtime import NO_COMPILER
from launcher.protocol.backend import Estimate
from launcher.protocol.records import Price, Request, Task, region_of
from launcher.values import CPU_FLAVOUR, MAX_LIMIT_S, MIN_LIMIT_S, Runtime, positive_usd, shown
from workload.contract import prices
from workload.contract.errors import UsageError
from workload.contract.prices import AddressPrice
from workload.contract.spec import (
    CIFAR10,
    IMAGENETTE,
    SYNTHETIC,
    TF32_CAPABILITY,
    Device,
    Origin,
    Precision,
    Profile,
    Resolved,
    RunSpec,
)
from workload.contract.text import counted, dollars, minutes

# Assumed seconds: pulling the image, starting a run (with its measured ceilings), one step, a profile, a download.
PULL_S, START_S, STEP_S, PROFILE_S, DOWNLOAD_S = 120, 60, 0.3, 180, 60
SECONDS_PER_H = 3600
FEW = 4
# Characters of an image reference: a registry, a path, a tag, a digest.
IMAGE = r"[a-z0-9][-._/:@a-zA-Z0-9]{0,511}"
# NVIDIA's bf16 units came with Ampere: https://docs.nvidia.com/cuda/ampere-tuning-guide (improved tensor cores).
BF16_CAPABILITY = (8, 0)
# Shortest useful lifetime of a VM, which needs minutes to boot. A cost limit that allows less time is refused.
MIN_USEFUL_S = 600
MIN_DISK_GB, MAX_DISK_GB = 50, 65536


@dataclass(frozen=True, kw_only=True)
class Cloud:
    """Facts and words of a cloud for its plans. `around_s`: seconds that a machine may cost money besides its limit.

    `scheme`: that of a bucket's address. `at_limit`: who ends the machine at its time limit. `usable`: origin of the
    time until a machine is usable. `calculator`: page with the cloud's prices. `image`, `zone`: examples in hints.
    """

    backend: str
    scheme: str
    around_s: int
    at_limit: str
    usable: str
    calculator: str
    image: str
    zone: str


@dataclass(frozen=True, kw_only=True)
class RentedPlan:
    """Plan of a launch on one rented machine. `zones`: in the order in which they are tried, the user's first.

    `machine`: the machine type. `notes`: what the user should know before the machine costs anything.
    """

    cloud: ClassVar[Cloud]

    request: Request
    settings: Any
    options: RentedOptions
    gpu: Gpu
    machine: MachineType
    zones: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name of the launch and of its VM."""
        return self.request.name

    @property
    def limit_s(self) -> int:
        """Time limit: seconds from the VM's start until the cloud deletes the VM."""
        return self.request.limit_s

    @cached_property
    def spec(self) -> RunSpec:
        """Spec of the run as the VM will do it."""
        return RunSpec.from_json(self.request.spec)

    @property
    def submissions(self) -> int:
        """Maximum number of VMs that are started, one after another, if VMs are preempted."""
        return self.options.rerun_preempted + 1

    def price(self, zone: str) -> Price | None:
        """Price of the whole VM in this zone; None if unknown."""
        return self.request.price(zone)

    def usd_per_h(self, zone: str) -> float | None:
        """USD per hour in this zone for VM, disk and address; None if unknown."""
        price = self.price(zone)
        return price.whole_usd_per_h if price else None

    @property
    def usable_s(self) -> float:
        """Seconds from the request for the machine until its driver can be used."""
        raise NotImplementedError

    def region_title(self, region: str) -> str:
        """Name of a region in the plan's text."""
        return region

    @property
    def ready_s(self) -> float:
        """Estimated seconds from the insert until the run starts."""
        return self.usable_s + PULL_S

    @cached_property
    def run_s(self) -> float:
        """Estimated seconds for all runs, their profiles and a download. Model and GPU are not considered."""
        runs = [run.spec.filled(run.spec.device, cpus=self.machine.vcpus) for run in self.request.work.runs]
        seconds = 0.0
        for spec in runs:
            warmup, measured = ((steps or 0) * spec.grad_accumulation for steps in (spec.warmup, spec.iterations))
            seconds += START_S + warmup * STEP_S + max(measured * STEP_S, spec.min_seconds or 0.0)
        # Repeats of one configuration are profiled only once.
        profiled = [spec for spec in runs if spec.profile is not Profile.NONE][: None if self.request.task else 1]
        download_s = DOWNLOAD_S if any(spec.download for spec in runs) else 0
        return seconds + PROFILE_S * len(profiled) + download_s

    @property
    def expected_s(self) -> float:
        """Estimated lifetime of the VM in seconds, at most its limit."""
        return min(self.ready_s + self.run_s, self.limit_s)

    @property
    def estimate(self) -> Estimate:
        """Estimate for an attempt in the first zone. `most_usd`: cost of all attempts in the dearest priced zone."""
        highest = self.highest_usd
        return Estimate(
            ready_s=self.ready_s,
            run_s=self.run_s,
            limit_s=self.limit_s,
            usd_per_h=self.usd_per_h(self.zones[0]),
            most_usd=None if highest is None else highest * self.submissions,
            is_most_partial=bool(self.regions_without_price),
        )

    def expected_usd(self, zone: str) -> float | None:
        """Estimated cost of one attempt in this zone, in USD; None if the price is unknown."""
        return self._usd(zone, self.expected_s)

    @property
    def highest_usd(self) -> float | None:
        """Highest cost of one attempt in USD over all zones with a known price; None if no price is known."""
        return max((usd for zone in self.zones if (usd := self.max_usd(zone)) is not None), default=None)

    @property
    def regions_without_price(self) -> list[str]:
        """Regions without a known price, in the order in which they may be tried."""
        regions = dict.fromkeys(map(region_of, self.zones))
        return [region for region in regions if region not in self.request.prices]

    def max_usd(self, zone: str) -> float | None:
        """USD for one attempt that reaches the limit, from insert to late deletion; None if the price is unknown."""
        return self._usd(zone, self.limit_s + self.cloud.around_s)

    def _usd(self, zone: str, seconds: float) -> float | None:
        price = self.price(zone)
        return price.usd(seconds) if price else None

    def renamed(self, request: Request) -> Self:
        """Copy of the plan with `request`, for a separate launch."""
        return replace(self, request=request)

    def at(self, now: datetime, *, image: str) -> Self:
        """Copy of the plan with `image` (a reference by digest), the launch time `now`, and a name with this time."""
        request = replace(
            self.request,
            name=launch_name(self.gpu, now, token=self.name.rpartition("-")[2]),
            launched_at=time_stamp(now),
            image=checked_image(image, self.cloud),
        )
        return replace(self, request=request)

    def facts(self, **image: Any) -> dict[str, Any]:
        """Fields that the JSON objects of all clouds' plans have. `image`: field for what the machine boots."""
        zone = self.zones[0]
        price = self.price(zone)
        return {
            "name": self.name,
            "gpu": self.gpu.name,
            "machine_type": self.machine.name,
            **image,
            "spot": self.options.spot,
            "zones": list(self.zones),
            "zone": zone,
            "price": asdict(price) if price else None,
            "expected_s": self.expected_s,
            "expected_usd": self.expected_usd(zone),
            "limit_s": self.limit_s,
            "max_usd": self.highest_usd,
            "regions_without_price": self.regions_without_price,
            "settings": asdict(self.settings),
            "notes": list(self.notes),
        }


def launch_name(gpu: Gpu, now: datetime, *, token: str) -> str:
    """Name of a launch and its machine: GPU, time in UTC and six digits that make the name unique."""
    return f"rooflaunch-{gpu.name}-{now.astimezone(UTC):%Y%m%d-%H%M%S}-{token}"


def time_stamp(now: datetime) -> str:
    """Time as ISO 8601 in UTC, to the millisecond."""
    return now.astimezone(UTC).isoformat(timespec="milliseconds")


def checked_image(image: str, cloud: Cloud) -> str:
    """The reference of an image, if its characters are allowed. Raises `UsageError`."""
    if not re.fullmatch(IMAGE, image):
        raise UsageError(
            f"image must be a reference such as HOST/PATH@sha256:…; got '{shown(image)}'", hint=f"--image {cloud.image}"
        )
    return image


def require(held: object, message: str, *, hint: str) -> None:
    """Raise `UsageError` with this message unless `held` is true."""
    if not held:
        raise UsageError(message, hint=hint)


def check_options(options: RentedOptions, cloud: Cloud) -> None:
    """Raise `UsageError` for a number out of bounds. Options with text are checked in the functions that use them."""
    positive_usd(options.max_cost_usd, "--max-cost")
    positive_usd(options.usd_per_h, "--usd-per-h")
    require(
        MIN_DISK_GB <= options.disk_gb <= MAX_DISK_GB,
        f"--disk-gb must be {MIN_DISK_GB} to {MAX_DISK_GB}, for two images and data; got '{options.disk_gb}'",
        hint=f"--disk-gb {DEFAULT_DISK_GB}",
    )
    require(
        MIN_LIMIT_S <= options.max_run_time_s <= MAX_LIMIT_S,
        f"--max-run-time must be 30 s to 120 d; got '{options.max_run_time_s} s'",
        hint="--max-run-time 60m",
    )
    require(
        options.rerun_preempted == 0 or (options.spot and options.rerun_preempted > 0),
        f"--rerun-preempted is only for spot VMs, because only these are preempted; got '{options.rerun_preempted}'",
        hint="--spot --rerun-preempted 2",
    )
    require(
        options.fallback or options.zones,
        "--no-fallback allows only the zones that are named with --zone, but none is named",
        hint=f"--zone {cloud.zone} --no-fallback",
    )


def choose_machine(
    gpu: Gpu, options: RentedOptions, *, devices: int = 1, uses_gpu: bool = True
) -> tuple[MachineType, int]:
    """Machine type and its number of GPUs, built in or attached. Raises `UsageError` if none is large enough.

    `devices`: largest number of devices of a run; `uses_gpu`: the devices are GPUs, not shares of the CPUs. A machine
    with more GPUs is taken if there is none with exactly as many.
    """
    usual, used = gpu.machine_types[gpu.default_machine_type], devices if uses_gpu else 1
    gpus = max(used, options.gpu_count)
    # A GPU should have as many vCPUs as in the usual machine, so that several are fed as well as one.
    vcpus = used * usual.vcpus // usual.gpus[0]
    known = gpu.machine_types.values()
    fitting = sorted(
        (machine for machine in known if max(machine.gpus) >= gpus and machine.vcpus >= devices),
        key=lambda machine: (_gpus_of(machine, gpus), machine.vcpus < vcpus, machine.vcpus),
    )
    machine = _named_machine(gpu, options.machine_type) if options.machine_type else next(iter(fitting), None)
    if machine is None or machine not in fitting:
        raise _too_small(gpu, options, machine, fitting, devices=devices, uses_gpu=uses_gpu)
    if machine.spot_only and not options.spot:
        on_demand = [other.name for other in fitting if not other.spot_only]
        raise UsageError(
            f"{machine.name} is not sold on demand, only as spot, flex-start or by reservation",
            hint=" or ".join(["--spot", *(f"--machine-type {name}" for name in on_demand)]),
        )
    return machine, _gpus_of(machine, gpus)


def _gpus_of(machine: MachineType, least: int) -> int:
    """Smallest number of GPUs that the machine may have, from `least` on."""
    return min(count for count in machine.gpus if count >= least)


def _named_machine(gpu: Gpu, name: str) -> MachineType:
    if name not in gpu.machine_types:
        raise UsageError(
            f"machine type for {gpu.name} must be one of {', '.join(gpu.machine_types)}; got '{shown(name)}'",
            hint=f"--machine-type {gpu.default_machine_type}",
        )
    return gpu.machine_types[name]


def _too_small(
    gpu: Gpu,
    options: RentedOptions,
    named: MachineType | None,
    fitting: Sequence[MachineType],
    *,
    devices: int,
    uses_gpu: bool,
) -> UsageError:
    flag, number = max(("--devices", devices), ("--gpu-count", options.gpu_count), key=lambda asked: asked[1])
    if named and fitting:
        has = f"at most {counted(max(named.gpus), 'GPU')} and {counted(named.vcpus, 'vCPU')}"
        return UsageError(f"{named.name} has {has}; got {flag} {number}", hint=f"--machine-type {fitting[0].name}")
    known = gpu.machine_types.values()
    counts = sorted({count for machine in known for count in machine.gpus})
    most_vcpus = max(machine.vcpus for machine in known)
    has = f"{', '.join(map(str, counts))} GPUs of {gpu.title}, and up to {most_vcpus} vCPUs"
    return UsageError(
        f"a VM has {has}; got {flag} {number}",
        hint=f"{flag} {counts[-1] if uses_gpu or flag == '--gpu-count' else most_vcpus}",
    )


def on_vm(spec: RunSpec, gpu: Gpu) -> tuple[RunSpec, list[str]]:
    """Spec adapted to a VM, and notes on the changes. Raises `UsageError` for a run that a VM cannot do."""
    notes = list[str]()
    require(spec.device is not Device.MPS, "a VM has no Apple GPU; got --mps", hint="leave --mps out")
    require(not spec.compile, f"{NO_COMPILER}; a VM runs one of these images", hint="leave --compile out")
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


@dataclass(frozen=True, kw_only=True)
class Draft:
    """Parts of a plan that follow from the user's options: a machine type with `count` GPUs, and the runs on it.

    `task`: runs of a sweep, which replace the run of `spec`. `uses_gpu`: one of the runs computes on a GPU. `changed`:
    notes on options that had to be changed for a VM.
    """

    cloud: Cloud
    gpu: Gpu
    options: RentedOptions
    machine: MachineType
    count: int
    spec: RunSpec
    origin: Mapping[str, Origin]
    task: Task | None
    uses_gpu: bool
    changed: list[str]

    @property
    def flavour(self) -> str:
        """Flavour of the image for these runs."""
        return self.gpu.flavour if self.uses_gpu else CPU_FLAVOUR

    def price(self, region: str, disk_type: str, address: AddressPrice, *, today: Price | None = None) -> Price | None:
        """Price of VM, disk and address in one region by our table; None if the table lacks VM or disk.

        `today`: the cloud's own price of the VM, which counts instead, without a disk if the table lacks the disk.
        """
        spot = self.options.spot
        vm = today or self.gpu.price(self.machine.name, gpus=self.count, region=region, spot=spot)
        disk = prices.load().disk_usd_per_gb_month(disk_type, region)
        if vm is None or disk is None:
            return today
        return replace(
            vm,
            disk_usd_per_h=prices.disk_usd_per_h(disk, self.options.disk_gb),
            address_usd_per_h=address.figure(spot=spot) if self.options.external_ip else 0.0,
        )

    def request(
        self,
        now: datetime,
        token: str,
        *,
        image: str,
        bucket: str,
        zones: Sequence[str],
        known: Mapping[str, Price],
        more: Mapping[str, Any],
    ) -> Request:
        """Request of the launch. `known`: prices by region; `more`: facts that only this cloud's machines need."""
        return Request(
            name=launch_name(self.gpu, now, token=token),
            backend=self.cloud.backend,
            launched_at=time_stamp(now),
            store=f"{self.cloud.scheme}://{bucket}",
            place=f"{self.cloud.backend}-{self.gpu.name}",
            runtime=Runtime.DOCKER,
            limit_s=time_limit_s(self.options, known.values(), self.cloud.around_s),
            spec=self.spec.to_json(),
            spec_origin={key: str(value) for key, value in self.origin.items() if key != "data_dir"},
            image=checked_image(image, self.cloud),
            gpu=self.gpu.name,
            gpu_count=self.count,
            machine_type=self.machine.name,
            zones=list(zones),
            spot=self.options.spot,
            prices={region: asdict(price) for region, price in known.items()},
            options=dict(more),
            task=self.task.to_json(self.spec) if self.task else {},
        )


def draft_of(cloud: Cloud, gpu: Gpu, options: RentedOptions, resolved: Resolved, task: Task | None) -> Draft:
    """Draft of a plan. Raises `UsageError` for options that do not fit the GPU, and for a run that a VM cannot do."""
    check_options(options, cloud)
    spec, changed = on_vm(resolved.spec, gpu)
    if task is not None:
        # An error of `mapped` names the run.
        mapped = task.mapped(lambda run_spec: on_vm(run_spec, gpu)[0].checked())
        changed = list(dict.fromkeys(note for run in task.runs for note in on_vm(run.spec, gpu)[1]))
        task = mapped
    specs = [run.spec for run in task.runs] if task else [spec]
    uses_gpu = any(run_spec.device is not Device.CPU for run_spec in specs)
    machine, count = choose_machine(gpu, options, devices=task.devices if task else spec.devices, uses_gpu=uses_gpu)
    return Draft(
        cloud=cloud,
        gpu=gpu,
        options=options,
        machine=machine,
        count=count,
        spec=spec,
        origin=resolved.origin,
        task=task,
        uses_gpu=uses_gpu,
        changed=changed,
    )


def needs_price(options: RentedOptions, cloud: Cloud, where: str) -> UsageError:
    """Error for `--max-cost` where no price is known."""
    kind = "spot" if options.spot else "on demand"
    return UsageError(
        f"--max-cost needs a price, but the price of this machine type ({kind}) is unknown {where}",
        hint=f"--usd-per-h with the figure of {cloud.calculator}, or leave --max-cost out",
    )


def own_price(usd_per_h: float, now: datetime) -> Price:
    """Price that the user named with `--usd-per-h`; it includes disk and address."""
    read = f"{now.astimezone(UTC):%Y-%m-%d}"
    return Price(usd_per_h=usd_per_h, source="--usd-per-h", read=read, disk_usd_per_h=0.0, address_usd_per_h=0.0)


def time_limit_s(options: RentedOptions, known: Iterable[Price], around_s: int) -> int:
    """Time limit in seconds, lowered so that all attempts in the dearest zone cost at most `--max-cost`.

    The cost of an attempt covers VM, disk and address, from the insert request to the end of a late deletion.
    """
    if options.max_cost_usd is None:
        return options.max_run_time_s
    dearest = max(price.whole_usd_per_h for price in known)
    each_usd = options.max_cost_usd / (options.rerun_preempted + 1)
    # The added 1e-6 s offsets binary rounding: a tenth of 0.70 USD buys 630 s at 0.40 USD per hour, not 629.
    affordable_s = math.floor(each_usd / dearest * SECONDS_PER_H + 1e-6) - around_s
    if affordable_s < MIN_USEFUL_S:
        least_usd = (MIN_USEFUL_S + around_s) / SECONDS_PER_H * dearest * (options.rerun_preempted + 1)
        raise UsageError(
            f"--max-cost {options.max_cost_usd:g} buys {max(affordable_s, 0)} s at {dearest:.4g} USD per hour with "
            f"disk and address, beside {around_s} s to start and to stop; a run needs {MIN_USEFUL_S} s or more",
            hint=f"--max-cost {math.ceil(least_usd * 100) / 100:.2f}",
        )
    return min(options.max_run_time_s, affordable_s)


def work_notes(plan: RentedPlan, *, uses_gpu: bool) -> Iterator[str]:
    """Notes on runs that the machine or its GPU does not suit."""
    if plan.spec.script:
        yield "the time before a script's first step is unknown: the time of our own trainer is assumed"
    if not uses_gpu:
        yield f"the run computes on the VM's CPU, but its {plan.gpu.title} must be paid too"
    elif plan.request.gpu_count > (devices := plan.request.work.devices):
        used = "one GPU" if devices == 1 else f"at most {devices} GPUs"
        yield f"a run computes on {used} of the VM's {plan.request.gpu_count}; the price is that of the whole VM"
    if plan.ready_s + plan.run_s > plan.limit_s:
        yield f"the run may take longer than the limit of {plan.limit_s} s: --max-run-time"
    is_bf16 = any(run.spec.precision is Precision.BF16 for run in plan.request.work.runs)
    if uses_gpu and is_bf16 and plan.gpu.capability < BF16_CAPABILITY:
        capability = ".".join(map(str, plan.gpu.capability))
        yield (
            f"the {plan.gpu.title} has no bf16 units (compute capability {capability}; they come with 8.0): bf16 is "
            "emulated there and slow; --precision amp uses its tensor cores"
        )


# The text for the user.


def zones_text(plan: RentedPlan) -> str:
    """Zones in the order in which they are tried, the first few of them by name."""
    named = [zone for zone in plan.zones if zone in plan.options.zones]
    others = [zone for zone in plan.zones if zone not in named]
    if not others:
        return f"{', '.join(named)}, and no other"
    return ", then ".join([*([", ".join(named)] if named else []), _few(others, "zones")])


def _few(names: Sequence[str], what: str) -> str:
    rest = len(names) - FEW
    return ", ".join(names[:FEW]) + (
        f" and {rest} other {what.removesuffix('s') if rest == 1 else what}" if rest > 0 else ""
    )


def cost_rows(plan: RentedPlan) -> Iterator[tuple[str, str]]:
    """Rows of a plan's text: price, expected and highest cost."""
    zone = plan.zones[0]
    price, region = plan.price(zone), plan.region_title(region_of(zone))
    unknown = plan.regions_without_price
    if price:
        usd_per_h = f"{price.usd_per_h:.3f} USD per hour in {region}{_beside(price)}"
        yield "price", f"{usd_per_h}; read {price.read}: {price.source}"
    else:
        yield "price", f"unknown in {region}; set a price with --usd-per-h"
    if price and unknown:
        yield "unknown", f"the price in {_few(unknown, 'regions')}"
    usable, image, run = (minutes(seconds) for seconds in (plan.usable_s, plan.ready_s - plan.usable_s, plan.run_s))
    parts = f"{usable} to a usable VM {plan.cloud.usable}, {image} for the image and {run} for the run assumed"
    yield "expected", f"{minutes(plan.expected_s)}, {dollars(plan.expected_usd(zone))}: {parts}"
    longest = f"{minutes(plan.limit_s)} and {minutes(plan.cloud.around_s)} to start and to stop"
    yield "at most", f"{longest}, {_highest(plan)}; then {plan.cloud.at_limit}"
    yield "besides", f"{price.uncounted if price else 'traffic and tax'}, which are not counted here"


def _beside(price: Price) -> str:
    if price.disk_usd_per_h is None:
        return ""
    parts = {"disk": price.disk_usd_per_h, "address": price.address_usd_per_h}
    paid = [name for name, usd in parts.items() if usd]
    return f", {price.whole_usd_per_h:.3f} with {' and '.join(paid)}" if paid else ", all in all"


def _highest(plan: RentedPlan) -> str:
    if plan.highest_usd is None:
        return "the cost is unknown in every zone that may be tried"
    attempts = plan.submissions
    highest = dollars(plan.highest_usd)
    if attempts > 1:
        highest += f" for each of up to {attempts} attempts, {dollars(plan.highest_usd * attempts)} in all"
    unknown = len(plan.regions_without_price)
    if not unknown:
        return f"{highest}, in any zone that may be tried"
    known = _few(list(plan.request.prices), "regions")
    others = f"unknown in the other {counted(unknown, 'region')} that may be tried (--max-cost excludes these)"
    return f"{highest}, in {known}; {others}"

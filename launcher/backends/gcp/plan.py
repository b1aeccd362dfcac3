"""`launch gcp` before anything happens: from options, the GPU table and settings to the whole request. Pure."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from launcher.backends.gcp import choices, gpus, plan_text, vm_images
from launcher.backends.gcp.choices import AROUND_S, SECONDS_PER_H
from launcher.backends.gcp.gpus import Driver, Gpu, MachineType, VmImage
from launcher.backends.gcp.options import Options
from launcher.backends.gcp.plan_text import PROGRAMS
from launcher.backends.gcp.resources import LIMIT_LABEL
from launcher.backends.gcp.settings import ANY_PROJECT, Settings
from launcher.backends.gcp.skus import PriceList
from launcher.jobs.records import Price, Request, region_of
from launcher.kinds import Runtime
from launcher.machine.runtime import CPU_FLAVOUR
from launcher.sizes import shown
from workload.contract.errors import ToolError, UsageError
from workload.contract.spec import Device, Precision, Profile, Resolved, RunSpec

PROGRAM_FOLDER = Path(__file__).parent
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
# From the insert to a usable driver, as published: 3 min 35 s; where it is installed, the middle of 5 to 10 min more.
USABLE_S = {Driver.PREINSTALLED: 215, Driver.NONE: 215, Driver.INSTALL: 665}
# Not measured anywhere: the image's way into the VM, a process with its ceilings, a step, a profile, a download.
PULL_S, START_S, STEP_S, PROFILE_S, DOWNLOAD_S = 120, 60, 0.3, 180, 60
# The label that tells our insert from a stranger's; the plan shows this in its place.
GIVEN_AT_INSERT = "given-at-insert"
# NVIDIA's units for it came with Ampere: https://docs.nvidia.com/cuda/ampere-tuning-guide (improved tensor cores).
BF16_CAPABILITY = (8, 0)
# Characters of an image reference: a registry, a path, a tag, a digest.
IMAGE = r"[a-z0-9][-._/:@a-zA-Z0-9]{0,511}"
# All metadata of an instance together may have 256 KB.
MAX_METADATA_BYTES = 250_000


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything that a launch is about to do. `zones` in the order in which they are tried, the named ones first.

    `vm_images`: what the VM may boot, the first one that there is. `shielded`: as the insert is sent it.
    `notes`: what the user should know before the VM costs anything.
    """

    request: Request
    settings: Settings
    gpu: Gpu
    machine: MachineType
    vm_images: tuple[VmImage, ...]
    driver: Driver
    shielded: Mapping[str, bool]
    options: Options
    zones: tuple[str, ...]
    notes: tuple[str, ...] = ()
    programs: Mapping[str, str] = field(repr=False)

    @property
    def name(self) -> str:
        """Of the launch and of its VM."""
        return self.request.name

    @property
    def limit_s(self) -> int:
        """From the VM's start until the cloud deletes it."""
        return self.request.limit_s

    @cached_property
    def spec(self) -> RunSpec:
        """The run as the VM will do it."""
        return RunSpec(**self.request.spec)

    @property
    def vm_image(self) -> VmImage:
        """What the VM boots."""
        return self.vm_images[0]

    @property
    def attempts(self) -> int:
        """How often a VM is had at most, where the cloud takes it back."""
        return self.options.rerun_preempted + 1

    def renamed(self, request: Request) -> "Plan":
        """The same as a launch of its own."""
        return replace(self, request=request)

    def launched(self, now: datetime, *, image: str) -> "Plan":
        """The same at that time, which its name has too, with the image by the registry's digest."""
        request = replace(
            self.request,
            name=_name(self.gpu, now, token=self.name.rpartition("-")[2]),
            launched_at=_stamp(now),
            image=_checked_image(image),
        )
        plan = replace(self, request=request)
        _check_size(plan)
        return plan

    def on_image(self, image: VmImage, notes: tuple[str, ...]) -> "Plan":
        """The same with the image that was found for it."""
        driver = self.driver if self.driver is Driver.NONE else image.driver
        return replace(
            self,
            vm_images=(image,),
            driver=driver,
            request=replace(
                self.request, options={**self.request.options, "vm_image": image.path, "driver": str(driver)}
            ),
            notes=(*notes, *self.notes),
        )

    def price(self, zone: str) -> Price | None:
        """Of the whole VM in that zone; None: unknown."""
        return self.request.price(zone)

    def usd_per_h(self, zone: str) -> float | None:
        """USD per hour in that zone, of all that is counted; None: unknown."""
        price = self.price(zone)
        return price.whole_usd_per_h if price else None

    @property
    def usable_s(self) -> float:
        """As published by others: from the insert until the driver can be used."""
        return USABLE_S[self.driver]

    @property
    def ready_s(self) -> float:
        """An estimate: from the insert until the run starts."""
        return self.usable_s + PULL_S

    @property
    def run_s(self) -> float:
        """An estimate of all repeats, the profile and a download; the model and the GPU are not looked at."""
        spec = self.spec.filled(self.spec.device, cpus=self.machine.vcpus)
        warmup_s, measured_s = (
            (steps or 0) * spec.grad_accumulation * STEP_S for steps in (spec.warmup, spec.iterations)
        )
        steps_s = warmup_s + max(measured_s, spec.min_seconds or 0.0)
        profile = 0 if spec.profile is Profile.NONE else PROFILE_S
        return spec.repeats * (START_S + steps_s) + profile + (DOWNLOAD_S if spec.download else 0)

    @property
    def expected_s(self) -> float:
        """An estimate of how long the VM lives, at most its limit."""
        return min(self.ready_s + self.run_s, self.limit_s)

    def expected_usd(self, zone: str) -> float | None:
        """An estimate for one attempt in that zone."""
        return self._usd(zone, self.expected_s)

    @property
    def highest_usd(self) -> float | None:
        """Of one attempt in the dearest zone that may be tried and has a known price; None: no price is known."""
        return max((usd for zone in self.zones if (usd := self.max_usd(zone)) is not None), default=None)

    @property
    def regions_without_price(self) -> list[str]:
        """Those that may be tried, in that order."""
        regions = dict.fromkeys(map(region_of, self.zones))
        return [region for region in regions if region not in self.request.prices]

    def max_usd(self, zone: str) -> float | None:
        """Of one attempt that runs into the limit, from its insert to a late deletion."""
        return self._usd(zone, self.limit_s + AROUND_S)

    def _usd(self, zone: str, seconds: float) -> float | None:
        usd_per_h = self.usd_per_h(zone)
        return None if usd_per_h is None else usd_per_h * seconds / SECONDS_PER_H

    def body(self, zone: str, *, request_id: str) -> dict[str, Any]:
        """What instances.insert is sent for that zone: REST names, 64-bit integers as text. No credential in it."""
        labels = {
            "rooflaunch": "launch",
            "rooflaunch-name": self.name,
            # A duration, no time of ours: a laptop's clock may be hours off, and the cloud dates what it makes.
            LIMIT_LABEL: str(self.limit_s),
        }
        accelerators = {"guestAccelerators": self._accelerators(zone)} if self.gpu.accelerator else {}
        shielded = {"shieldedInstanceConfig": dict(self.shielded)} if self.shielded else {}
        return {
            "name": self.name,
            "machineType": f"zones/{zone}/machineTypes/{self.machine.name}",
            **accelerators,
            "scheduling": self._scheduling(),
            "disks": [self._disk(zone, labels)],
            **shielded,
            "networkInterfaces": [self._interface(zone)],
            "serviceAccounts": [{"email": self.settings.service_account, "scopes": [SCOPE]}],
            "labels": {**labels, "rooflaunch-request": request_id},
            "metadata": {"items": [{"key": key, "value": value} for key, value in self.metadata().items()]},
        }

    def _accelerators(self, zone: str) -> list[dict[str, Any]]:
        kind = f"zones/{zone}/acceleratorTypes/{self.gpu.accelerator}"
        return [{"acceleratorType": kind, "acceleratorCount": self.request.gpu_count}]

    def _scheduling(self) -> dict[str, Any]:
        # No cloud deletes a VM that host maintenance or a host error has stopped. Started again it saves what there is
        # and deletes itself (boot.py); it never measures twice. A spot VM is deleted, and may not be started again.
        return {
            "provisioningModel": "SPOT" if self.options.spot else "STANDARD",
            "onHostMaintenance": "TERMINATE",
            "automaticRestart": not self.options.spot,
            "instanceTerminationAction": "DELETE",
            "maxRunDuration": {"seconds": str(self.limit_s)},
        }

    def _disk(self, zone: str, labels: Mapping[str, str]) -> dict[str, Any]:
        return {
            "boot": True,
            "autoDelete": True,
            "type": "PERSISTENT",
            "initializeParams": {
                "sourceImage": self.vm_image.path,
                "diskType": f"zones/{zone}/diskTypes/{self.gpu.disk_type}",
                "diskSizeGb": str(self.options.disk_gb),
                "labels": dict(labels),
            },
        }

    def _interface(self, zone: str) -> dict[str, Any]:
        network, subnetwork = self.settings.network, self.settings.subnetwork
        interface: dict[str, Any] = {}
        if network or not subnetwork:
            network = network or "default"
            interface["network"] = network if "/" in network else f"global/networks/{network}"
        if subnetwork:
            by_name = f"regions/{region_of(zone)}/subnetworks/{subnetwork}"
            interface["subnetwork"] = subnetwork if "/" in subnetwork else by_name
        if self.options.external_ip:
            interface["accessConfigs"] = [{"name": "External NAT", "type": "ONE_TO_ONE_NAT"}]
        return interface

    def metadata(self) -> dict[str, str]:
        return {
            **self.programs,
            "enable-guest-attributes": "TRUE",
            "serial-port-logging-enable": "TRUE",
            "rooflaunch-request": self.request.to_bytes().decode(),
            "rooflaunch-image": self.request.image,
            "rooflaunch-bucket": self.settings.bucket,
            "rooflaunch-driver": self.driver,
        }

    def to_json(self) -> dict[str, Any]:
        """Plain values for `--dry-run --format json`; `insert` is what the first zone would be sent now."""
        zone = self.zones[0]
        price = self.price(zone)
        return {
            "name": self.name,
            "gpu": self.gpu.name,
            "machine_type": self.machine.name,
            "vm_images": [image.path for image in self.vm_images],
            "spot": self.options.spot,
            "zones": list(self.zones),
            "zone": zone,
            "price": asdict(price) if price else None,
            "expected_s": self.expected_s,
            "expected_usd": self.expected_usd(zone),
            "limit_s": self.limit_s,
            "max_usd": self.highest_usd,
            "regions_without_price": self.regions_without_price,
            "settings": self.settings.to_json(),
            "notes": list(self.notes),
            "insert": self.shown_body(),
        }

    def shown_body(self) -> dict[str, Any]:
        """What the first zone would be sent."""
        return self.body(self.zones[0], request_id=GIVEN_AT_INSERT)

    def text(self, width: int | None = None) -> str:
        """The plan as lines, our commands in it as they can be typed here."""
        return plan_text.render(self, width)

    def sent_text(self) -> str:
        """What the first zone would be sent, with its long texts left short."""
        return plan_text.render_request(self)


def make_plan(
    resolved: Resolved,
    options: Options,
    settings: Settings,
    *,
    image: str,
    now: datetime,
    token: str,
    today: PriceList | None = None,
    notes: Sequence[str] = (),
) -> Plan:
    """The plan of `launch gcp`; touches nothing but the tables and the start-up script.

    `image` has the registry's digest, except in a dry run. `token`: 6 hex digits that make the name unique; `now` is
    aware; `today` is Google's price list where it is at hand. Raises `UsageError` for what a VM cannot do or the GPU
    does not have, `ToolError` for a broken installation.
    """
    gpu = gpus.require(options.gpu)
    choices.check_options(options)
    machine, count = choices.choose_machine(gpu, options)
    spec, changed = choices.on_vm(resolved.spec, gpu)
    with_driver = spec.device is not Device.CPU
    images = vm_images.candidates(gpu, options, with_driver=with_driver)
    driver = images[0].driver if with_driver else Driver.NONE
    zones = choices.zone_order(gpu, options, settings)
    prices = choices.known_prices(gpu, machine, count, options, zones, now, today)
    if options.max_cost_usd is not None:
        zones = choices.with_price(zones, prices, options)
    request = Request(
        name=_name(gpu, now, token=token),
        backend="gcp",
        launched_at=_stamp(now),
        store=f"gs://{settings.bucket}",
        place=f"gcp-{gpu.name}",
        runtime=Runtime.DOCKER,
        limit_s=choices.time_limit_s(options, prices.values()),
        spec=spec.to_json(),
        spec_origin={key: str(value) for key, value in resolved.origin.items() if key != "data_dir"},
        image=_checked_image(image),
        gpu=gpu.name,
        gpu_count=count,
        machine_type=machine.name,
        zones=list(zones),
        spot=options.spot,
        prices={region: asdict(price) for region, price in prices.items()},
        options={
            "project": settings.project,
            "flavour": gpu.flavour if with_driver else CPU_FLAVOUR,
            "vm_image": images[0].path,
            "driver": str(driver),
            "secure_boot": bool(options.secure_boot),
        },
    )
    plan = Plan(
        request=request,
        settings=settings,
        gpu=gpu,
        machine=machine,
        vm_images=images,
        driver=driver,
        shielded=vm_images.shielded_config(options),
        options=options,
        zones=zones,
        programs={key: _program(name) for key, name in PROGRAMS.items()},
    )
    _check_size(plan)
    return replace(plan, notes=(*changed, *notes, *_notes(plan)))


def _name(gpu: Gpu, now: datetime, *, token: str) -> str:
    return f"rooflaunch-{gpu.name}-{now.astimezone(UTC):%Y%m%d-%H%M%S}-{token}"


def _stamp(now: datetime) -> str:
    return now.astimezone(UTC).isoformat(timespec="milliseconds")


def _checked_image(image: str) -> str:
    if not re.fullmatch(IMAGE, image):
        raise UsageError(
            f"image must be a reference such as HOST/PATH@sha256:…; got '{shown(image)}'",
            hint="--image us-central1-docker.pkg.dev/PROJECT/rooflaunch/trainer@sha256:…",
        )
    return image


def _check_size(plan: Plan) -> None:
    size = sum(len(key) + len(value.encode()) for key, value in plan.metadata().items())
    if size > MAX_METADATA_BYTES:
        raise UsageError(
            f"the request has {size} bytes; a VM's metadata takes {MAX_METADATA_BYTES}",
            hint="shorter values for --model and the other run options",
        )


def _notes(plan: Plan) -> Iterator[str]:
    if plan.driver is Driver.NONE:
        yield f"the run computes on the VM's CPU; its {plan.gpu.title} is paid for all the same"
    elif plan.request.gpu_count > 1:
        yield f"the run computes on one GPU of {plan.request.gpu_count}"
    if (
        plan.driver is not Driver.NONE
        and plan.spec.precision is Precision.BF16
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
        yield f"no project is set: {ANY_PROJECT} stands for yours; --project names it"
    if plan.ready_s + plan.run_s > plan.limit_s:
        yield f"the run may not be over within the limit of {plan.limit_s} s: --max-run-time"
    if not plan.options.external_ip:
        yield "without an external address the VM needs Cloud NAT, for its packages"
    if plan.settings.subnetwork and "/" not in plan.settings.subnetwork:
        yield f"every region needs a subnetwork '{plan.settings.subnetwork}'; name it with its region to stay there"


def _program(name: str) -> str:
    try:
        return (PROGRAM_FOLDER / name).read_text(encoding="utf-8")
    except OSError as error:
        raise ToolError(f"this installation lacks {name}", hint="install rooflaunch again") from error

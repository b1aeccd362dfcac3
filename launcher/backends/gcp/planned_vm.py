"""Planned VM of a launch: its properties, what it may cost, its text for the user, and the request. Pure functions."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from launcher.backends.gcp.gpus import Driver, GpuOffer, MachineType, VmImage
from launcher.backends.gcp.options import Options
from launcher.backends.gcp.resources import LIMIT_LABEL
from launcher.backends.gcp.settings import Settings
from launcher.protocol.backend import Estimate
from launcher.protocol.records import Price, Request, region_of
from launcher.sizes import shown
from workload.contract.errors import UsageError
from workload.contract.invocation import as_typed
from workload.contract.spec import Profile, RunSpec
from workload.contract.text import counted, dollars, minutes, wrapped

SCOPE = "https://www.googleapis.com/auth/cloud-platform"
# Published seconds from the insert to a usable driver: 215. Installing a driver takes 5 to 10 min more; 450 s here.
USABLE_S = {Driver.PREINSTALLED: 215, Driver.NONE: 215, Driver.INSTALL: 665}
# Assumed seconds: pulling the image, starting a run (with its measured ceilings), one step, a profile, a download.
PULL_S, START_S, STEP_S, PROFILE_S, DOWNLOAD_S = 120, 60, 0.3, 180, 60
# Placeholder, in a printed plan, for the VM's label with the id of its insert request.
GIVEN_AT_INSERT = "given-at-insert"
# Compute Engine may delete a VM this many seconds after its maxRunDuration.
LATE_S = 30
# A VM costs money from insert to deletion. An insert is given up after 180 s (provision.py). The time limit counts from
# the VM's start. After the limit the VM has 90 s to shut down: https://cloud.google.com/compute/docs/instances/stop-vm
STARTING_S, STOPPING_S = 180, 90
AROUND_S = STARTING_S + LATE_S + STOPPING_S
SECONDS_PER_H = 3600
# Characters of an image reference: a registry, a path, a tag, a digest.
IMAGE = r"[a-z0-9][-._/:@a-zA-Z0-9]{0,511}"
# Compute Engine allows 256 KB for all metadata of an instance together.
MAX_METADATA_BYTES = 250_000
FEW = 4
# Column at which the facts of a printed plan begin.
TEXT_COLUMN = 11
# Programs of a VM by metadata key: shell script, the Python that the script starts, and the shutdown script.
PROGRAMS = {
    "startup-script": "startup.sh",
    "rooflaunch-boot": "boot.py",
    "rooflaunch-guest": "guest.py",
    "shutdown-script": "shutdown.sh",
}
REQUEST = "rooflaunch-request"


@dataclass(frozen=True, kw_only=True)
class VmPlan:
    """Plan of a launch with its VM. `text` shows the plan to the user; `body` is the request that creates the VM.

    `zones`: in the order in which they are tried, the zones named by the user first. `vm_images`: images that the VM
    may boot; the first one that exists is taken. `shielded`: the insert's `shieldedInstanceConfig`. `notes`: what the
    user should know before the VM costs anything.
    """

    request: Request
    settings: Settings
    gpu: GpuOffer
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
    def vm_image(self) -> VmImage:
        """Image that the VM boots."""
        return self.vm_images[0]

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
        """Published seconds from the insert request until the driver can be used."""
        return USABLE_S[self.driver]

    @property
    def ready_s(self) -> float:
        """Estimated seconds from the insert until the run starts."""
        return self.usable_s + PULL_S

    @cached_property
    def run_s(self) -> float:
        """Estimated seconds for all runs, their profiles and a download. Model and GPU are not considered."""
        runs = [run.spec.filled(run.spec.device, cpus=self.machine.vcpus) for run in self.request.work.runs]
        seconds = sum(START_S + _steps_s(spec) for spec in runs)
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
        return self._usd(zone, self.limit_s + AROUND_S)

    def _usd(self, zone: str, seconds: float) -> float | None:
        usd_per_h = self.usd_per_h(zone)
        return None if usd_per_h is None else usd_per_h * seconds / SECONDS_PER_H

    def body(self, zone: str, *, request_id: str) -> dict[str, Any]:
        """Body of instances.insert for this zone: REST names, 64-bit integers as text. Contains no credential."""
        labels = {
            "rooflaunch": "launch",
            "rooflaunch-name": self.name,
            # A duration, no end time: this computer's clock may be hours off, and the cloud records the VM's start.
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
        # The cloud never deletes a VM that host maintenance or a host error has stopped, but it can restart the VM:
        # boot.py then saves the results, does the missing runs of a sweep, and deletes the VM; no run is measured
        # twice. A spot VM is deleted, and may not be restarted.
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
        """The plan as a JSON object, for `--dry-run --format json`. Key `insert`: the request for the first zone."""
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
        """Body of the insert for the first zone, with a placeholder as its request id."""
        return self.body(self.zones[0], request_id=GIVEN_AT_INSERT)

    def renamed(self, request: Request) -> "VmPlan":
        """Copy of the plan with `request`, for a separate launch."""
        return replace(self, request=request)

    def launched(self, now: datetime, *, image: str) -> "VmPlan":
        """Copy of the plan with `image` (a reference by digest), the launch time `now`, and a name with this time."""
        request = replace(
            self.request,
            name=launch_name(self.gpu, now, token=self.name.rpartition("-")[2]),
            launched_at=time_stamp(now),
            image=checked_image(image),
        )
        plan = replace(self, request=request)
        check_size(plan)
        return plan

    def on_image(self, image: VmImage, notes: tuple[str, ...]) -> "VmPlan":
        """Copy of the plan whose VM boots `image`, with `notes` before the plan's own notes."""
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

    def text(self, width: int | None = None) -> str:
        """The plan as text for the user, in lines of at most `width` characters."""
        return text_of([*run_rows(self), *_vm(self), *_cost(self)], self.notes, width)

    def sent_text(self) -> str:
        """Request that creates the VM in the first zone: a line of explanation, then JSON with long texts shortened."""
        request = f"request    instances.insert in {self.zones[0]}; --format json shows its texts in full"
        return f"{request}\n{json.dumps(_short(self), indent=1)}"


def _steps_s(spec: RunSpec) -> float:
    """Estimated seconds for the steps of one run. `spec`: result of `RunSpec.filled`, which sets defaults."""
    warmup_s, measured_s = ((steps or 0) * spec.grad_accumulation * STEP_S for steps in (spec.warmup, spec.iterations))
    return warmup_s + max(measured_s, spec.min_seconds or 0.0)


def launch_name(gpu: GpuOffer, now: datetime, *, token: str) -> str:
    return f"rooflaunch-{gpu.name}-{now.astimezone(UTC):%Y%m%d-%H%M%S}-{token}"


def time_stamp(now: datetime) -> str:
    return now.astimezone(UTC).isoformat(timespec="milliseconds")


def checked_image(image: str) -> str:
    if not re.fullmatch(IMAGE, image):
        raise UsageError(
            f"image must be a reference such as HOST/PATH@sha256:…; got '{shown(image)}'",
            hint="--image us-central1-docker.pkg.dev/PROJECT/rooflaunch/trainer@sha256:…",
        )
    return image


def check_size(plan: VmPlan) -> None:
    size = sum(len(key) + len(value.encode()) for key, value in plan.metadata().items())
    if size > MAX_METADATA_BYTES:
        shorter = "shorter values for --model and the other run options"
        task = plan.request.work if plan.request.task else None
        raise UsageError(
            f"the request{f' for {task}' if task else ''} has {size} bytes; a VM's metadata takes {MAX_METADATA_BYTES}",
            hint="more machines, which share the runs" if task else shorter,
        )


# The text for the user.


def text_of(rows: Iterable[tuple[str, str]], notes: Iterable[str], width: int | None) -> str:
    """Text of a plan: rows of a name and a fact, then the notes, in lines of at most `width` characters."""
    named = [*rows, *(("note", note) for note in notes)]
    return "\n".join(wrapped(as_typed(text), width, indent=TEXT_COLUMN, first=name) for name, text in named)


def run_rows(plan: VmPlan) -> Iterator[tuple[str, str]]:
    """Rows of a plan's text: the runs, the files that are sent, and the origin of each option."""
    spec = plan.spec
    times = "one run" if spec.repeats == 1 else f"{spec.repeats} runs, each in its own process"
    profile = "" if spec.profile is Profile.NONE else f", then a profile by {spec.profile}"
    single = f"{shown(spec.title)}, on {spec.where}; {times}{profile}"
    yield "plan", f"{plan.request.work}, each in its own process" if plan.request.task else single
    if files := plan.request.files_text:
        yield "sends", files
    origin = plan.request.spec_origin.items()
    yield "set by", ", ".join(f"{name}: {source}" for name, source in origin) or "all defaults"


def _vm(plan: VmPlan) -> Iterator[tuple[str, str]]:
    kind = "spot" if plan.options.spot else "on demand"
    yield "vm", f"{plan.machine.name} with {plan.request.gpu_count} x {plan.gpu.title}, {kind}"
    yield "name", plan.name
    yield "zones", _zones(plan)
    image = plan.vm_image
    yield "vm image", f"{image.project}, {'newest of ' if image.is_family else ''}{image.name}"
    if plan.shielded:
        options = {"enableSecureBoot": "Secure Boot", "enableVtpm": "vTPM", "enableIntegrityMonitoring": "integrity"}
        yield "shielded", ", ".join(f"{what} {'on' if plan.shielded[key] else 'off'}" for key, what in options.items())
    yield "driver", _driver(plan)
    yield "disk", f"{plan.options.disk_gb} GB, {plan.gpu.disk_type}"
    yield "image", f"{plan.request.image}, flavour {plan.request.options['flavour']}"
    yield "account", plan.settings.service_account
    yield "bucket", f"gs://{plan.settings.bucket}/runs/"


def _driver(plan: VmPlan) -> str:
    below = f", below {plan.gpu.driver_below}" if plan.gpu.driver_below else ""
    needed = f"the run needs {plan.gpu.minimum_driver} or newer{below}"
    match plan.driver:
        case Driver.PREINSTALLED:
            return f"in the VM image; {needed}"
        case Driver.INSTALL:
            return f"installed on the VM, with a reboot or two; {needed}"
        case Driver.NONE:
            return "none: the run does not use the GPU"


def _zones(plan: VmPlan) -> str:
    named = [zone for zone in plan.zones if zone in plan.options.zones]
    others = [zone for zone in plan.zones if zone not in named]
    if not others:
        return f"{', '.join(named)}, and no other"
    return ", then ".join([*([", ".join(named)] if named else []), _few(others, "zones")])


def _few(names: Sequence[str], what: str) -> str:
    rest = len(names) - FEW
    return ", ".join(names[:FEW]) + (f" and {rest} other {what}" if rest > 0 else "")


def _cost(plan: VmPlan) -> Iterator[tuple[str, str]]:
    zone = plan.zones[0]
    price, region = plan.price(zone), region_of(zone)
    unknown = plan.regions_without_price
    if price:
        usd_per_h = f"{price.usd_per_h:.3f} USD per hour in {region}{_beside(price)}"
        yield "price", f"{usd_per_h}; read {price.read}: {price.source}"
    else:
        yield "price", f"unknown in {region}; set a price with --usd-per-h"
    if price and unknown:
        yield "unknown", f"the price in {_few(unknown, 'regions')}"
    usable, image, run = (minutes(seconds) for seconds in (plan.usable_s, plan.ready_s - plan.usable_s, plan.run_s))
    parts = f"{usable} to a usable VM as published, {image} for the image and {run} for the run assumed"
    yield "expected", f"{minutes(plan.expected_s)}, {dollars(plan.expected_usd(zone))}: {parts}"
    longest = f"{minutes(plan.limit_s)} and {minutes(AROUND_S)} to start and to stop"
    yield "at most", f"{longest}, {_highest(plan)}; then the cloud deletes the VM"
    yield "besides", f"{price.uncounted if price else 'traffic and tax'}, which are not counted here"


def _beside(price: Price) -> str:
    """Text to append to the VM's price: the price with disk and address."""
    if price.disk_usd_per_h is None:
        return ""
    parts = {"disk": price.disk_usd_per_h, "address": price.address_usd_per_h}
    paid = [name for name, usd in parts.items() if usd]
    return f", {price.whole_usd_per_h:.3f} with {' and '.join(paid)}" if paid else ", all in all"


def _highest(plan: VmPlan) -> str:
    """Text on the highest cost over all zones that may be tried, as far as their prices are known."""
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


def _short(plan: VmPlan) -> dict[str, Any]:
    body = plan.shown_body()
    items = {item["key"]: item["value"] for item in body["metadata"]["items"]}
    lines = {key: len(text.splitlines()) for key, text in plan.programs.items()}
    short = {key: f"<launcher/backends/gcp/{PROGRAMS[key]}, {count} lines>" for key, count in lines.items()}
    short[REQUEST] = "<this plan as data>"
    return {**body, "metadata": {"items": [{"key": key, "value": short.get(key, items[key])} for key in items]}}

"""The VM of `launch gcp`: planned from options, settings and the table of GPUs; its text for the user and its request.

Pure functions, but for `find_image`, which asks Compute Engine for the VM's boot image.
"""

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from launcher.backends.gcp import gpus
from launcher.backends.gcp.answers import LIMIT_LABEL, DeniedError
from launcher.backends.gcp.compute import SCOPE, Compute
from launcher.backends.gcp.gpus import Driver, GpuOffer, VmImage
from launcher.backends.gcp.options import ANY_PROJECT, Options, Settings
from launcher.backends.rented_plan import (
    Cloud,
    Draft,
    RentedPlan,
    cost_rows,
    draft_of,
    needs_price,
    own_price,
    require,
    work_notes,
    zones_text,
)
from launcher.backends.shared_plan import compact, program_text, run_rows, text_of
from launcher.protocol.records import Price, Task, region_of
from launcher.values import shown
from workload.contract import prices
from workload.contract.errors import ToolError, UsageError
from workload.contract.spec import Resolved

# Published seconds from the insert to a usable driver: 215. Installing a driver takes 5 to 10 min more; 450 s here.
USABLE_S = {Driver.PREINSTALLED: 215, Driver.NONE: 215, Driver.INSTALL: 665}
# Placeholder, in a printed plan, for the VM's label with the id of its insert request.
GIVEN_AT_INSERT = "given-at-insert"
# Compute Engine may delete a VM this many seconds after its maxRunDuration.
LATE_S = 30
# A VM costs money from insert to deletion. An insert is given up after 180 s (machines.py). The time limit counts from
# the VM's start. After the limit the VM has 90 s to shut down: https://cloud.google.com/compute/docs/instances/stop-vm
STARTING_S, STOPPING_S = 180, 90
AROUND_S = STARTING_S + LATE_S + STOPPING_S
CLOUD = Cloud(
    backend="gcp",
    scheme="gs",
    around_s=AROUND_S,
    at_limit="the cloud deletes the VM",
    usable="as published",
    calculator="cloud.google.com/products/calculator",
    image="us-central1-docker.pkg.dev/PROJECT/rooflaunch/trainer@sha256:…",
    zone="us-central1-a",
)
# Compute Engine allows 256 KB for all metadata of an instance together.
MAX_METADATA_BYTES = 250_000
# Programs of a VM by metadata key: shell script, the Python that the script starts, and the shutdown script.
PROGRAMS = {
    "startup-script": "startup.sh",
    "rooflaunch-boot": "boot.py",
    "rooflaunch-guest": "guest.py",
    "shutdown-script": "shutdown.sh",
}
REQUEST = "rooflaunch-request"
PROGRAM_FOLDER = Path(__file__).parent
NEEDS_NAT = "without an external address the VM needs Cloud NAT, for its packages"


@dataclass(frozen=True, kw_only=True)
class VmPlan(RentedPlan):
    """Plan of a launch with its VM. `text` shows the plan to the user; `body` is the request that creates the VM.

    `vm_images`: images that the VM may boot; the first one that exists is taken.
    """

    cloud = CLOUD

    options: Options
    settings: Settings
    gpu: GpuOffer
    vm_images: tuple[VmImage, ...]
    driver: Driver
    programs: Mapping[str, str] = field(repr=False)

    @property
    def vm_image(self) -> VmImage:
        """Image that the VM boots."""
        return self.vm_images[0]

    @property
    def usable_s(self) -> float:
        """Published seconds from the insert request until the driver can be used."""
        return USABLE_S[self.driver]

    def body(self, zone: str, *, request_id: str) -> dict[str, Any]:
        """Body of instances.insert for this zone: REST names, 64-bit integers as text. Contains no credential."""
        labels = {
            "rooflaunch": "launch",
            "rooflaunch-name": self.name,
            # A duration, no end time: this computer's clock may be hours off, and the cloud records the VM's start.
            LIMIT_LABEL: str(self.limit_s),
        }
        kind = f"zones/{zone}/acceleratorTypes/{self.gpu.accelerator}"
        gpus = [{"acceleratorType": kind, "acceleratorCount": self.request.gpu_count}]
        accelerators = {"guestAccelerators": gpus} if self.gpu.accelerator else {}
        return {
            "name": self.name,
            "machineType": f"zones/{zone}/machineTypes/{self.machine.name}",
            **accelerators,
            # The cloud never deletes a VM that host maintenance or a host error has stopped, but it can restart the
            # VM: boot.py then saves the results, does the missing runs of a sweep, and deletes the VM; no run is
            # measured twice. A spot VM is deleted, and may not be restarted.
            "scheduling": {
                "provisioningModel": "SPOT" if self.options.spot else "STANDARD",
                "onHostMaintenance": "TERMINATE",
                "automaticRestart": not self.options.spot,
                "instanceTerminationAction": "DELETE",
                "maxRunDuration": {"seconds": str(self.limit_s)},
            },
            "disks": [
                {
                    "boot": True,
                    "autoDelete": True,
                    "type": "PERSISTENT",
                    "initializeParams": {
                        "sourceImage": self.vm_image.path,
                        "diskType": f"zones/{zone}/diskTypes/{self.gpu.disk_type}",
                        "diskSizeGb": str(self.options.disk_gb),
                        "labels": labels,
                    },
                }
            ],
            "networkInterfaces": [self._interface(zone)],
            "serviceAccounts": [{"email": self.settings.service_account, "scopes": [SCOPE]}],
            "labels": {**labels, "rooflaunch-request": request_id},
            "metadata": {"items": [{"key": key, "value": value} for key, value in self.metadata().items()]},
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
        return {**self.facts(vm_images=[image.path for image in self.vm_images]), "insert": self.shown_body()}

    def shown_body(self) -> dict[str, Any]:
        """Body of the insert for the first zone, with a placeholder as its request id."""
        return self.body(self.zones[0], request_id=GIVEN_AT_INSERT)

    def launched(self, now: datetime, *, image: str) -> "VmPlan":
        """Copy of the plan with `image` (a reference by digest), the launch time `now`, and a name with this time."""
        plan = self.at(now, image=image)
        check_size(plan)
        return plan

    def on_image(self, image: VmImage, notes: tuple[str, ...]) -> "VmPlan":
        """Copy of the plan for a VM that boots `image`. `notes` come before the plan's own notes."""
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
        return text_of([*run_rows(self.request), *_vm(self), *cost_rows(self)], self.notes, width)

    def sent_text(self) -> str:
        """Request that creates the VM in the first zone: a line of explanation, then JSON with long texts shortened."""
        request = f"request    instances.insert in {self.zones[0]}; --format json shows its texts in full"
        body = self.shown_body()
        short = {
            key: f"<launcher/backends/gcp/{PROGRAMS[key]}, {len(text.splitlines())} lines>"
            for key, text in self.programs.items()
        } | {REQUEST: "<this plan as data>"}
        items = [{**item, "value": short.get(item["key"], item["value"])} for item in body["metadata"]["items"]]
        return f"{request}\n{json.dumps({**body, 'metadata': {'items': items}}, indent=1)}"


def check_size(plan: VmPlan) -> None:
    size = sum(len(key) + len(value.encode()) for key, value in plan.metadata().items())
    if size > MAX_METADATA_BYTES:
        shorter = "shorter values for --model and the other run options"
        task = plan.request.work if plan.request.task else None
        raise UsageError(
            f"the request{f' for {task}' if task else ''} has {size} bytes; a VM's metadata takes {MAX_METADATA_BYTES}",
            hint="more machines, which share the runs" if task else shorter,
        )


def _vm(plan: VmPlan) -> Iterator[tuple[str, str]]:
    kind = "spot" if plan.options.spot else "on demand"
    yield "vm", f"{plan.machine.name} with {plan.request.gpu_count} x {plan.gpu.title}, {kind}"
    yield "name", plan.name
    yield "zones", zones_text(plan)
    image = plan.vm_image
    yield "vm image", f"{image.project}, {'newest of ' if image.is_family else ''}{image.name}"
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


# From the user's options to the plan.


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

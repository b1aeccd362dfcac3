"""Planned VM of a launch: its properties, what it may cost, its text for the user, and the request. Pure functions."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from launcher.backends.gcp.gpus import Driver, GpuOffer, VmImage
from launcher.backends.gcp.options import Options
from launcher.backends.gcp.resources import LIMIT_LABEL
from launcher.backends.gcp.settings import Settings
from launcher.backends.rented_plan import Cloud, RentedPlan, cost_rows, zones_text
from launcher.backends.shared_plan import run_rows, text_of
from launcher.protocol.records import region_of
from workload.contract.errors import UsageError

SCOPE = "https://www.googleapis.com/auth/cloud-platform"
# Published seconds from the insert to a usable driver: 215. Installing a driver takes 5 to 10 min more; 450 s here.
USABLE_S = {Driver.PREINSTALLED: 215, Driver.NONE: 215, Driver.INSTALL: 665}
# Placeholder, in a printed plan, for the VM's label with the id of its insert request.
GIVEN_AT_INSERT = "given-at-insert"
# Compute Engine may delete a VM this many seconds after its maxRunDuration.
LATE_S = 30
# A VM costs money from insert to deletion. An insert is given up after 180 s (provision.py). The time limit counts from
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

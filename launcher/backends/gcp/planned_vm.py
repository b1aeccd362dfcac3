"""The planned VM of a launch: its properties, what it may cost, and the request for Compute Engine. Pure."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from launcher.backends.gcp.choices import AROUND_S, SECONDS_PER_H
from launcher.backends.gcp.gpus import Driver, GpuOffer, MachineType, VmImage
from launcher.backends.gcp.options import Options
from launcher.backends.gcp.resources import LIMIT_LABEL
from launcher.backends.gcp.settings import Settings
from launcher.protocol.backend import Estimate
from launcher.protocol.records import Price, Request, region_of
from workload.contract.spec import Profile, RunSpec

SCOPE = "https://www.googleapis.com/auth/cloud-platform"
# From the insert to a usable driver, as published: 3 min 35 s. Installing the driver adds the middle of 5 to 10 min.
USABLE_S = {Driver.PREINSTALLED: 215, Driver.NONE: 215, Driver.INSTALL: 665}
# Assumed, not measured: pulling the image, starting a process with its ceilings, a step, a profile, a download.
PULL_S, START_S, STEP_S, PROFILE_S, DOWNLOAD_S = 120, 60, 0.3, 180, 60
# Placeholder in a shown plan for the request label, which tells our insert from a stranger's.
GIVEN_AT_INSERT = "given-at-insert"


@dataclass(frozen=True, kw_only=True)
class PlannedVm:
    """A planned launch with its VM. `zones`: in the order in which they are tried, the zones named by the user first.

    `vm_images`: images that the VM may boot; the first one that exists is taken. `shielded`: the insert's
    `shieldedInstanceConfig`. `notes`: what the user should know before the VM costs anything.
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
        """Seconds from the VM's start until the cloud deletes the VM."""
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
    def attempts(self) -> int:
        """Maximum number of VMs that are started one after another if the cloud takes VMs back."""
        return self.options.rerun_preempted + 1

    def price(self, zone: str) -> Price | None:
        """Price of the whole VM in this zone; None if unknown."""
        return self.request.price(zone)

    def usd_per_h(self, zone: str) -> float | None:
        """USD per hour in this zone for everything that is counted; None if unknown."""
        price = self.price(zone)
        return price.whole_usd_per_h if price else None

    @property
    def usable_s(self) -> float:
        """Seconds from the insert until the driver can be used, as others published them."""
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
        """Estimate for an attempt in the first zone. `most_usd`: all attempts in the dearest priced zone."""
        highest = self.highest_usd
        return Estimate(
            ready_s=self.ready_s,
            run_s=self.run_s,
            limit_s=self.limit_s,
            usd_per_h=self.usd_per_h(self.zones[0]),
            most_usd=None if highest is None else highest * self.attempts,
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
            # A duration, not a point in time: a laptop's clock may be hours off, and the cloud dates what it creates.
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
        # No cloud deletes a VM that host maintenance or a host error has stopped. A restarted VM saves its results
        # (boot.py), in a sweep does the missing runs, and deletes itself; it never measures a run twice. A spot VM is
        # deleted, and may not be restarted.
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
        """Plain values for `--dry-run --format json`. `insert`: the request that the first zone would be sent now."""
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


def _steps_s(spec: RunSpec) -> float:
    """Estimated seconds for the steps of one run. `spec` must be filled."""
    warmup_s, measured_s = ((steps or 0) * spec.grad_accumulation * STEP_S for steps in (spec.warmup, spec.iterations))
    return warmup_s + max(measured_s, spec.min_seconds or 0.0)

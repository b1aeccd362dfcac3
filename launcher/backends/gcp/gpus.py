"""GPUs of Compute Engine: reads gpus.toml and the prices in prices.toml, and checks them."""

import functools
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

from launcher.backends.machine_types import MachineType, gpu_named, zones_of
from launcher.protocol.records import Price, region_of
from workload.contract import prices
from workload.contract.errors import ToolError
from workload.contract.prices import VmPrice

TABLE = Path(__file__).with_name("gpus.toml")
# A VM that is deleted within 7 days, on demand or spot, may use preemptible quota, but standard quota is enough too:
# https://cloud.google.com/compute/docs/release-notes (2024-06-18), docs.cloud.google.com/compute/resource-usage
PREEMPTIBLE_S = 7 * 86400


class Driver(StrEnum):
    """Origin of the VM's driver; `none` for a run that does not use the GPU."""

    PREINSTALLED = "preinstalled"
    INSTALL = "install"
    NONE = "none"


@dataclass(frozen=True, kw_only=True)
class VmImage:
    """An image family of Compute Engine, whose newest image a VM boots; with `is_family` False, a single image.

    `signed`: whether the image's driver loads under Secure Boot; None if unknown.
    """

    project: str
    name: str
    is_family: bool = True
    driver: Driver = Driver.PREINSTALLED
    signed: bool | None = None

    @property
    def path(self) -> str:
        """Resource path of the image, in the form that the request for a disk needs."""
        return f"projects/{self.project}/global/images/{'family/' if self.is_family else ''}{self.name}"


@dataclass(frozen=True, kw_only=True)
class GpuOffer:
    """A row of gpus.toml with its prices. `accelerator`: type of the attached GPU; None if the machine has it built in.

    `sku`, `series`: names of GPU and machine in Google's price list; None if the price is not computed from SKUs here.
    `device`: name of the GPU among the vendors' peaks (workload/contract/peaks.toml).
    """

    name: str
    title: str
    memory_gb: int
    device: str
    accelerator: str | None = None
    capability: tuple[int, int]
    flavour: str
    minimum_driver: str
    driver_below: str | None = None
    vm_images: tuple[VmImage, ...]
    disk_type: str
    quota: str
    machine_types: Mapping[str, MachineType]
    default_machine_type: str
    zones: tuple[str, ...]
    prices: tuple[VmPrice, ...]
    sku: str | None = None
    series: str | None = None

    @property
    def vm_image(self) -> VmImage:
        """Image that a VM with this GPU boots by default."""
        return self.vm_images[0]

    @property
    def regions(self) -> tuple[str, ...]:
        """Regions with this GPU, in the order of the zones."""
        return tuple(dict.fromkeys(map(region_of, self.zones)))

    @property
    def preemptible_quota(self) -> str:
        """Name of the quota for short-lived VMs in regions.get. If a region lacks this name, its quota is unknown."""
        return f"PREEMPTIBLE_{self.quota}"

    def quota_metrics(self, *, spot: bool, limit_s: int) -> tuple[str, ...]:
        """Quotas under which a VM with a time limit of `limit_s` seconds may start; room in one of them is enough."""
        passing = spot or limit_s <= PREEMPTIBLE_S
        return (self.preemptible_quota, self.quota) if passing else (self.quota,)

    def price(self, machine_type: str, *, gpus: int, region: str, spot: bool) -> Price | None:
        """Listed price for exactly this machine type, number of GPUs and region, spot or on demand; None if unknown."""
        for row in self.prices:
            usd_per_h = row.figure(spot=spot)
            if (row.machine_type, row.gpus, row.region) == (machine_type, gpus, region) and usd_per_h is not None:
                return Price(usd_per_h=usd_per_h, source=row.source, read=row.read)
        return None


def load() -> dict[str, GpuOffer]:
    """Rows of gpus.toml by the GPU's name. Raises `ToolError` if rows contradict each other."""
    return dict(_loaded(TABLE))


def require(name: str) -> GpuOffer:
    """Row of the GPU with this name. Raises `UsageError` for an unknown name."""
    return gpu_named(name, load())


def parse(table: Mapping[str, Any], listed: Iterable[VmPrice]) -> dict[str, GpuOffer]:
    """Rows of a table in the form of gpus.toml, with their prices. Raises `ToolError` for contradictions."""
    listed = tuple(listed)
    images = {name: _vm_image(row) for name, row in table["vm_image"].items()}
    gpus = {name: _row(name, row, listed, images) for name, row in table["gpu"].items()}
    for gpu in gpus.values():
        for problem in _problems(gpu):
            raise ToolError(f"{TABLE.name}: {gpu.name}: {problem}", hint="correct the table, with the source's figures")
    return gpus


@functools.cache
def _loaded(path: Path) -> Mapping[str, GpuOffer]:
    return parse(tomllib.loads(path.read_text(encoding="utf-8")), prices.load().listed)


def _vm_image(row: Mapping[str, Any]) -> VmImage:
    project, _, family = row["family"].partition("/")
    return VmImage(project=project, name=family, driver=Driver(row["driver"]), signed=row["signed"])


def _row(name: str, row: Mapping[str, Any], listed: Iterable[VmPrice], images: Mapping[str, VmImage]) -> GpuOffer:
    major, _, minor = row["capability"].partition(".")
    machines = [MachineType(**{**machine, "gpus": tuple(machine["gpus"])}) for machine in row["machine"]]
    names = {item.name for item in fields(GpuOffer)}
    facts = {key: value for key, value in row.items() if key in names}
    parsed = {
        "name": name,
        "title": f"{row['title']} {row['memory_gb']} GB",
        "capability": (int(major), int(minor)),
        "vm_images": tuple(images[image] for image in row["vm_images"]),
        "machine_types": {machine.name: machine for machine in machines},
        "zones": tuple(zones_of(row["zones"])),
        "prices": tuple(price for price in listed if (price.provider, price.gpu) == (prices.GCP, row["device"])),
    }
    return GpuOffer(**{**facts, **parsed})


def _problems(gpu: GpuOffer) -> Iterator[str]:
    if gpu.default_machine_type not in gpu.machine_types:
        yield f"no machine type {gpu.default_machine_type}"
    if len(set(gpu.zones)) != len(gpu.zones):
        yield "a zone is listed twice"
    for price in gpu.prices:
        machine = gpu.machine_types.get(price.machine_type)
        if machine is None or price.gpus not in machine.gpus or price.region not in gpu.regions:
            yield f"a price for {price.machine_type} in {price.region} with {price.gpus} GPUs, which is not offered"

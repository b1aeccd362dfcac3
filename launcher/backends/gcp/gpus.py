"""GPUs of Compute Engine: reads gpus.toml and the prices in prices.toml, and checks them."""

import functools
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from launcher.backends.shared_plan import Gpu, gpu_named, parsed_gpus
from workload.contract import prices
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
    """An image family of Compute Engine, whose newest image a VM boots; with `is_family` False, a single image."""

    project: str
    name: str
    is_family: bool = True
    driver: Driver = Driver.PREINSTALLED

    @property
    def path(self) -> str:
        """Resource path of the image, in the form that the request for a disk needs."""
        return f"projects/{self.project}/global/images/{'family/' if self.is_family else ''}{self.name}"


@dataclass(frozen=True, kw_only=True)
class GpuOffer(Gpu):
    """A row of gpus.toml with its prices."""

    driver_below: str | None = None
    vm_images: tuple[VmImage, ...]
    disk_type: str
    quota: str

    @property
    def vm_image(self) -> VmImage:
        """Image that a VM with this GPU boots by default."""
        return self.vm_images[0]

    @property
    def preemptible_quota(self) -> str:
        """Name of the quota for short-lived VMs in regions.get. If a region lacks this name, its quota is unknown."""
        return f"PREEMPTIBLE_{self.quota}"

    def quota_metrics(self, *, spot: bool, limit_s: int) -> tuple[str, ...]:
        """Quotas under which a VM with a time limit of `limit_s` seconds may start; room in one of them is enough."""
        passing = spot or limit_s <= PREEMPTIBLE_S
        return (self.preemptible_quota, self.quota) if passing else (self.quota,)


@functools.cache
def load() -> Mapping[str, GpuOffer]:
    """Rows of gpus.toml by the GPU's name. Raises `ToolError` if rows contradict each other."""
    return parse(tomllib.loads(TABLE.read_text(encoding="utf-8")), prices.load().listed)


def require(name: str) -> GpuOffer:
    """Row of the GPU with this name. Raises `UsageError` for an unknown name."""
    return gpu_named(name, load())


def parse(table: Mapping[str, Any], listed: Iterable[VmPrice]) -> dict[str, GpuOffer]:
    """Rows of a table in the form of gpus.toml, with their prices. Raises `ToolError` for contradictions."""
    images = {}
    for name, row in table["vm_image"].items():
        project, _, family = row["family"].partition("/")
        images[name] = VmImage(project=project, name=family, driver=Driver(row["driver"]))
    ours = [price for price in listed if price.provider == prices.GCP]
    return parsed_gpus(
        GpuOffer, table["gpu"], ours, lambda row: {"vm_images": tuple(images[name] for name in row["vm_images"])}
    )

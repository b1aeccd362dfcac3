"""GPUs of EC2: reads gpus.toml and the prices in prices.toml, and checks them."""

import functools
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.backends.shared_plan import Gpu, gpu_named, parsed_gpus
from launcher.protocol.records import region_of
from workload.contract import prices
from workload.contract.errors import UsageError
from workload.contract.prices import VmPrice

TABLE = Path(__file__).with_name("gpus.toml")
PROVIDER = "aws"
DIRECTION = re.compile("north|south|east|west|central")


@dataclass(frozen=True, kw_only=True)
class QuotaFamily:
    """A family of quotas in vCPUs, with their codes. Quotas on demand and for spot are separate."""

    title: str
    on_demand: str
    spot: str

    def code(self, *, spot: bool) -> str:
        return self.spot if spot else self.on_demand


@dataclass(frozen=True, kw_only=True)
class GpuOffer(Gpu):
    """A row of gpus.toml with its prices. The price of a spot VM is the highest of the region's zones."""

    quota: QuotaFamily

    def zones_in(self, region: str) -> tuple[str, ...]:
        """Ids of the zones with this GPU in a region."""
        return tuple(zone for zone in self.zones if region_of(zone) == region_code(region))


@dataclass(frozen=True, kw_only=True)
class Table:
    """Content of gpus.toml. `regions`: names of regions by the first part of their zones' ids.

    `refused`: why machine types are not offered, by the beginning of their names; `refused_gpus`: the same for GPUs.
    """

    gpus: Mapping[str, GpuOffer]
    regions: Mapping[str, str]
    refused: Mapping[str, str]
    refused_gpus: Mapping[str, str]


def load() -> dict[str, GpuOffer]:
    """Rows of gpus.toml by the GPU's name. Raises `ToolError` if rows contradict each other."""
    return dict(table().gpus)


@functools.cache
def table() -> Table:
    """Content of gpus.toml. Raises `ToolError` if rows contradict each other."""
    return parse(tomllib.loads(TABLE.read_text(encoding="utf-8")), prices.load().listed)


def require(name: str) -> GpuOffer:
    """Offer of the GPU with this name. Raises `UsageError` if it is unknown, or refused for a reason in the table."""
    if why := table().refused_gpus.get(name):
        raise UsageError(why, hint=f"--gpu {' or '.join(load())}; launch gcp --gpu {name}")
    return gpu_named(name, load())


def refuse_machine_type(name: str | None, gpu: GpuOffer) -> None:
    """Raise `UsageError` for a machine type that is refused by name."""
    for start, why in table().refused.items():
        if name and name.startswith(start):
            raise UsageError(f"machine type '{name}' {why}", hint=f"--machine-type {gpu.default_machine_type}")


def region_code(region: str) -> str:
    """First part of the ids of a region's zones: `use1` for us-east-1; the name of a region that is not listed."""
    return next((code for code, name in region_names().items() if name == region), region)


def region_names() -> Mapping[str, str]:
    """Names of regions by the first part of their zones' ids."""
    return table().regions


def parse(document: Mapping[str, Any], listed: Iterable[VmPrice]) -> Table:
    """A table in the form of gpus.toml, with its prices."""
    quotas = {name: QuotaFamily(**row) for name, row in document["quota"].items()}
    ours = [price for price in listed if price.provider == PROVIDER]
    regions = {_code(region): region for region in document["regions"].split()}
    return Table(
        gpus=parsed_gpus(GpuOffer, document["gpu"], ours, lambda row: {"quota": quotas[row["quota"]]}, regions),
        regions=regions,
        refused=document["refused"],
        refused_gpus=document["refused_gpu"],
    )


def _code(region: str) -> str:
    """First part of the ids of a region's zones, which abbreviates the region's name: `apne1` for ap-northeast-1."""
    first, directions, number = region.split("-")
    return first + "".join(word[0] for word in DIRECTION.findall(directions)) + number

"""GPUs of EC2: reads gpus.toml and the prices in prices.toml, and checks them."""

import functools
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from launcher.backends.machine_types import MachineType, gpu_named, zones_of
from launcher.protocol.records import Price, region_of
from workload.contract import prices
from workload.contract.errors import ToolError, UsageError
from workload.contract.prices import VmPrice

TABLE = Path(__file__).with_name("gpus.toml")
PROVIDER = "aws"
# Words of a region's name, as the ids of its zones abbreviate them: `use1` for us-east-1, `apne1` for ap-northeast-1.
_DIRECTION = re.compile("north|south|east|west|central")
_DIRECTIONS = re.compile(f"({_DIRECTION.pattern})+")


@dataclass(frozen=True, kw_only=True)
class QuotaFamily:
    """A family of quotas in vCPUs, with their codes. Quotas on demand and for spot are separate."""

    title: str
    on_demand: str
    spot: str

    def code(self, *, spot: bool) -> str:
        return self.spot if spot else self.on_demand


@dataclass(frozen=True, kw_only=True)
class GpuOffer:
    """A row of gpus.toml with its prices. `device`: name of the GPU in the vendors' peaks (workload/contract)."""

    name: str
    title: str
    memory_gb: int
    device: str
    capability: tuple[int, int]
    flavour: str
    minimum_driver: str
    quota: QuotaFamily
    machine_types: Mapping[str, MachineType]
    default_machine_type: str
    zones: tuple[str, ...]
    prices: tuple[VmPrice, ...]

    @property
    def accelerator(self) -> None:
        """None: machines of EC2 have their GPUs built in."""
        return

    @property
    def regions(self) -> tuple[str, ...]:
        """Names of the regions with this GPU."""
        known = region_names()
        return tuple(dict.fromkeys(known[region_of(zone)] for zone in self.zones))

    def zones_in(self, region: str) -> tuple[str, ...]:
        """Ids of the zones with this GPU in a region."""
        return tuple(zone for zone in self.zones if region_of(zone) == region_code(region))

    def price(self, machine_type: str, *, region: str, spot: bool) -> Price | None:
        """Listed price of this machine type in a region; None if unknown. Spot: that of the region's dearest zone."""
        for row in self.prices:
            usd_per_h = row.figure(spot=spot)
            if (row.machine_type, row.region) == (machine_type, region) and usd_per_h is not None:
                return Price(usd_per_h=usd_per_h, source=row.source, read=row.read)
        return None


@dataclass(frozen=True, kw_only=True)
class Table:
    """Content of gpus.toml. `refused`: reasons by the beginning of a machine type; `refused_gpus`: by GPU."""

    gpus: Mapping[str, GpuOffer]
    regions: tuple[str, ...]
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
    """First part of the ids of a region's zones: `use1` for us-east-1.

    A region of another partition (us-gov-west-1, cn-north-1, us-iso-east-1) has no zones here: its code is its name.
    """
    first, *words, number = region.split("-")
    if first == "cn" or not all(_DIRECTIONS.fullmatch(word) for word in words):
        return region
    return first + "".join(part[0] for word in words for part in _DIRECTION.findall(word)) + number


def region_names() -> Mapping[str, str]:
    """Names of regions by the first part of their zones' ids."""
    return {region_code(region): region for region in table().regions}


def parse(document: Mapping[str, Any], listed: Iterable[VmPrice]) -> Table:
    """A table in the form of gpus.toml, with its prices. Raises `ToolError` for contradictions."""
    quotas = {name: QuotaFamily(**row) for name, row in document["quota"].items()}
    ours = [price for price in listed if price.provider == PROVIDER]
    gpus = {name: _row(name, row, quotas, ours) for name, row in document["gpu"].items()}
    parsed = Table(
        gpus=gpus,
        regions=tuple(document["regions"].split()),
        refused=document["refused"],
        refused_gpus=document["refused_gpu"],
    )
    codes = {region_code(region) for region in parsed.regions}
    for gpu in gpus.values():
        for problem in _problems(gpu, codes):
            raise ToolError(f"{TABLE.name}: {gpu.name}: {problem}", hint="correct the table, with the source's figures")
    return parsed


def _row(name: str, row: Mapping[str, Any], quotas: Mapping[str, QuotaFamily], listed: Iterable[VmPrice]) -> GpuOffer:
    major, _, minor = row["capability"].partition(".")
    machines = [MachineType(**{**machine, "gpus": tuple(machine["gpus"])}) for machine in row["machine"]]
    facts = {key: value for key, value in row.items() if key in {item.name for item in fields(GpuOffer)}}
    parsed = {
        "name": name,
        "title": f"{row['title']} {row['memory_gb']} GB",
        "capability": (int(major), int(minor)),
        "quota": quotas[row["quota"]],
        "machine_types": {machine.name: machine for machine in machines},
        "zones": tuple(zones_of(row["zones"])),
        "prices": tuple(price for price in listed if price.gpu == row["device"]),
    }
    return GpuOffer(**{**facts, **parsed})


def _problems(gpu: GpuOffer, codes: set[str]) -> Iterator[str]:
    if gpu.default_machine_type not in gpu.machine_types:
        yield f"no machine type {gpu.default_machine_type}"
    if len(set(gpu.zones)) != len(gpu.zones):
        yield "a zone is listed twice"
    if unknown := {region_of(zone) for zone in gpu.zones} - codes:
        yield f"zones of regions that are not listed: {', '.join(sorted(unknown))}"
    for price in gpu.prices:
        machine = gpu.machine_types.get(price.machine_type)
        if machine is None or price.gpus not in machine.gpus or not gpu.zones_in(price.region):
            yield f"a price for {price.machine_type} in {price.region} with {price.gpus} GPUs, which is not offered"

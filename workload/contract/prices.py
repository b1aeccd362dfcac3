"""List prices of clouds from prices.toml, each with its source and date. Only `load` reads the file.

Standard library only: the launcher plans with these prices, and the analysis prices runs that recorded none.
"""

import functools
import math
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workload.contract.errors import ToolError

GCP = "gcp"
TABLE = Path(__file__).with_name("prices.toml")
# A disk is charged by the month: an hour costs most in the shortest month, which has 28 days.
HOURS_PER_MONTH = 28 * 24
# A spot price may equal the price on demand, and pass it by rounding (27.433 and 27.43298 USD).
ROUNDING = 1.0001


@dataclass(frozen=True, kw_only=True)
class VmPrice:
    """USD per hour of a VM with its GPUs, without disk and address; None if unknown.

    `gpu`: name of the GPU in peaks.toml. `provider`: the cloud, as the backend of `launch` is called.
    """

    machine_type: str
    gpu: str
    gpus: int
    region: str
    source: str
    read: str
    usd_per_h: float | None = None
    usd_per_h_spot: float | None = None
    provider: str = GCP

    def figure(self, *, spot: bool) -> float | None:
        """USD per hour, spot or on demand; None if unknown."""
        return self.usd_per_h_spot if spot else self.usd_per_h


@dataclass(frozen=True, kw_only=True)
class DiskPrice:
    """Price of a kind of disk in one region."""

    type: str
    region: str
    usd_per_gb_month: float
    source: str
    read: str
    provider: str = GCP


@dataclass(frozen=True, kw_only=True)
class AddressPrice:
    """Price of an external IPv4 address that a VM uses, in any region."""

    usd_per_h: float
    usd_per_h_spot: float
    source: str
    read: str

    def figure(self, *, spot: bool) -> float:
        """USD per hour beside a VM, spot or on demand."""
        return self.usd_per_h_spot if spot else self.usd_per_h


@dataclass(frozen=True, kw_only=True)
class Prices:
    """Content of prices.toml. `address`, `aws_address`: price of a public IPv4 address at Google Cloud and at AWS."""

    listed: tuple[VmPrice, ...]
    disks: tuple[DiskPrice, ...]
    address: AddressPrice
    aws_address: AddressPrice

    def disk_usd_per_gb_month(self, kind: str, region: str) -> float | None:
        """Price of a disk in USD per GB and month; None if unknown."""
        fitting = (disk.usd_per_gb_month for disk in self.disks if (disk.type, disk.region) == (kind, region))
        return next(fitting, None)


@functools.cache
def load() -> Prices:
    """Read prices.toml. Raises `ToolError` if the file contradicts itself."""
    return parse(tomllib.loads(TABLE.read_text(encoding="utf-8")))


def disk_usd_per_h(usd_per_gb_month: float, gigabytes: int) -> float:
    """Price of a disk in USD per hour, in the shortest month, which has the highest hourly price."""
    return usd_per_gb_month * gigabytes / HOURS_PER_MONTH


def parse(table: Mapping[str, Any]) -> Prices:
    """Parse a table in the form of prices.toml. Raises `ToolError` if the table contradicts itself."""
    sources = table["source"]

    def sourced(row: Mapping[str, Any]) -> dict[str, Any]:
        source = sources[row["source"]]
        return {**row, "source": source["title"], "read": source["read"]}

    prices = Prices(
        listed=tuple(VmPrice(**sourced(row)) for row in table["price"]),
        disks=tuple(DiskPrice(**sourced(row)) for row in table["disk"]),
        address=AddressPrice(**sourced(table["address"])),
        aws_address=AddressPrice(**sourced(table["aws_address"])),
    )
    for problem in _problems(prices):
        raise ToolError(f"{TABLE.name}: {problem}", hint="correct the table, with the source's figures")
    return prices


def _problems(prices: Prices) -> Iterator[str]:
    for row in prices.listed:
        where = f"{row.machine_type} with {row.gpus} {row.gpu} in {row.region}"
        figures = [usd for usd in (row.usd_per_h, row.usd_per_h_spot) if usd is not None]
        if not figures or not all(0 < usd < math.inf for usd in figures):
            yield f"{where} has a price without a positive figure"
        if len(figures) > 1 and figures[1] > figures[0] * ROUNDING:
            yield f"{where} costs more as spot ({figures[1]:g}) than on demand ({figures[0]:g})"
    keys = [(row.machine_type, row.gpu, row.gpus, row.region) for row in prices.listed]
    yield from (f"{key[0]} with {key[2]} {key[1]} in {key[3]} is listed twice" for key in keys if keys.count(key) > 1)

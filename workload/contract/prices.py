"""List prices of clouds from prices.toml, each with its source and date. Only `load` reads the file.

Standard library only: the launcher plans with these prices, and the analysis prices runs that recorded none.
"""

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GCP = "gcp"
TABLE = Path(__file__).with_name("prices.toml")
# A disk is charged by the month: an hour costs most in the shortest month, which has 28 days.
HOURS_PER_MONTH = 28 * 24


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
    """Read prices.toml."""
    table = tomllib.loads(TABLE.read_text(encoding="utf-8"))

    def sourced(row: Mapping[str, Any]) -> dict[str, Any]:
        source = table["source"][row["source"]]
        return {**row, "source": source["title"], "read": source["read"]}

    return Prices(
        listed=tuple(VmPrice(**sourced(row)) for row in table["price"]),
        disks=tuple(DiskPrice(**sourced(row)) for row in table["disk"]),
        address=AddressPrice(**sourced(table["address"])),
        aws_address=AddressPrice(**sourced(table["aws_address"])),
    )


def disk_usd_per_h(usd_per_gb_month: float, gigabytes: int) -> float:
    """Price of a disk in USD per hour, in the shortest month, which has the highest hourly price."""
    return usd_per_gb_month * gigabytes / HOURS_PER_MONTH

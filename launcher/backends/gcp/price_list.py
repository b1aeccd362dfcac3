"""Google's price list: the SKUs that make up the price of a VM, as Cloud Billing lists them today.

A SKU is matched by its whole description, its group, its kind of use, its unit and its regions, as SkyPilot's and
Cyclenerd's collectors of the same list do. If no SKU fits, or SKUs with different prices fit, the price is unknown,
never guessed.
Format of a SKU: https://cloud.google.com/billing/docs/reference/rest/v1/services.skus/list

A launch waits a few seconds for the list, then goes on without prices; the next launch can use a list that comes later.
The list is kept for a day in the cache folder. Any user of a project with the Cloud Billing API may request the
list; no role is needed. google.auth and requests are imported inside functions only.
"""

import json
import math
import os
import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from launcher.backends.gcp import gpus, refusals, services
from launcher.backends.gcp.gpus import GpuOffer
from launcher.backends.gcp.options import Options
from launcher.backends.gcp.services import Services
from launcher.backends.machine_types import MachineType
from launcher.protocol.records import Price
from workload.contract.errors import RooflaunchError
from workload.contract.files import replace_text
from workload.contract.prices import VmPrice, disk_usd_per_h

SOURCE = "Google's price list"
ON_DEMAND, PREEMPTIBLE = "OnDemand", "Preemptible"
PER_H, GB_PER_H, GB_PER_MONTH = "h", "GiBy.h", "GiBy.mo"
EVERYWHERE = "global"
# Kinds of disk that a launch makes and that are a single SKU. A Hyperdisk is also charged by its speed.
DISKS = {"pd-balanced": "Balanced PD Capacity"}
ENDPOINT_VARIABLE = "ROOFLAUNCH_BILLING_ENDPOINT"
# Longest time that a launch waits for the price list, which has about 40,000 SKUs, 5,000 per page.
WAIT_S = 4.0
MAX_AGE_S = 24 * 3600.0
CACHE_SCHEMA = 1
MAX_CACHE_BYTES = 4_000_000


@dataclass(frozen=True, kw_only=True)
class Sku:
    """An item of the price list. `usd`: price per unit; if the price has tiers, the highest price."""

    sku_id: str
    description: str
    group: str
    usage: str
    regions: tuple[str, ...]
    unit: str
    usd: float


@dataclass(frozen=True, kw_only=True)
class PricedPart:
    """Conditions that a SKU must meet to count into a price. `text`: regular expression for the whole description."""

    text: str
    groups: Collection[str]
    usage: str
    unit: str

    def fits(self, sku: Sku) -> bool:
        """Whether the SKU meets the conditions, in any region."""
        same = sku.group in self.groups and (sku.usage, sku.unit) == (self.usage, self.unit)
        return same and re.fullmatch(self.text, sku.description, re.IGNORECASE) is not None


@dataclass(frozen=True, kw_only=True)
class PriceList:
    """The SKUs of a day. `read`: the day, as 2026-11-21."""

    skus: Sequence[Sku]
    read: str

    def usd(self, part: PricedPart, region: str) -> float | None:
        """Price per unit in USD; None if no SKU fits, or if SKUs with different prices fit."""
        fitting = {
            sku.usd for sku in self.skus if part.fits(sku) and (region in sku.regions or EVERYWHERE in sku.regions)
        }
        return fitting.pop() if len(fitting) == 1 else None

    def vm_usd_per_h(self, gpu: GpuOffer, machine: MachineType, count: int, region: str, *, spot: bool) -> float | None:
        """Price of a VM with its GPUs in USD per hour; None if a part is unknown.

        Also None for a spot price above the on-demand price, because then the list must be wrong.
        """
        usd = self._sum(gpu, machine, count, region, spot=spot)
        usual = self._sum(gpu, machine, count, region, spot=False) if spot else usd
        return None if usd is None or (usual is not None and usd > usual) else usd

    def price(self, gpu: GpuOffer, machine: MachineType, count: int, region: str, options: Options) -> Price | None:
        """Price of VM, disk and external address (if any) with these options; None if a part is unknown."""
        vm = self.vm_usd_per_h(gpu, machine, count, region, spot=options.spot)
        disk = self.usd(disk_part(gpu.disk_type), region) if gpu.disk_type in DISKS else None
        address = self.usd(address_part(spot=options.spot), region) if options.external_ip else 0.0
        if vm is None or disk is None or address is None:
            return None
        return Price(
            usd_per_h=vm,
            source=SOURCE,
            read=self.read,
            disk_usd_per_h=disk_usd_per_h(disk, options.disk_gb),
            address_usd_per_h=address,
        )

    def listed(self, gpu: GpuOffer, machine: MachineType, count: int, region: str) -> VmPrice | None:
        """On-demand and spot price of a VM, as a row like those of prices.toml; None if neither price is known."""
        usual, spot = (self.vm_usd_per_h(gpu, machine, count, region, spot=is_spot) for is_spot in (False, True))
        if usual is None and spot is None:
            return None
        return VmPrice(
            machine_type=machine.name,
            gpu=gpu.device,
            gpus=count,
            region=region,
            source=SOURCE,
            read=self.read,
            usd_per_h=usual,
            usd_per_h_spot=spot,
        )

    def _sum(self, gpu: GpuOffer, machine: MachineType, count: int, region: str, *, spot: bool) -> float | None:
        if gpu.sku is None or gpu.series is None or machine.ram_gb is None:
            return None
        amounts = (count, machine.vcpus, machine.ram_gb)
        parts = [self.usd(part, region) for part in vm_parts(gpu.sku, gpu.series, spot=spot)]
        known = [usd for usd in parts if usd is not None]
        return sum(map(math.prod, zip(known, amounts, strict=True))) if len(known) == len(parts) else None


def vm_parts(gpu: str, series: str, *, spot: bool) -> tuple[PricedPart, PricedPart, PricedPart]:
    """Conditions for the SKUs of a GPU, a core and a GB of memory. `gpu`, `series`: names in the SKUs' descriptions."""
    usage, before = (PREEMPTIBLE, "Spot Preemptible ") if spot else (ON_DEMAND, "")
    attached = "attached to Spot Preemptible VMs " if spot else ""
    gpu, series = re.escape(gpu), re.escape(series)
    return (
        PricedPart(text=f"{gpu} {attached}running in .+", groups={"GPU"}, usage=usage, unit=PER_H),
        # The SKUs of cores and of memory of N1 machines are in the same group.
        PricedPart(
            text=f"{before}{series} Instance Core running in .+", groups={"CPU", "N1Standard"}, usage=usage, unit=PER_H
        ),
        PricedPart(
            text=f"{before}{series} Instance Ram running in .+",
            groups={"RAM", "N1Standard"},
            usage=usage,
            unit=GB_PER_H,
        ),
    )


def disk_part(kind: str) -> PricedPart:
    """Conditions for the SKU of a GB of this kind of disk per month.

    In most regions the SKU's description names the region; in the oldest regions it does not.
    """
    return PricedPart(text=f"{DISKS[kind]}( in .+)?", groups={"SSD"}, usage=ON_DEMAND, unit=GB_PER_MONTH)


def address_part(*, spot: bool) -> PricedPart:
    """Conditions for the SKU of an external address, which has one price in all regions.

    The free hours of each month are ignored, because other VMs may have used them.
    """
    kind = "Spot Preemptible" if spot else "Standard"
    return PricedPart(text=f"External IP Charge on a {kind} VM", groups={"IpAddress"}, usage=ON_DEMAND, unit=PER_H)


def needed_skus(documents: Iterable[Any]) -> Iterator[Sku]:
    """SKUs that count into a price of our GPUs. `documents`: Cloud Billing's entries; invalid entries are skipped."""
    parts = [*map(disk_part, DISKS), *(address_part(spot=spot) for spot in (False, True))]
    for gpu in gpus.load().values():
        if gpu.sku and gpu.series:
            parts += [part for spot in (False, True) for part in vm_parts(gpu.sku, gpu.series, spot=spot)]
    for document in documents:
        sku = _sku(document)
        if sku and any(part.fits(sku) for part in parts):
            yield sku


def _sku(document: Any) -> Sku | None:
    try:
        category = document["category"]
        # `pricingInfo` lists prices over time. The last one is today's, because the request names no time.
        expression = document["pricingInfo"][-1]["pricingExpression"]
        usd = max(_usd(tier["unitPrice"]) for tier in expression["tieredRates"])
        sku = Sku(
            sku_id=document["skuId"],
            description=document["description"],
            group=category["resourceGroup"],
            usage=category["usageType"],
            regions=tuple(document["serviceRegions"]),
            unit=expression["usageUnit"],
            usd=usd,
        )
    except (LookupError, TypeError, ValueError):
        return None
    texts = (sku.sku_id, sku.description, sku.group, sku.usage, sku.unit, *sku.regions)
    return sku if all(isinstance(text, str) for text in texts) and 0 < usd < math.inf else None


def _usd(money: Mapping[str, Any]) -> float:
    """USD of a google.type.Money: `units`, and `nanos` billionths. Raises `ValueError` for other currencies."""
    if money.get("currencyCode", "USD") != "USD":
        raise ValueError("not in USD")
    return int(money.get("units") or 0) + int(money.get("nanos") or 0) / 1e9


@dataclass(frozen=True, kw_only=True)
class PriceLookup:
    """`prices`: today's price list. If `prices` is None: `why` is the reason, and `hint` a hint for the user."""

    prices: PriceList | None = None
    why: str = ""
    hint: str = ""


def cached(now_s: float) -> PriceLookup:
    """Price list from the cache, at most a day old. The field `prices` is None if there is none."""
    with suppress(OSError, ValueError, TypeError, LookupError):
        path = _cache_file()
        if path.stat().st_size <= MAX_CACHE_BYTES:
            document = json.loads(path.read_bytes())
            age_s = now_s - float(document["read_s"])
            if document["schema"] == CACHE_SCHEMA and 0 <= age_s <= MAX_AGE_S:
                return PriceLookup(
                    prices=_price_list([_cached_sku(row) for row in document["skus"]], document["read_s"])
                )
    return PriceLookup()


def current(
    project: str, *, now_s: float, wait_s: float = WAIT_S, connect: Callable[[str], Services] | None = None
) -> PriceLookup:
    """Today's price list: cached, or requested and waited for up to `wait_s` seconds.

    An answer that comes later is cached for the next launch.
    """
    known = cached(now_s)
    if known.prices:
        return known
    answers: list[PriceLookup] = []
    asking = threading.Thread(
        target=lambda: answers.append(_ask(project, now_s, connect or _connect)), daemon=True, name="prices"
    )
    asking.start()
    asking.join(wait_s)
    return answers[0] if answers else PriceLookup(why=f"Google's price list did not arrive within {wait_s:g} s")


def _connect(project: str) -> Services:
    """Client for Cloud Billing. If `ENDPOINT_VARIABLE` is set: client for that address, without credentials."""
    if not os.environ.get(ENDPOINT_VARIABLE):
        return services.connect(project)
    import requests  # noqa: PLC0415 - loaded only when it is needed

    session: Any = requests.Session()
    return Services(project, session)


def _ask(project: str, now_s: float, connect: Callable[[str], Services]) -> PriceLookup:
    endpoint = os.environ.get(ENDPOINT_VARIABLE)
    if not endpoint and os.environ.get(refusals.ENDPOINT_VARIABLE):
        return PriceLookup(why=f"{refusals.ENDPOINT_VARIABLE} is set, so Google's price list is not used")
    try:
        skus = list(needed_skus(connect(project).compute_skus(endpoint or services.BILLING)))
    except RooflaunchError as error:
        return PriceLookup(why=str(error), hint=error.hint)
    if not skus:
        return PriceLookup(why="Google's price list has no SKU of the kinds that are known here")
    _write_cache(skus, now_s)
    return PriceLookup(prices=_price_list(skus, now_s))


def _price_list(skus: list[Sku], read_s: float) -> PriceList:
    return PriceList(skus=tuple(skus), read=f"{datetime.fromtimestamp(read_s, UTC):%Y-%m-%d}")


def _cache_file() -> Path:
    folder = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(folder) / "rooflaunch" / "gcp-prices.json"


def _write_cache(skus: list[Sku], now_s: float) -> None:
    """Write the list to the cache, as a whole or not at all. A folder that cannot be written is no error."""
    content = json.dumps({"schema": CACHE_SCHEMA, "read_s": now_s, "skus": [asdict(sku) for sku in skus]})
    with suppress(OSError, RuntimeError):
        path = _cache_file()
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, content, shared=True, durable=False)


def _cached_sku(row: dict[str, Any]) -> Sku:
    texts = {item.name: str(row[item.name]) for item in fields(Sku) if item.name not in ("regions", "usd")}
    return Sku(**texts, regions=tuple(map(str, row["regions"])), usd=float(row["usd"]))

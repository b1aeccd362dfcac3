"""Parts of plans that several backends share: GPUs and machine types, rows about the runs, the texts of programs.

GPUs and machine types are those that the tables of clouds (gpus.toml) describe. Imports little, for completions.
"""

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from launcher.protocol.records import Price, Request, region_of
from launcher.values import shown
from workload.contract.errors import ToolError, UsageError
from workload.contract.invocation import as_typed
from workload.contract.prices import VmPrice
from workload.contract.spec import Profile, RunSpec
from workload.contract.text import wrapped

G = TypeVar("G", bound="Gpu")
TABLE = "gpus.toml"


@dataclass(frozen=True, kw_only=True)
class MachineType:
    """A machine type. `gpus`: allowed numbers of GPUs, or the built-in number; `spot_only`: not sold on demand.

    `ram_gb`: memory, given if the machine's price is the sum of its GPUs, cores and memory.
    """

    name: str
    vcpus: int
    gpus: tuple[int, ...]
    ram_gb: float | None = None
    spot_only: bool = False


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A row of a cloud's gpus.toml with its prices. `accelerator`: type of an attached GPU; None if it is built in.

    `device`: name of the GPU among the vendors' peaks (workload/contract/peaks.toml). `capability`: CUDA's compute
    capability. `regions`: in the order of the zones.
    """

    name: str
    title: str
    memory_gb: int
    device: str
    accelerator: str | None = None
    capability: tuple[int, int]
    flavour: str
    minimum_driver: str
    machine_types: Mapping[str, MachineType]
    default_machine_type: str
    zones: tuple[str, ...]
    regions: tuple[str, ...]
    prices: tuple[VmPrice, ...]

    def price(self, machine_type: str, *, gpus: int, region: str, spot: bool) -> Price | None:
        """Listed price for exactly this machine type, number of GPUs and region, spot or on demand; None if unknown."""
        for row in self.prices:
            usd_per_h = row.figure(spot=spot)
            if (row.machine_type, row.gpus, row.region) == (machine_type, gpus, region) and usd_per_h is not None:
                return Price(usd_per_h=usd_per_h, source=row.source, read=row.read)
        return None


def parsed_gpus(
    kind: type[G],
    table: Mapping[str, Mapping[str, Any]],
    listed: Iterable[VmPrice],
    more: Callable[[Mapping[str, Any]], Mapping[str, Any]],
    region_names: Mapping[str, str] | None = None,
) -> dict[str, G]:
    """GPUs of a table in the form of gpus.toml, by name. `listed`: the cloud's prices; `more`: the cloud's own fields.

    `region_names`: names of regions by the first part of a zone; None if a region is named as in its zones. The tests
    check that the tables and the prices agree.
    """
    listed = tuple(listed)
    gpus = dict[str, G]()
    for name, row in table.items():
        major, _, minor = row["capability"].partition(".")
        machines = [MachineType(**{**machine, "gpus": tuple(machine["gpus"])}) for machine in row["machine"]]
        zones = tuple(zones_of(row["zones"]))
        regions = dict.fromkeys(map(region_of, zones))
        facts = {key: value for key, value in row.items() if key in {item.name for item in fields(kind)}}
        parsed = {
            "name": name,
            "title": f"{row['title']} {row['memory_gb']} GB",
            "capability": (int(major), int(minor)),
            "machine_types": {machine.name: machine for machine in machines},
            "zones": zones,
            "regions": tuple(regions if region_names is None else (region_names[code] for code in regions)),
            "prices": tuple(price for price in listed if price.gpu == row["device"]),
        }
        gpus[name] = kind(**{**facts, **parsed, **more(row)})
    return gpus


def gpu_named(name: str, known: Mapping[str, G]) -> G:
    """Row of the GPU with this name. Raises `UsageError` for an unknown name."""
    if name not in known:
        near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.4)
        raise UsageError(
            f"gpu must be one of {', '.join(known)}; got '{shown(name)}'", hint=f"--gpu {near[0] if near else 't4'}"
        )
    return known[name]


def zones_of(text: str) -> Iterator[str]:
    """Zones of a text such as `us-central1-a,b us-east1-c`, the opposite of `compact`."""
    for word in text.split():
        region, _, letters = word.rpartition("-")
        yield from (f"{region}-{letter}" for letter in letters.split(","))


def compact(zones: Iterable[str]) -> str:
    """Zones as text with each region once: `us-central1-a,b us-east1-c`."""
    letters: dict[str, list[str]] = {}
    for zone in zones:
        letters.setdefault(region_of(zone), []).append(zone.rpartition("-")[2])
    return " ".join(f"{region}-{','.join(zone_letters)}" for region, zone_letters in letters.items())


# A cloud's boot.py imports the boot that all clouds share; on the machine there is no such module.
BOOT, BOOT_IMPORT = (
    Path(__file__).with_name("boot.py"),
    re.compile(r"^from launcher\.backends\.boot import .*\n", re.MULTILINE),
)
FUTURE = "from __future__ import annotations\n"
# Column at which the facts of a printed plan begin.
TEXT_COLUMN = 11


def run_rows(request: Request) -> Iterator[tuple[str, str]]:
    """Rows of a plan's text: the runs, the files of a script, and the origin of each option."""
    spec = RunSpec.from_json(request.spec)
    times = "one run" if spec.repeats == 1 else f"{spec.repeats} runs, each in its own process"
    profile = "" if spec.profile is Profile.NONE else f", then a profile by {spec.profile}"
    single = f"{shown(spec.title)}, on {spec.where}; {times}{profile}"
    yield "plan", f"{request.work}, each in its own process" if request.task else single
    yield "sends", request.files_text
    yield "set by", ", ".join(f"{name}: {source}" for name, source in request.spec_origin.items()) or "all defaults"


def text_of(rows: Iterable[tuple[str, str]], notes: Iterable[str], width: int | None) -> str:
    """Text of a plan: rows of a name and a fact, then the notes, in lines of at most `width` characters.

    A row without a fact is left out.
    """
    named = [*rows, *(("note", note) for note in notes)]
    return "\n".join(wrapped(as_typed(text), width, indent=TEXT_COLUMN, first=name) for name, text in named if text)


def cost_text(usd_per_h: float | None) -> str:
    """Text on the price that the user gave; `not counted` without a price."""
    return f"{usd_per_h:g} USD per hour, as you said" if usd_per_h else "not counted"


def require_price(usd_per_h: float | None) -> None:
    """Raise `UsageError` if the value of `--usd-per-h` is below 0, above a million, or NaN."""
    if usd_per_h is not None and not 0 <= usd_per_h <= 1e6:  # noqa: PLR2004 - nobody pays that
        raise UsageError(f"--usd-per-h must be a price in USD; got {usd_per_h}", hint="--usd-per-h 0.80")


def prices_of(usd_per_h: float | None, regions: Iterable[str], now: datetime) -> dict[str, dict[str, Any]]:
    """Field `prices` of a request: the user's price per hour for each region; {} without a price."""
    if usd_per_h is None:
        return {}
    price = asdict(Price(usd_per_h=usd_per_h, source="--usd-per-h", read=f"{now:%Y-%m-%d}"))
    return dict.fromkeys(regions, price)


def program_text(path: Path) -> str:
    """Text of a program that the launcher sends to a machine; if it imports launcher/backends/boot.py, with its text.

    Raises `ToolError` for a broken installation.
    """
    try:
        text = path.read_text(encoding="utf-8")
        if not BOOT_IMPORT.search(text):
            return text
        path = BOOT
        shared = path.read_text(encoding="utf-8").replace(FUTURE, "", 1)
    except OSError as error:
        raise ToolError(f"this installation lacks {path.name}", hint="install rooflaunch again") from error
    return BOOT_IMPORT.sub(lambda _: shared, text, count=1)

"""GPUs and machine types as the tables of clouds (gpus.toml) describe them. Imports little, for completions."""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from launcher.protocol.records import region_of
from launcher.sizes import shown
from workload.contract.errors import UsageError

T = TypeVar("T")


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


class Gpu(Protocol):
    """The facts about a cloud's GPU that a plan needs; a row of the backend's gpus.toml.

    `accelerator`: type of an attached GPU; None if the machine has it built in. `capability`: CUDA's compute
    capability.
    """

    @property
    def name(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def accelerator(self) -> str | None: ...
    @property
    def capability(self) -> tuple[int, int]: ...
    @property
    def machine_types(self) -> Mapping[str, MachineType]: ...
    @property
    def default_machine_type(self) -> str: ...


def gpu_named(name: str, known: Mapping[str, T]) -> T:
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

"""Peaks of devices: vendors' figures from peaks.toml, and the user's own; an unknown device has none."""

import functools
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from workload.contract import peaks_table
from workload.contract.peaks_table import Gpu, folded
from workload.contract.text import signed_percent

_TABLE = Path(__file__).with_name("peaks.toml")
# Name of the user's own table of peaks in the working folder.
OWN_FILE = "peaks.toml"
# A device reports up to 7 % more memory than its vendor's round figure (GiB for GB), or up to 2 % less (ECC).
MEMORY_FROM, MEMORY_TO = 0.95, 1.10
# Vendors round, and HBM runs up to 3 % above its nominal clock. Another kind of memory differs by more than this.
BANDWIDTH_TOLERANCE = 0.07
# Double data rate: two transfers per clock.
TRANSFERS_PER_CLOCK = 2
BITS_PER_BYTE = 8

_own: "OwnPeaks | None" = None


@dataclass(frozen=True, kw_only=True)
class Peak:
    """Highest dense rates that a vendor claims; a fused multiply-add is 2 FLOP. `source`: title, address and date.

    If the rate depends on the power limit, `flop_per_s` is the rate at the highest limit, and `flop_per_s_low` the rate
    at the lowest.
    """

    gpu: str
    precision: str
    flop_per_s: float
    flop_per_s_low: float | None
    bytes_per_s: float
    source: str
    note: str | None


@dataclass(frozen=True, kw_only=True)
class OwnPeaks:
    """Devices of the user's own file. `origin`: the file, as pages name it."""

    origin: str
    gpus: tuple[Gpu, ...]


def use(own: OwnPeaks | None) -> None:
    """Let every later lookup of this process prefer these devices to the vendors'; None: only the vendors'."""
    global _own  # noqa: PLW0603 - peaks are looked up in many functions of one run, whose arguments are data
    _own = own


def in_use() -> OwnPeaks | None:
    """The devices of the user's file that lookups prefer."""
    return _own


def own_peaks(path: Path | None) -> OwnPeaks | None:
    """Devices of a file in the form of our peaks.toml; `path` None: of `peaks.toml` in the working folder, if present.

    Raises `UsageError` with file, row and key if the file breaks a rule.
    """
    origin = str(path) if path else f"{OWN_FILE}, in the working folder"
    path = path or Path(OWN_FILE)
    if origin != str(path) and not os.path.lexists(path):
        return None
    rows = peaks_table.read(path, origin=origin)
    peaks_table.require_unambiguous(path, rows)
    return OwnPeaks(origin=origin, gpus=rows)


def find(device_name: str | None, *, precision: str | None, memory_bytes: float | None = None) -> Peak | None:
    """Peak of a device by the name that NVML or torch reports.

    None for an unknown device, or if the device has no units for this precision. `memory_bytes`, if known, must match:
    the memory distinguishes devices of one name, for example a laptop's GPU from a desktop's.
    """
    gpu = find_gpu(device_name, memory_bytes=memory_bytes)
    row = next((row for row in gpu.peaks if row.precision == precision), None) if gpu else None
    if gpu is None or row is None:
        return None
    return Peak(
        gpu=gpu.gpu,
        precision=row.precision,
        flop_per_s=row.tflop_per_s * 1e12,
        flop_per_s_low=None if row.tflop_per_s_low is None else row.tflop_per_s_low * 1e12,
        bytes_per_s=gpu.bytes_per_s,
        source=row.source,
        note=gpu.note,
    )


def find_gpu(device_name: str | None, *, memory_bytes: float | None = None) -> Gpu | None:
    """Device of this name and memory; None if no device or several devices match. The user's own devices come first."""
    return _found_gpu(_own, folded(device_name or ""), memory_bytes)


# A report asks for the same few devices thousands of times.
@functools.lru_cache(maxsize=1024)
def _found_gpu(own: OwnPeaks | None, name: str, memory_bytes: float | None) -> Gpu | None:
    for table in (own.gpus if own else (), gpus()):
        named = [gpu for gpu in table if name in map(folded, gpu.names) and _fits(gpu, memory_bytes)]
        if named:
            return named[0] if len(named) == 1 else None
    return None


def named(gpu: str) -> Gpu:
    """Device by its name in peaks.toml. Raises `KeyError` for another name."""
    return {row.gpu: row for row in gpus()}[gpu]


def bandwidth(*, memory_clock_mhz: float, bus_width_bits: float) -> float:
    """Bytes/s from the device's memory clock and bus: 2 x clock x bus width / 8."""
    return TRANSFERS_PER_CLOCK * memory_clock_mhz * 1e6 * bus_width_bits / BITS_PER_BYTE


def bandwidth_warning(gpu: Gpu, *, memory_clock_mhz: float | None, bus_width_bits: float | None) -> str | None:
    """Warning if the device's own memory clock and bus give another bandwidth than the table, else None."""
    if not memory_clock_mhz or not bus_width_bits:
        return None
    bytes_per_s = bandwidth(memory_clock_mhz=memory_clock_mhz, bus_width_bits=bus_width_bits)
    difference = bytes_per_s / gpu.bytes_per_s - 1
    if abs(difference) <= BANDWIDTH_TOLERANCE:
        return None
    return (
        f"the device's memory clock and bus give {bytes_per_s / 1e9:.0f} GB/s, the table has {gpu.gb_per_s:g} "
        f"({signed_percent(difference)}): perhaps it is another device than its name says"
    )


def gpus() -> tuple[Gpu, ...]:
    """Every device: the user's own, and the vendors' that no own device of the same name replaces."""
    own = _own.gpus if _own else ()
    replaced = {gpu.gpu for gpu in own}
    return (*own, *(gpu for gpu in vendors() if gpu.gpu not in replaced))


@functools.cache
def vendors() -> tuple[Gpu, ...]:
    """Every device of our own table."""
    return peaks_table.read(_TABLE)


def digest() -> str:
    """Hash of all peaks in use: results that depend on peaks are kept under it."""
    return _digest(_own)


@functools.lru_cache(maxsize=2)
def _digest(_: OwnPeaks | None) -> str:
    return hashlib.blake2b(repr(gpus()).encode(), digest_size=16).hexdigest()


def _fits(gpu: Gpu, memory_bytes: float | None) -> bool:
    sizes = gpu.memory_gb if memory_bytes is not None else ()
    return not sizes or any(MEMORY_FROM <= (memory_bytes or 0) / (size * 1e9) <= MEMORY_TO for size in sizes)

"""Vendors' figures for devices, from peaks.toml; an unknown device has none."""

import functools
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workload.contract.text import signed_percent

_TABLE = Path(__file__).with_name("peaks.toml")
# A device reports up to 7 % more memory than its vendor's round figure (GiB for GB), or up to 2 % less (ECC).
MEMORY_FROM, MEMORY_TO = 0.95, 1.10
# Vendors round, and HBM runs up to 3 % above its nominal clock. Another kind of memory differs by more than this.
BANDWIDTH_TOLERANCE = 0.07
# Double data rate: two transfers per clock.
TRANSFERS_PER_CLOCK = 2
BITS_PER_BYTE = 8


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
class PeakRow:
    """Entry of peaks.toml for one precision; clocks in MHz, rates in 1e12 FLOP/s.

    A vendor's rate is the product of SMs, FLOP per clock per SM, and clock; the tests recompute each rate.
    """

    precision: str
    dense: bool
    tflop_per_s: float
    flop_per_clock_per_sm: int
    clock_mhz: float
    source: str
    tflop_per_s_low: float | None = None
    clock_mhz_low: float | None = None


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """Entry of peaks.toml for one device."""

    gpu: str
    names: tuple[str, ...]
    memory_gb: tuple[float, ...]
    sms: int
    gb_per_s: float
    source: str
    note: str | None
    peaks: tuple[PeakRow, ...]

    @property
    def bytes_per_s(self) -> float:
        return self.gb_per_s * 1e9


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
        source=source(row.source),
        note=gpu.note,
    )


def find_gpu(device_name: str | None, *, memory_bytes: float | None = None) -> Gpu | None:
    """Device of this name and memory; None if no device or several devices match."""
    name = _folded(device_name or "")
    named = [gpu for gpu in gpus() if name in map(_folded, gpu.names)]
    if memory_bytes is not None:
        named = [gpu for gpu in named if _fits(gpu, memory_bytes)]
    return named[0] if len(named) == 1 else None


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


def source(key: str) -> str:
    """Title and date of the source that has this key in peaks.toml."""
    row = _content()["source"][key]
    return f"{row['title']}, read {row['read']}"


@functools.cache
def gpus() -> tuple[Gpu, ...]:
    """Every device of the table."""
    return tuple(
        Gpu(
            **{name: entry[name] for name in ("gpu", "sms", "gb_per_s", "source")},
            names=tuple(entry["names"]),
            memory_gb=tuple(entry["memory_gb"]),
            note=entry.get("note"),
            peaks=tuple(PeakRow(**row) for row in entry["peak"]),
        )
        for entry in _content()["gpu"]
    )


def _fits(gpu: Gpu, memory_bytes: float) -> bool:
    return any(MEMORY_FROM <= memory_bytes / (size * 1e9) <= MEMORY_TO for size in gpu.memory_gb)


def _folded(name: str) -> str:
    """Name in lower case, with single blanks."""
    return " ".join(name.casefold().split())


@functools.cache
def _content() -> dict[str, Any]:
    return tomllib.loads(_TABLE.read_text(encoding="utf-8"))

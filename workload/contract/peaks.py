"""Peaks of devices: vendors' figures from peaks.toml, and the user's own; an unknown device has none.

Standard library only.
"""

import functools
import hashlib
import itertools
import json
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

from workload.contract.errors import UsageError
from workload.contract.fields import Findings, Flag, Kind, Rate, Text, decode, unknown
from workload.contract.spec import Device, Precision
from workload.contract.text import did_you_mean, signed_percent

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

# Least and most plausible value of each number, from a small CPU to a rack: a typed unit that is wrong by 1000 or more
# is outside.
PLAUSIBLE: Mapping[str, tuple[float, float]] = {
    "sms": (1, 1e5),
    "gb_per_s": (0.1, 1e5),
    "tflop_per_s": (1e-4, 1e5),
    "tflop_per_s_low": (1e-4, 1e5),
    "flop_per_clock_per_sm": (1, 1e6),
    "clock_mhz": (10, 1e5),
    "clock_mhz_low": (10, 1e5),
}
# Kinds of devices in a table of peaks.
KINDS = (Device.CUDA, Device.MPS, Device.CPU)
# Vendors round their rates.
ROUNDING = 0.02
HINT = "correct the file or rename it; --peaks FILE names another file"

_own: "OwnPeaks | None" = None


@dataclass(frozen=True, kw_only=True)
class PeakRow:
    """Entry of a table of peaks for one precision; clocks in MHz, rates in 1e12 FLOP/s. `source`: title and date.

    A vendor's rate is the product of SMs, FLOP per clock per SM, and clock, which must agree if all are known.
    """

    precision: Annotated[str, Kind.TEXT]
    dense: Flag = True
    tflop_per_s: Annotated[float, Kind.RATE]
    source: Annotated[str, Kind.TEXT]
    flop_per_clock_per_sm: Rate = None
    clock_mhz: Rate = None
    tflop_per_s_low: Rate = None
    clock_mhz_low: Rate = None


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """Entry of a table of peaks for one device. Without `memory_gb`, the device may have any memory.

    `device`: PyTorch's kind of device: `cuda` for GPUs of NVIDIA and AMD, `mps` for Apple's GPUs, `cpu`.
    """

    gpu: Annotated[str, Kind.TEXT]
    device: Annotated[str, Kind.TEXT] = Device.CUDA
    names: Annotated[Sequence[str], Kind.TEXTS]
    memory_gb: Annotated[Sequence[float], Kind.NUMBERS] = ()
    sms: Rate = None
    gb_per_s: Annotated[float, Kind.RATE]
    source: Annotated[str, Kind.TEXT]
    note: Text = None
    peak: Sequence[PeakRow]

    @property
    def bytes_per_s(self) -> float:
        return self.gb_per_s * 1e9

    @property
    def peaks(self) -> Sequence[PeakRow]:
        """Rates by precision; a table of peaks calls each of them `peak`."""
        return self.peak


@dataclass(frozen=True, kw_only=True)
class _Source:
    title: Annotated[str, Kind.TEXT]
    read: Annotated[str, Kind.TEXT]


@dataclass(frozen=True, kw_only=True)
class _Table:
    source: Mapping[str, _Source]
    gpu: Sequence[Gpu]


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

    Raises `UsageError` with file, row and key for a file that breaks a rule.
    """
    origin = str(path) if path else f"{OWN_FILE}, in the working folder"
    path = path or Path(OWN_FILE)
    if origin != str(path) and not os.path.lexists(path):
        return None
    return OwnPeaks(origin=origin, gpus=read(path, origin=origin))


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
    return read(_TABLE)


def digest() -> str:
    """Hash of all peaks in use: results that depend on peaks are kept under it."""
    return _digest(_own)


@functools.lru_cache(maxsize=2)
def _digest(_: OwnPeaks | None) -> str:
    return hashlib.blake2b(repr(gpus()).encode(), digest_size=16).hexdigest()


def _fits(gpu: Gpu, memory_bytes: float | None) -> bool:
    sizes = gpu.memory_gb if memory_bytes is not None else ()
    return not sizes or any(MEMORY_FROM <= (memory_bytes or 0) / (size * 1e9) <= MEMORY_TO for size in sizes)


# --- reading a table of peaks


def folded(name: str) -> str:
    """Name in lower case, with single blanks."""
    return " ".join(name.casefold().split())


def read(path: Path, *, origin: str | None = None) -> tuple[Gpu, ...]:
    """Read all devices from a TOML file. `origin`: text that is added to the `source` of each row of a user's own file.

    Raises `UsageError` with file, row and key for a file that breaks a rule.
    """
    try:
        # A date becomes text.
        content = json.loads(json.dumps(tomllib.loads(path.read_text(encoding="utf-8")), default=str))
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"'{path}' is not valid TOML: {error}", hint=HINT) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"'{path}' is not a text file in UTF-8", hint=HINT) from error
    except OSError as error:
        raise UsageError(f"'{path}' cannot be read: {error.strerror or error}", hint=HINT) from error
    for key in unknown(_Table, content):
        keys = [item.name for kind in (Gpu, PeakRow) for item in fields(kind)]
        meant = did_you_mean(key.rpartition(".")[2], keys, after=" ")
        raise UsageError(
            f"'{path}': there is no key {key}; a number's key ends in its unit",
            hint=f"{meant}the keys are {', '.join(dict.fromkeys(keys))}",
        )
    findings = Findings()
    table = decode(_Table, content, findings)
    missing = (f"{name} is missing" for name in findings.missing)
    # Lazily: the rules hold only for values of the right types.
    for problem in itertools.chain(findings.wrong, missing, _problems(table, origin)):
        raise UsageError(f"'{path}': {problem}", hint=HINT)
    origin = f", from {origin}" if origin else ""
    sources = {name: f"{source.title}, read {source.read}{origin}" for name, source in table.source.items()}

    def sourced(row: Any) -> Any:
        return replace(row, source=sources[row.source])

    return tuple(replace(sourced(gpu), peak=tuple(map(sourced, gpu.peak))) for gpu in table.gpu)


def _problems(table: _Table, origin: str | None) -> Iterator[str]:
    """Sentences on rules that a table breaks, beside the types of its values."""
    if not table.gpu:
        yield "there is no row [[gpu]]"
    for gpu in table.gpu:
        yield from _problems_of_row(f"gpu {gpu.gpu}", gpu, table)
        if gpu.device not in KINDS:
            yield f"gpu {gpu.gpu}: device must be one of {', '.join(KINDS)}; got '{gpu.device}'"
        if not gpu.names or not gpu.peak:
            yield f"gpu {gpu.gpu}: names and peak must each have at least one item"
        for row in gpu.peak:
            yield from _problems_of_peak(f"gpu {gpu.gpu}, peak {row.precision}", row, gpu.sms)
            yield from _problems_of_row(f"gpu {gpu.gpu}, peak {row.precision}", row, table)
    names = [(gpu.gpu,) for gpu in table.gpu] + [(gpu.gpu, row.precision) for gpu in table.gpu for row in gpu.peak]
    yield from (f"{', '.join(name)} is there twice" for name in names if names.count(name) > 1)
    # In our own table a short name may mean several devices; a user's row must be found.
    for one, other in itertools.combinations(table.gpu if origin else (), 2):
        shared = set(map(folded, one.names)) & set(map(folded, other.names))
        sizes = set(one.memory_gb) & set(other.memory_gb) if one.memory_gb and other.memory_gb else {0}
        if shared and sizes:
            yield f"'{one.gpu}' and '{other.gpu}' have the name '{min(shared)}': one row, or different memory_gb"


def _problems_of_row(where: str, row: Gpu | PeakRow, table: _Table) -> Iterator[str]:
    for key, (least, most) in PLAUSIBLE.items():
        value = getattr(row, key, None)
        if value is not None and not least <= value <= most:
            yield f"{where}: {key} must be a number from {least:g} to {most:g}; got {value:g}"
    if row.source not in table.source:
        yield f"{where}: source must be the name of a [source.NAME] of this file; got '{row.source}'"


def _problems_of_peak(where: str, row: PeakRow, sms: float | None) -> Iterator[str]:
    if row.precision not in set(Precision):
        yield f"{where}: precision must be one of {', '.join(Precision)}"
    if row.dense is not True:
        yield f"{where}: dense must be true: no training step reaches a rate with sparsity"
    for rate, clock in ((row.tflop_per_s, row.clock_mhz), (row.tflop_per_s_low, row.clock_mhz_low)):
        if rate and clock and sms and row.flop_per_clock_per_sm:
            product = sms * row.flop_per_clock_per_sm * clock * 1e-6
            if abs(product / rate - 1) > ROUNDING:
                rule = f"within {ROUNDING:.0%} of sms x flop_per_clock_per_sm x clock ({product:.3g})"
                yield f"{where}: tflop_per_s must be {rule}; got {rate:g}"
    if row.tflop_per_s_low is not None and row.tflop_per_s_low >= row.tflop_per_s:
        yield f"{where}: tflop_per_s_low must be below tflop_per_s ({row.tflop_per_s:g})"

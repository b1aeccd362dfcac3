"""Reads tables of peaks: ours (peaks.toml), and a file of the user in the same form. Standard library only."""

import difflib
import itertools
import tomllib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workload.contract.errors import UsageError
from workload.contract.spec import Device, Precision

# Least and most plausible value of each number, from a small CPU to a rack: a typed unit that is wrong by 1000 or more
# is outside.
RANGES: Mapping[str, tuple[float, float]] = {
    "memory_gb": (0.1, 1e5),
    "sms": (1, 1e5),
    "gb_per_s": (0.1, 1e5),
    "tflop_per_s": (1e-4, 1e5),
    "tflop_per_s_low": (1e-4, 1e5),
    "flop_per_clock_per_sm": (1, 1e6),
    "clock_mhz": (10, 1e5),
    "clock_mhz_low": (10, 1e5),
}
GPU_KEYS = ("gpu", "names", "memory_gb", "device", "sms", "gb_per_s", "source", "note", "peak")
PEAK_KEYS = (
    "precision", "dense", "tflop_per_s", "flop_per_clock_per_sm", "clock_mhz", "tflop_per_s_low", "clock_mhz_low",
    "source",
)  # fmt: skip
# Kinds of devices in a table of peaks.
KINDS = (Device.CUDA, Device.MPS, Device.CPU)
# Vendors round their rates.
ROUNDING = 0.02


@dataclass(frozen=True, kw_only=True)
class PeakRow:
    """Entry of a table of peaks for one precision; clocks in MHz, rates in 1e12 FLOP/s. `source`: title and date.

    A vendor's rate is the product of SMs, FLOP per clock per SM, and clock, which must agree if all are known.
    """

    precision: str
    dense: bool
    tflop_per_s: float
    source: str
    flop_per_clock_per_sm: float | None = None
    clock_mhz: float | None = None
    tflop_per_s_low: float | None = None
    clock_mhz_low: float | None = None


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """Entry of a table of peaks for one device. Without `memory_gb`, the device may have any memory.

    `device`: PyTorch's kind of device: `cuda` for GPUs of NVIDIA and AMD, `mps` for Apple's GPUs, `cpu`.
    """

    gpu: str
    device: str = Device.CUDA
    names: tuple[str, ...]
    memory_gb: tuple[float, ...]
    sms: float | None
    gb_per_s: float
    source: str
    note: str | None
    peaks: tuple[PeakRow, ...]

    @property
    def bytes_per_s(self) -> float:
        return self.gb_per_s * 1e9


def folded(name: str) -> str:
    """Name in lower case, with single blanks."""
    return " ".join(name.casefold().split())


def read(path: Path, *, origin: str | None = None) -> tuple[Gpu, ...]:
    """Read all devices from a TOML file. `origin`: text that is added to the `source` of each row of a user's own file.

    Raises `UsageError` with file, row and key if the file breaks a rule.
    """
    hint = "correct the file or rename it; --peaks FILE names another file"
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"'{path}' is not valid TOML: {error}", hint=hint) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"'{path}' is not a text file in UTF-8", hint=hint) from error
    except OSError as error:
        raise UsageError(f"'{path}' cannot be read: {error.strerror or error}", hint=hint) from error
    whole = _Row(where=f"'{path}'", content=table, keys=("source", "gpu"))
    sources = {
        key: _source(_Row(where=f"'{path}', [source.{key}]", content=row, keys=("title", "read")), origin)
        for key, row in whole.table("source").items()
    }
    rows = whole.rows("gpu", GPU_KEYS, name="gpu")
    if not rows:
        raise whole.error("has no row [[gpu]]", hint="[[gpu]], with the keys " + ", ".join(GPU_KEYS))
    gpus = tuple(_gpu(row, sources) for row in rows)
    _require_once(f"'{path}'", "row", [gpu.gpu for gpu in gpus])
    return gpus


def require_unambiguous(path: Path, gpus: Sequence[Gpu]) -> None:
    """Raise `UsageError` if two rows have a name in common, and no memory size distinguishes them."""
    for one, other in itertools.combinations(gpus, 2):
        shared = set(map(folded, one.names)) & set(map(folded, other.names))
        sizes = set(one.memory_gb) & set(other.memory_gb) if one.memory_gb and other.memory_gb else {0}
        if shared and sizes:
            raise UsageError(
                f"'{path}': the rows '{one.gpu}' and '{other.gpu}' both have the name '{min(shared)}'",
                hint="give each name to one row, or both rows their memory_gb",
            )


def _require_once(where: str, kind: str, names: Sequence[str]) -> None:
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise UsageError(f"{where}: the {kind} '{twice}' is there twice", hint=f"keep one {kind} '{twice}'")


@dataclass(frozen=True, kw_only=True)
class _Row:
    """A row of the file. `where`: its place, for messages; `keys`: the keys that it may have."""

    where: str
    content: Mapping[str, Any]
    keys: Collection[str]

    def __post_init__(self) -> None:
        if not isinstance(self.content, dict):
            raise self.error("must be a table", hint=f"with the keys {', '.join(self.keys)}")
        for key in self.content:
            if key not in self.keys:
                near = [known for known in self.keys if known.startswith(f"{key}_")]
                near = near or difflib.get_close_matches(key, self.keys, n=1)
                meant = f"did you mean {near[0]}? " if near else ""
                units = "; a number's key ends in its unit" if set(self.keys) & set(RANGES) else ""
                raise self.error(
                    f"there is no key '{key}'{units}", hint=f"{meant}the keys are {', '.join(self.keys)}", separator=":"
                )

    def error(self, text: str, *, hint: str, separator: str = "") -> UsageError:
        return UsageError(f"{self.where}{separator} {text}", hint=hint)

    def wrong(self, key: str, rule: str, example: str) -> UsageError:
        got = f"got {self.content[key]!r}" if key in self.content else "it is missing"
        return self.error(f"{key} must be {rule}; {got}", hint=f"{key} = {example}", separator=":")

    def text(self, key: str, example: str) -> str:
        value = self.content.get(key)
        if not isinstance(value, str) or not value.strip():
            raise self.wrong(key, "a text", f'"{example}"')
        return value

    def number(self, key: str, value: object = None) -> float:
        """The number of this key, or `value`, an item of the key's list."""
        least, most = RANGES[key]
        value = self.content.get(key) if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise self.wrong(key, f"a number from {least:g} to {most:g}", f"{max(least, 16):g}")
        return value

    def optional(self, key: str) -> float | None:
        return self.number(key) if key in self.content else None

    def items(self, key: str, example: str) -> list[Any]:
        value = self.content.get(key)
        if not isinstance(value, list) or not value:
            raise self.wrong(key, "a list with at least one item", example)
        return value

    def table(self, key: str) -> Mapping[str, Any]:
        value = self.content.get(key, {})
        if not isinstance(value, dict):
            raise self.wrong(key, f"tables [{key}.NAME]", '{ mine = { title = "data sheet", read = "2026-11" } }')
        return value

    def rows(self, key: str, keys: Collection[str], *, name: str) -> list["_Row"]:
        """Tables in a list, whose places have their numbers and their names."""
        content = self.content.get(key, [])
        if not isinstance(content, list):
            raise self.wrong(key, f"rows [[{key}]]", "[]")
        named = [each.get(name) if isinstance(each, dict) else None for each in content]
        return [
            _Row(where=f"{self.where}, {key} {number}{f' ({label})' if label else ''}", content=each, keys=keys)
            for number, (label, each) in enumerate(zip(named, content, strict=True), 1)
        ]

    def source(self, sources: Mapping[str, str]) -> str:
        key = self.content.get("source")
        if not isinstance(key, str) or key not in sources:
            known = " or ".join(f'"{each}"' for each in sources) or '"mine", and [source.mine] with title and read'
            raise self.wrong("source", "the name of a [source.NAME] of this file", known)
        return sources[key]


def _source(row: _Row, origin: str | None) -> str:
    """Title and date of a source, and the file that names it; TOML may hold the date as a date."""
    title, read_on = row.text("title", "data sheet"), str(row.content.get("read", "")).strip()
    if not read_on:
        raise row.wrong("read", "the date on which you read the source", '"2026-11"')
    return f"{title}, read {read_on}" + (f", from {origin}" if origin else "")


def _gpu(row: _Row, sources: Mapping[str, str]) -> Gpu:
    names = row.items("names", '["NVIDIA L4"]')
    if not all(isinstance(name, str) and name.strip() for name in names):
        raise row.wrong("names", "a list of texts", '["NVIDIA L4"]')
    sizes = row.items("memory_gb", "[24]") if "memory_gb" in row.content else []
    if "peak" not in row.content:
        raise row.wrong("peak", "a list of rates by precision", '[{ precision = "fp32", tflop_per_s = 8.1, … }]')
    if row.content.get("device", Device.CUDA) not in KINDS:
        raise row.wrong("device", f"one of {', '.join(KINDS)}", '"cuda"')
    sms = row.optional("sms")
    rates = row.rows("peak", PEAK_KEYS, name="precision")
    gpu = Gpu(
        gpu=row.text("gpu", "L4"),
        device=row.content.get("device", Device.CUDA),
        names=tuple(names),
        memory_gb=tuple(row.number("memory_gb", size) for size in sizes),
        sms=sms,
        gb_per_s=row.number("gb_per_s"),
        source=row.source(sources),
        note=row.text("note", "by power limit") if "note" in row.content else None,
        peaks=tuple(_peak(each, sources, sms) for each in rates),
    )
    if not gpu.peaks:
        raise row.wrong("peak", "a list with at least one item", '[{ precision = "fp32", tflop_per_s = 8.1, … }]')
    _require_once(row.where, "precision", [peak.precision for peak in gpu.peaks])
    return gpu


def _peak(row: _Row, sources: Mapping[str, str], sms: float | None) -> PeakRow:
    precision = row.content.get("precision")
    if not isinstance(precision, str) or precision not in set(Precision):
        raise row.wrong("precision", f"one of {', '.join(Precision)}", '"fp32"')
    if row.content.get("dense", True) is not True:
        raise row.wrong("dense", "true: no training step reaches a rate with sparsity", "true")
    peak = PeakRow(
        precision=precision,
        dense=True,
        tflop_per_s=row.number("tflop_per_s"),
        source=row.source(sources),
        flop_per_clock_per_sm=row.optional("flop_per_clock_per_sm"),
        clock_mhz=row.optional("clock_mhz"),
        tflop_per_s_low=row.optional("tflop_per_s_low"),
        clock_mhz_low=row.optional("clock_mhz_low"),
    )
    for key, rate, clock in (
        ("tflop_per_s", peak.tflop_per_s, peak.clock_mhz),
        ("tflop_per_s_low", peak.tflop_per_s_low, peak.clock_mhz_low),
    ):
        if rate and clock and sms and peak.flop_per_clock_per_sm:
            product = sms * peak.flop_per_clock_per_sm * clock * 1e-6
            if abs(product / rate - 1) > ROUNDING:
                rule = f"within {ROUNDING:.0%} of sms x flop_per_clock_per_sm x clock ({product:.3g})"
                raise row.wrong(key, rule, f"{product:.3g}")
    if peak.tflop_per_s_low is not None and peak.tflop_per_s_low >= peak.tflop_per_s:
        raise row.wrong("tflop_per_s_low", f"below tflop_per_s ({peak.tflop_per_s:g})", f"{peak.tflop_per_s / 2:g}")
    return peak

"""From run.json to a row of `runs`. Pure, but for `read_document`.

What has the wrong type or cannot be is left out, with a remark that names the field and its rule; a run whose timing
cannot be is refused, because every figure of it is then in doubt. Nothing behind this border has to defend itself.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, assert_never

from workload.contract import bundle
from workload.contract.bundle import Status
from workload.contract.errors import BundleError

RUN_AGAIN = "copy the bundle again from where it was made, or run again"
SHOWN_CHARACTERS = 60
# Larger counts would not be exact in the table's floating-point columns; no field of a bundle comes near.
MAX_COUNT = 2**53
# Figures of a run lie far inside: 1e21 FLOP are the largest training step, 1e-12 J no power. Products and quotients of
# three such numbers are still finite.
SMALLEST, LARGEST = 1e-30, 1e30
# A picosecond, in which no step ends, and 30,000 years: as for the logs that can be imported.
SHORTEST_S, LONGEST_S = 1e-12, 1e12
# A share of wall time is at most 1, one of a wrong roof or of a timer that does not synchronise some hundreds.
LARGEST_SHARE = 1e4
# Longer is no name and no message; a traceback has a few thousand.
MAX_CHARACTERS = 10_000
# run.json is 6 deep; json itself gives up at about 1000, and so does whoever walks through it.
MAX_DEPTH = 30


class Kind(StrEnum):
    """The type of a column: numbers are floats, so that an absent one is NaN."""

    TEXT = "text"
    COUNT = "count"  # always there: an integer
    NUMBER = "number"
    SECONDS = "seconds"
    SHARE = "share"
    FLAG = "flag"
    TIME = "time"
    TEXTS = "texts"


# Column of `runs` -> its type, and where run.json has it. Those without a place are derived; `path` and
# `kernels_file` by the index.
RUN_COLUMNS: Mapping[str, tuple[Kind, str]] = {
    "run_id": (Kind.TEXT, "run_id"),
    "path": (Kind.TEXT, ""),
    "kernels_file": (Kind.TEXT, ""),
    "status": (Kind.TEXT, "status"),
    "error": (Kind.TEXT, "error"),
    "imported": (Kind.FLAG, ""),
    "imported_file": (Kind.TEXT, "imported.file"),
    "imported_sha256": (Kind.TEXT, "imported.sha256"),
    "claimed_images_per_s": (Kind.NUMBER, "imported.claimed_images_per_s"),
    "place": (Kind.TEXT, "environment.place"),
    "backend": (Kind.TEXT, "environment.backend"),
    "runtime": (Kind.TEXT, "environment.runtime"),
    "started_at": (Kind.TIME, "timing.started_at"),
    "repeat": (Kind.NUMBER, "repeat.index"),
    "repeats": (Kind.NUMBER, "repeat.of"),
    "device_type": (Kind.TEXT, "environment.device.type"),
    "device_name": (Kind.TEXT, "environment.device.name"),
    "compute_capability": (Kind.TEXT, "environment.device.compute_capability"),
    "driver_version": (Kind.TEXT, "environment.device.driver_version"),
    "threads": (Kind.NUMBER, "environment.device.threads"),
    "model": (Kind.TEXT, "spec.model"),
    "batch_size": (Kind.COUNT, "spec.batch_size"),
    "precision": (Kind.TEXT, "spec.precision"),
    "dataset": (Kind.TEXT, "spec.dataset"),
    "image_size": (Kind.NUMBER, "spec.image_size"),
    "grad_accumulation": (Kind.NUMBER, "spec.grad_accumulation"),
    "channels_last": (Kind.FLAG, "spec.channels_last"),
    "compile": (Kind.FLAG, "spec.compile"),
    "deterministic": (Kind.FLAG, "spec.deterministic"),
    "optimizer": (Kind.TEXT, "spec.optimizer"),
    "workers": (Kind.NUMBER, "spec.workers"),
    "seed": (Kind.NUMBER, "spec.seed"),
    "iterations": (Kind.NUMBER, "spec.iterations"),
    "images_per_step": (Kind.NUMBER, ""),
    "images_per_s": (Kind.NUMBER, ""),
    "measured_s": (Kind.SECONDS, "timing.measured_s"),
    "images": (Kind.NUMBER, "timing.images"),
    "step_median_s": (Kind.SECONDS, "timing.step_s.median"),
    "step_mean_s": (Kind.SECONDS, "timing.step_s.mean"),
    "step_stdev_s": (Kind.NUMBER, "timing.step_s.stdev"),
    "step_p5_s": (Kind.SECONDS, "timing.step_s.p5"),
    "step_p95_s": (Kind.SECONDS, "timing.step_s.p95"),
    "step_min_s": (Kind.SECONDS, "timing.step_s.min"),
    "step_max_s": (Kind.SECONDS, "timing.step_s.max"),
    "steps": (Kind.NUMBER, "timing.step_s.n"),
    "skipped_steps": (Kind.NUMBER, "timing.skipped_steps.measured"),
    "stated_images_per_s": (Kind.NUMBER, "timing.images_per_s"),
    "data_wait_fraction": (Kind.SHARE, "timing.data_wait_fraction"),
    "explained_fraction": (Kind.SHARE, "timing.explained_fraction"),
    "cpus_used": (Kind.NUMBER, "timing.cpus_used"),
    "setup_s": (Kind.NUMBER, "timing.setup_s"),
    "parameters": (Kind.NUMBER, "complexity.parameters"),
    "forward_mac_per_image": (Kind.NUMBER, "complexity.forward_mac_per_image"),
    "forward_flop_per_image": (Kind.NUMBER, "complexity.forward_flop_per_image"),
    "train_flop_per_image": (Kind.NUMBER, "complexity.train_flop_per_image"),
    "train_flop_per_step": (Kind.NUMBER, "complexity.train_flop_per_step"),
    "bytes_lower_per_step": (Kind.NUMBER, "complexity.bytes_per_step_lower"),
    "bytes_upper_per_step": (Kind.NUMBER, "complexity.bytes_per_step_upper"),
    "ceiling_flop_per_s": (Kind.NUMBER, ""),
    "ceiling_bytes_per_s": (Kind.NUMBER, ""),
    "ceiling_conditions": (Kind.TEXT, ""),
    "bound": (Kind.TEXT, "bound.bound"),
    "bound_why": (Kind.TEXT, "bound.why"),
    "compute_fraction": (Kind.SHARE, "bound.compute_fraction"),
    "memory_fraction_low": (Kind.SHARE, "bound.memory_fraction_low"),
    "memory_fraction_high": (Kind.SHARE, "bound.memory_fraction_high"),
    "torch": (Kind.TEXT, "environment.software.torch"),
    "torchvision": (Kind.TEXT, "environment.software.torchvision"),
    "cuda_build": (Kind.TEXT, "environment.software.cuda_build"),
    "cudnn": (Kind.NUMBER, "environment.software.cudnn"),
    "python": (Kind.TEXT, "environment.software.python"),
    "rooflaunch": (Kind.TEXT, "environment.software.rooflaunch"),
    "commit": (Kind.TEXT, "environment.software.commit"),
    "commit_dirty": (Kind.FLAG, "environment.software.commit_dirty"),
    "image_digest": (Kind.TEXT, "environment.container.image_digest"),
    "hostname": (Kind.TEXT, "environment.host.hostname"),
    "os": (Kind.TEXT, "environment.host.os"),
    "kernel": (Kind.TEXT, "environment.host.kernel"),
    "cpu_model": (Kind.TEXT, "environment.host.cpu_model"),
    "hypervisor": (Kind.TEXT, "environment.host.virtualization.hypervisor"),
    "zone": (Kind.TEXT, "environment.cloud.zone"),
    "region": (Kind.TEXT, ""),
    "machine_type": (Kind.TEXT, "environment.cloud.machine_type"),
    "cpu_platform": (Kind.TEXT, "environment.cloud.cpu_platform"),
    "physical_host": (Kind.TEXT, "environment.cloud.physical_host"),
    "spot": (Kind.FLAG, "environment.cloud.preemptible"),
    "usd_per_h": (Kind.NUMBER, "cost.usd_per_h"),
    "peak_memory_bytes": (Kind.NUMBER, ""),
    "profile_status": (Kind.TEXT, "profile.status"),
    "profile_reason": (Kind.TEXT, "profile.reason"),
    "profile_kind": (Kind.TEXT, "profile.kind"),
    "counted_flop_per_step": (Kind.NUMBER, "profile.flop_per_step"),
    "counted_tensor_flop_per_step": (Kind.NUMBER, "profile.tensor_flop_per_step"),
    "counted_dram_bytes_per_step": (Kind.NUMBER, "profile.dram_bytes_per_step"),
    "counted_l2_bytes_per_step": (Kind.NUMBER, "profile.l2_bytes_per_step"),
    "counted_l1_bytes_per_step": (Kind.NUMBER, "profile.l1_bytes_per_step"),
    "flop_is_lower_bound": (Kind.FLAG, "profile.flop_is_lower_bound"),
    "calibration_verified": (Kind.FLAG, "profile.checks.flop_verified"),
    "backward_kernels": (Kind.FLAG, "profile.checks.backward.present"),
    "notes": (Kind.TEXTS, "notes"),
}
REQUIRED = ("run_id", "status", "model", "batch_size")
# What was measured: of these every other figure is made.
TIMING = {
    where: kind for kind, where in RUN_COLUMNS.values() if where.startswith("timing.") and where != "timing.started_at"
}
# What every run of ours that came to its end has measured.
EXPECTED = ("measured_s", "images", "step_median_s")
# Of numbers: from, to, and whether 0 is one of them too.
RANGES = {
    Kind.NUMBER: (SMALLEST, LARGEST, True),
    Kind.SECONDS: (SHORTEST_S, LONGEST_S, False),
    Kind.SHARE: (SMALLEST, LARGEST_SHARE, True),
}

# One row per rate that a run measured: `quantity` is flop_per_s by precision, or bytes_per_s of copy and triad.
# `roof_per_s` is what runs are held against: the sustained rate where a burst went before it, else the median.
CEILING_COLUMNS: Mapping[str, Kind] = {
    "quantity": Kind.TEXT,
    "name": Kind.TEXT,
    "roof_per_s": Kind.NUMBER,
    "median_per_s": Kind.NUMBER,
    "burst_per_s": Kind.NUMBER,
    "sustained_per_s": Kind.NUMBER,
    "best_per_s": Kind.NUMBER,
    "p5_per_s": Kind.NUMBER,
    "p95_per_s": Kind.NUMBER,
    "samples": Kind.NUMBER,
    "conditions": Kind.TEXT,
    "measured_at": Kind.TIME,
}
RATES = {
    "median_per_s": "median",
    "burst_per_s": "burst",
    "sustained_per_s": "sustained",
    "best_per_s": "best",
    "p5_per_s": "p5",
    "p95_per_s": "p95",
    "samples": "samples",
}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One run: its cells by column, its ceilings, and what run.json says in a way that cannot be read."""

    cells: Mapping[str, Any]
    ceilings: list[dict[str, Any]]
    remarks: list[str]


def row_of(record: Mapping[str, Any]) -> Row:
    """The row of one run.json; `BundleError` without the facts that every run has."""
    tidy = _Tidy()
    reader = _Reader(record=tidy.document(record), remarks=tidy.remarks)
    cells = {name: reader.read(kind, where) if where else None for name, (kind, where) in RUN_COLUMNS.items()}
    for name in REQUIRED:
        if cells[name] is None:
            raise _unusable(f"run.json has no usable {RUN_COLUMNS[name][1]}")
    if cells["status"] not in set(Status):
        raise _unusable(f"run.json has the unknown status '{cells['status']}'")
    reader.impossible += [
        f"run.json: {where} must be {WANTED[kind]}" for where, kind in TIMING.items() if where in tidy.places
    ]
    if reader.impossible:
        raise BundleError("; ".join(reader.impossible), hint=RUN_AGAIN)
    cells |= _derived(reader, cells)
    if cells["status"] == Status.COMPLETED and not cells["imported"]:
        reader.remarks += [
            f"run.json: {RUN_COLUMNS[name][1]} is absent or 0, and yet the run completed"
            for name in EXPECTED
            if not cells[name]
        ]
    return Row(cells=cells, ceilings=list(_ceilings(reader)), remarks=list(dict.fromkeys(reader.remarks)))


def clean(text: str) -> str:
    """`text` as it can be stored: half of a surrogate pair, which JSON can name, becomes its escape."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def read_document(folder: Path) -> Mapping[str, Any]:
    """The whole run.json of a bundle, without what the border leaves out; `BundleError` where there is none."""
    return _Tidy().document(bundle.read_record(folder))


def field_of(record: Mapping[str, Any], where: str) -> Any:
    """What stands at a dotted path of a document; None where nothing does."""
    value: Any = record
    for key in where.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


@dataclass(kw_only=True)
class _Tidy:
    """A JSON document without what nobody can work with: numbers that overflow, endless texts, nesting without end."""

    remarks: list[str] = field(default_factory=list)
    places: set[str] = field(default_factory=set)

    def document(self, record: Mapping[str, Any]) -> Mapping[str, Any]:
        """`record` itself where it needs no change, as nearly all do: looking takes a tenth of the time of copying."""
        if _is_tidy(record):
            return record
        tidied: dict[str, Any] = self.value(record)
        return tidied

    def value(self, value: Any, where: tuple[str, ...] = ()) -> Any:
        """`value` with None in the place of such things, and every text as it can be stored."""
        rule = _broken_rule(value, depth=len(where))
        if rule:
            self._leave_out(where, rule)
            return None
        if isinstance(value, str):
            return clean(value)
        if isinstance(value, Mapping):
            return {clean(key): self.value(inner, (*where, key)) for key, inner in value.items()}
        if isinstance(value, list):
            return [self.value(inner, (*where, str(number))) for number, inner in enumerate(value)]
        return value

    def _leave_out(self, where: tuple[str, ...], rule: str) -> None:
        place = clean(".".join(where))
        self.places.add(place)
        self.remarks.append(f"run.json: {_start(place)} is not {rule}; left out")


def _broken_rule(value: Any, *, depth: int) -> str | None:
    """What a value of a JSON document must be and is not."""
    if isinstance(value, Mapping | list) and depth >= MAX_DEPTH:
        return f"nested at most {MAX_DEPTH} deep"
    if isinstance(value, str) and len(value) > MAX_CHARACTERS:
        return f"text of at most {MAX_CHARACTERS} characters"
    if isinstance(value, int | float) and not -LARGEST <= value <= LARGEST:
        return f"a finite number of at most {LARGEST:g}"
    return None


def _is_tidy(record: Mapping[str, Any]) -> bool:
    level: list[Any] = [record]
    for _ in range(MAX_DEPTH):
        inner: list[Any] = []
        for value in level:
            kind = type(value)
            if kind is str:
                if len(value) > MAX_CHARACTERS or not (value.isascii() or clean(value) == value):
                    return False
            elif kind is dict:
                inner += value
                inner += value.values()
            elif kind is list:
                inner += value
            elif (kind is int or kind is float) and not -LARGEST <= value <= LARGEST:
                return False
        if not inner:
            return True
        level = inner
    return False


@dataclass(kw_only=True)
class _Reader:
    """Looks fields up by dotted path; `remarks` gathers those of the wrong type, `impossible` those of the timing."""

    record: Mapping[str, Any]
    remarks: list[str] = field(default_factory=list)
    impossible: list[str] = field(default_factory=list)

    def read(self, kind: Kind, where: str) -> Any:
        value = self.look_up(where)
        if value is None:
            return [] if kind is Kind.TEXTS else None
        return self.convert(kind, value, where)

    def look_up(self, where: str) -> Any:
        value: Any = self.record
        for key in where.split("."):
            if value is None:
                return None
            # Not Mapping: asking for it takes a tenth of the time that reading a bundle takes.
            if not isinstance(value, dict):
                self.remark(where.partition(f".{key}")[0], "an object")
                return None
            value = value.get(key)
        return value

    def convert(self, kind: Kind, value: Any, where: str) -> Any:
        """`value` as `kind`; None, with a remark, where it is something else."""
        found: Any
        match kind:
            case Kind.TEXT:
                found = value if isinstance(value, str) else None
            case Kind.COUNT:
                found = value if _is_integer(value) and 1 <= value <= MAX_COUNT else None
            case Kind.NUMBER | Kind.SECONDS | Kind.SHARE:
                found = _within(value, *RANGES[kind])
            case Kind.FLAG:
                found = value if isinstance(value, bool) else None
            case Kind.TIME:
                found = _instant(value)
            case Kind.TEXTS:
                is_texts = isinstance(value, list) and all(isinstance(text, str) for text in value)
                found = value if is_texts else None
            case _:
                assert_never(kind)
        if found is None:
            if where in TIMING:
                self.impossible.append(f"run.json: {where} must be {WANTED[kind]}; got {_shown(value)}")
            self.remark(where, WANTED[kind])
            return [] if kind is Kind.TEXTS else None
        return found

    def remark(self, where: str, wanted: str) -> None:
        self.remarks.append(f"run.json: {where} is not {wanted}; left out")


WANTED = {
    Kind.TEXT: "text",
    Kind.COUNT: "a positive integer",
    Kind.NUMBER: f"a number from 0 to {LARGEST:g}",
    Kind.SECONDS: f"seconds from {SHORTEST_S:g} to {LONGEST_S:g}",
    Kind.SHARE: f"a share from 0 to {LARGEST_SHARE:g}",
    Kind.FLAG: "true or false",
    Kind.TIME: "a time stamp with its zone",
    Kind.TEXTS: "a list of texts",
}


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _within(value: Any, low: float, high: float, or_zero: bool) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    # Before it becomes a float: an integer may be too large for one.
    return float(value) if low <= value <= high or (or_zero and value == 0) else None


def _shown(value: Any) -> str:
    """A value as a message quotes it."""
    return _start(json.dumps(value, ensure_ascii=False))


def _start(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"


def _instant(value: Any) -> datetime | None:
    """UTC; a time without a zone could be any."""
    try:
        parsed = datetime.fromisoformat(value)
        return parsed.astimezone(UTC) if parsed.tzinfo else None
    except (TypeError, ValueError, OverflowError):
        return None


def _derived(reader: _Reader, cells: Mapping[str, Any]) -> dict[str, Any]:
    """What run.json does not hold as one field."""
    accumulation, zone = cells["grad_accumulation"], cells["zone"]
    ceiling = _rates(reader, "flop_per_s").get(cells["precision"], {})
    copy = _rates(reader, "bytes_per_s").get("copy", {})
    return {
        "imported": reader.look_up("imported") is not None,
        "images_per_step": cells["batch_size"] * accumulation if accumulation else None,
        "images_per_s": _throughput(cells["images"], cells["measured_s"]),
        "ceiling_flop_per_s": _roof(reader, ceiling, f"ceilings.flop_per_s.{cells['precision']}"),
        "ceiling_bytes_per_s": _roof(reader, copy, "ceilings.bytes_per_s.copy"),
        "ceiling_conditions": _json(ceiling.get("conditions")),
        # Compute Engine: a zone is its region and a letter.
        "region": zone.rpartition("-")[0] or None if zone else None,
        "peak_memory_bytes": _peak_memory(reader, cells["device_type"]),
    }


def _throughput(images: float | None, wall_s: float | None) -> float | None:
    """Images over wall time, never a mean of rates."""
    return images / wall_s if images and wall_s and wall_s > 0 else None


def _peak_memory(reader: _Reader, device_type: str | None) -> float | None:
    """CUDA: the most that torch had allocated. CPU: the process's largest resident set. Otherwise nobody knows."""
    where = {"cuda": "memory.peak_allocated_bytes", "cpu": "usage.max_rss_bytes"}.get(device_type or "")
    found: float | None = reader.read(Kind.NUMBER, where) if where else None
    return found


def _ceilings(reader: _Reader) -> Iterator[dict[str, Any]]:
    measured_at = reader.read(Kind.TIME, "ceilings.measured_at")
    for quantity in ("flop_per_s", "bytes_per_s"):
        for name, rate in _rates(reader, quantity).items():
            where = f"ceilings.{quantity}.{name}"
            yield {
                "quantity": quantity,
                "name": name,
                "roof_per_s": _roof(reader, rate, where),
                **{column: _rate(reader, rate, key, where) for column, key in RATES.items()},
                "conditions": _json(rate.get("conditions")),
                "measured_at": measured_at,
            }


def _rates(reader: _Reader, quantity: str) -> dict[str, Mapping[str, Any]]:
    """By precision or kind of copy."""
    where = f"ceilings.{quantity}"
    rates = reader.look_up(where)
    if rates is not None and not isinstance(rates, Mapping):
        reader.remark(where, "an object")
    found = {}
    for name, rate in rates.items() if isinstance(rates, Mapping) else ():
        if isinstance(rate, Mapping):
            found[name] = rate
        else:
            reader.remark(f"{where}.{name}", "an object")
    return found


def _rate(reader: _Reader, rate: Mapping[str, Any], key: str, where: str) -> float | None:
    value = rate.get(key)
    if value is None:
        return None
    found = _within(value, SMALLEST, LARGEST, or_zero=False)
    if found is None:
        reader.remark(f"{where}.{key}", "a positive number")
        return None
    return found


def _roof(reader: _Reader, rate: Mapping[str, Any], where: str) -> float | None:
    """As `workload.contract.verdict.roof_per_s`; older bundles have the median alone."""
    sustained = _rate(reader, rate, "sustained", where)
    return _rate(reader, rate, "median", where) if sustained is None else sustained


def _json(value: Any) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False)


def _unusable(why: str) -> BundleError:
    return BundleError(why, hint="it is no run of rooflaunch; move the folder away")

"""From run.json to a row of `runs`. Pure; what has the wrong type is left out, with a remark that says so."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, assert_never

from workload.bundle import Status
from workload.errors import BundleError

# Larger counts would not be exact in the table's floating-point columns; no field of a bundle comes near.
MAX_COUNT = 2**53


class Kind(StrEnum):
    """The type of a column: numbers are floats, so that an absent one is NaN."""

    TEXT = "text"
    COUNT = "count"  # always there: an integer
    NUMBER = "number"
    FLAG = "flag"
    TIME = "time"
    TEXTS = "texts"


# Column of `runs` -> its type, and where run.json has it. Those without a place are derived; `path` by the index.
RUN_COLUMNS: Mapping[str, tuple[Kind, str]] = {
    "run_id": (Kind.TEXT, "run_id"),
    "path": (Kind.TEXT, ""),
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
    "measured_s": (Kind.NUMBER, "timing.measured_s"),
    "images": (Kind.NUMBER, "timing.images"),
    "step_median_s": (Kind.NUMBER, "timing.step_s.median"),
    "step_mean_s": (Kind.NUMBER, "timing.step_s.mean"),
    "step_stdev_s": (Kind.NUMBER, "timing.step_s.stdev"),
    "step_p5_s": (Kind.NUMBER, "timing.step_s.p5"),
    "step_p95_s": (Kind.NUMBER, "timing.step_s.p95"),
    "steps": (Kind.NUMBER, "timing.step_s.n"),
    "data_wait_fraction": (Kind.NUMBER, "timing.data_wait_fraction"),
    "explained_fraction": (Kind.NUMBER, "timing.explained_fraction"),
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
    "ceiling_bytes_per_s": (Kind.NUMBER, "ceilings.bytes_per_s.copy.median"),
    "ceiling_conditions": (Kind.TEXT, ""),
    "bound": (Kind.TEXT, "bound.bound"),
    "bound_why": (Kind.TEXT, "bound.why"),
    "compute_fraction": (Kind.NUMBER, "bound.compute_fraction"),
    "memory_fraction_low": (Kind.NUMBER, "bound.memory_fraction_low"),
    "memory_fraction_high": (Kind.NUMBER, "bound.memory_fraction_high"),
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

# One row per rate that a run measured: `quantity` is flop_per_s by precision, or bytes_per_s of copy and triad.
CEILING_COLUMNS: Mapping[str, Kind] = {
    "quantity": Kind.TEXT,
    "name": Kind.TEXT,
    "median_per_s": Kind.NUMBER,
    "best_per_s": Kind.NUMBER,
    "p5_per_s": Kind.NUMBER,
    "p95_per_s": Kind.NUMBER,
    "samples": Kind.NUMBER,
    "conditions": Kind.TEXT,
    "measured_at": Kind.TIME,
}
RATES = {"median_per_s": "median", "best_per_s": "best", "p5_per_s": "p5", "p95_per_s": "p95", "samples": "samples"}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One run: its cells by column, its ceilings, and what run.json says in a way that cannot be read."""

    cells: Mapping[str, Any]
    ceilings: list[dict[str, Any]]
    remarks: list[str]


def row_of(record: Mapping[str, Any]) -> Row:
    """The row of one run.json; `BundleError` without the facts that every run has."""
    reader = _Reader(record=record)
    cells = {name: reader.read(kind, where) if where else None for name, (kind, where) in RUN_COLUMNS.items()}
    for name in REQUIRED:
        if cells[name] is None:
            raise _unusable(f"run.json has no usable {RUN_COLUMNS[name][1]}")
    if cells["status"] not in set(Status):
        raise _unusable(f"run.json has the unknown status '{cells['status']}'")
    cells |= _derived(reader, cells)
    return Row(cells=cells, ceilings=list(_ceilings(reader)), remarks=list(dict.fromkeys(reader.remarks)))


def clean(text: str) -> str:
    """`text` as it can be stored: half of a surrogate pair, which JSON can name, becomes its escape."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


@dataclass(kw_only=True)
class _Reader:
    """Looks fields up by dotted path; `remarks` gathers those of the wrong type."""

    record: Mapping[str, Any]
    remarks: list[str] = field(default_factory=list)

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
            if not isinstance(value, Mapping):
                self.remark(where.partition(f".{key}")[0], "an object")
                return None
            value = value.get(key)
        return value

    def convert(self, kind: Kind, value: Any, where: str) -> Any:
        """`value` as `kind`; None, with a remark, where it is something else."""
        found: Any
        match kind:
            case Kind.TEXT:
                found = clean(value) if isinstance(value, str) else None
            case Kind.COUNT:
                found = value if _is_integer(value) and 1 <= value <= MAX_COUNT else None
            case Kind.NUMBER:
                found = _finite(value)
            case Kind.FLAG:
                found = value if isinstance(value, bool) else None
            case Kind.TIME:
                found = _instant(value)
            case Kind.TEXTS:
                is_texts = isinstance(value, list) and all(isinstance(text, str) for text in value)
                found = [clean(text) for text in value] if is_texts else None
            case _:
                assert_never(kind)
        if found is None:
            self.remark(where, WANTED[kind])
            return [] if kind is Kind.TEXTS else None
        return found

    def remark(self, where: str, wanted: str) -> None:
        self.remarks.append(f"run.json: {clean(where)} is not {wanted}; left out")


WANTED = {
    Kind.TEXT: "text",
    Kind.COUNT: "a positive integer",
    Kind.NUMBER: "a finite number",
    Kind.FLAG: "true or false",
    Kind.TIME: "a time stamp with its zone",
    Kind.TEXTS: "a list of texts",
}


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _finite(value: Any) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


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
    where = f"ceilings.flop_per_s.{cells['precision']}"
    ceiling = _rates(reader, "flop_per_s").get(cells["precision"], {})
    return {
        "imported": reader.look_up("imported") is not None,
        "images_per_step": cells["batch_size"] * accumulation if accumulation else None,
        "images_per_s": _throughput(cells["images"], cells["measured_s"]),
        "ceiling_flop_per_s": _rate(reader, ceiling, "median", where),
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
                "name": clean(name),
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
    found = _finite(value)
    if found is None or found <= 0:
        reader.remark(f"{where}.{key}", "a positive number")
        return None
    return found


def _json(value: Any) -> str | None:
    return None if value is None else clean(json.dumps(value, ensure_ascii=False))


def _unusable(why: str) -> BundleError:
    return BundleError(why, hint="it is no run of rooflaunch; move the folder away")

"""Roofs of each machine, and least step times on GPUs that were not run."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from statistics import median
from typing import Any, cast

import pandas as pd

from analysis.loading.configurations import DEVICE, Group, completed
from analysis.loading.tables import Tables, frame, joined
from workload.contract import peaks
from workload.contract.errors import BundleError
from workload.contract.peaks import Peak
from workload.contract.record_sections import DeviceFacts
from workload.contract.tables import Column, Role, facts
from workload.contract.text import si
from workload.contract.verdict import ABOVE_BY_CPU_TIME, ABOVE_CEILING, RoofKind


@dataclass(frozen=True, kw_only=True)
class Roof:
    """The upper limit of a device: `flop_per_s` right of the ridge, `bytes_per_s` times intensity left of it."""

    kind: RoofKind
    flop_per_s: float
    bytes_per_s: float

    def at(self, intensity: float) -> float:
        """FLOP/s that a step of this intensity (FLOP/byte) can reach."""
        return min(self.flop_per_s, intensity * self.bytes_per_s)


@dataclass(frozen=True, kw_only=True)
class Work:
    """FLOP of a step, and lower and upper bound of the bytes that it moves; None if unknown."""

    flop: float | None
    bytes_low: float | None
    bytes_high: float | None

    def moved(self, step_s: float | None, roof: Roof | None) -> float | None:
        """Bytes from which the intensity is computed: the upper bound, limited to what memory can move in `step_s`.

        Eager PyTorch writes each operation's result to memory, so the upper bound is the better estimate. Bytes beyond
        the measured bandwidth must have stayed in caches. None if unknown.
        """
        if self.bytes_low is None or self.bytes_high is None:
            return None
        if step_s is None or roof is None:
            return self.bytes_high
        return max(self.bytes_low, min(self.bytes_high, step_s * roof.bytes_per_s))


def intensity(flop: float | None, moved_bytes: float | None) -> float | None:
    """FLOP per byte of a step: the sum of FLOP over the sum of bytes, never a mean over kernels. None if unknown."""
    return flop / moved_bytes if flop is not None and moved_bytes else None


COLUMNS = (
    *facts(place="place", device_name="device"),
    Column(name="threads", heading="threads", optional=True, role=Role.FACT),
    *facts(precision="precision", kind="roof"),
    Column(name="flop_per_s", heading="compute", unit="FLOP/s", prefixed=True),
    Column(name="bytes_per_s", heading="memory", unit="B/s", prefixed=True),
    Column(name="ridge", heading="ridge", unit="FLOP/B"),
    Column(name="source", heading="source", role=Role.NOTE),
    Column(name="note", heading="note", optional=True, role=Role.NOTE),
)


def roofs(results: Tables) -> pd.DataFrame:
    """Measured ceilings and vendors' peaks, a row per place, device, precision and kind.

    `flop_per_s` and `bytes_per_s` are medians over the `measurements`; `bytes_per_s` is the copy rate. A run that
    reused the ceilings of an earlier run adds no measurement. Peaks are from our peaks.toml or from the user's; a
    device without a known peak has only measured rows.
    """
    rows = list[dict[str, Any]]()
    for values, runs in completed(results.runs).groupby(list(DEVICE), dropna=False, sort=False):
        known = zip(DEVICE, cast("tuple[Any, ...]", values), strict=True)
        keys = {name: None if pd.isna(value) else value for name, value in known}
        rows += _roofs(results, keys, runs)
    return frame(rows, [*(column.name for column in COLUMNS if column.name != "ridge"), "measurements"])


def _roofs(results: Tables, keys: Mapping[str, Any], runs: pd.DataFrame) -> Iterator[dict[str, Any]]:
    ceilings = results.ceilings[results.ceilings["run_id"].isin(runs["run_id"])]
    ceilings = ceilings.drop_duplicates(["quantity", "name", "roof_per_s", "measured_at"])
    ceilings = ceilings[~ceilings["roof_per_s"].isin(list(refuted_ceilings(results.runs)))]
    rates = ceilings[ceilings["quantity"] == "flop_per_s"]
    copies = ceilings.loc[(ceilings["quantity"] == "bytes_per_s") & (ceilings["name"] == "copy"), "roof_per_s"]
    where = {name: keys[name] for name in ("place", "device_name", "threads")}
    for precision, measured in rates.groupby("name", sort=False, observed=True):
        bursts = measured["burst_per_s"].dropna()
        yield {
            **where,
            "precision": str(precision),
            "kind": str(RoofKind.MEASURED),
            "flop_per_s": float(measured["roof_per_s"].median()),
            "bytes_per_s": float(copies.median()) if len(copies) else None,
            "measurements": len(measured),
            "source": "one measurement" if len(measured) == 1 else f"median of {len(measured)} measurements",
            # Measurements that slowed down under load.
            "note": f"sustained rate; {si(float(bursts.median()), 'FLOP/s')} in a burst" if len(bursts) else None,
        }
    device = device_of(results, keys, runs)
    for precision in dict.fromkeys([*rates["name"], *runs["precision"].dropna()]):
        peak = device.peak(str(precision))
        if peak:
            yield {
                **where,
                "precision": str(precision),
                "kind": str(RoofKind.PEAK),
                "flop_per_s": peak.flop_per_s,
                "bytes_per_s": peak.bytes_per_s,
                "measurements": None,
                "source": peak.source,
                "note": joined([range_note(peak), device.warning]),
            }


@dataclass(frozen=True, kw_only=True)
class DeviceRoofs:
    """The device of a place; `warning`: text if its reported memory clock and bus contradict the table of peaks."""

    name: str | None
    memory_bytes: float | None
    warning: str | None

    def peak(self, precision: str | None) -> Peak | None:
        return peaks.find(self.name, precision=precision, memory_bytes=self.memory_bytes)


def refuted_ceilings(runs: pd.DataFrame) -> dict[float, float]:
    """Measured ceilings of CPUs (FLOP/s) that runs have exceeded, with the largest attained fraction of each ceiling.

    Other work used the CPUs while such a ceiling was measured. Ceilings by CPU time are less exact.
    Ceilings of GPUs are not refuted, because a GPU's kernels may execute fewer FLOP than modelled.
    """
    cpu = runs[(runs["device_type"] == "cpu") & (runs["ceiling_flop_per_s"] > 0) & (runs["step_median_s"] > 0)]
    shares = cpu["train_flop_per_step"] / cpu["step_median_s"] / cpu["ceiling_flop_per_s"]
    most = cpu["cpu_time_share"].notna().map({True: ABOVE_BY_CPU_TIME, False: ABOVE_CEILING})
    above = cpu.assign(share=shares)[shares > most]
    refuted: dict[float, float] = {}
    for value, share in zip(above["ceiling_flop_per_s"].tolist(), above["share"].tolist(), strict=True):
        refuted[value] = max(share, refuted.get(value, 0.0))
    return refuted


def device_of(results: Tables, keys: Mapping[str, Any], runs: pd.DataFrame) -> DeviceRoofs:
    """The device of these runs, from run.json of the first run: devices with one name in one place are alike."""
    name = keys["device_name"]
    device = DeviceFacts()
    if name is not None and keys["device_type"] == "cuda":
        # If the bundle was moved after loading, only the device's name is known.
        with suppress(BundleError):
            device = results.record(str(runs["run_id"].iloc[0])).environment.device
    gpu = peaks.find_gpu(name, memory_bytes=device.memory_total_bytes)
    clock, width = device.memory_clock_max_mhz, device.memory_bus_width_bits
    warning = peaks.bandwidth_warning(gpu, memory_clock_mhz=clock, bus_width_bits=width) if gpu else None
    return DeviceRoofs(name=name, memory_bytes=device.memory_total_bytes, warning=warning)


def range_note(peak: Peak) -> str | None:
    if peak.flop_per_s_low is None:
        return peak.note
    low, high = peak.flop_per_s_low / 1e12, peak.flop_per_s / 1e12
    return f"{low:.1f} to {high:.1f} TFLOP/s {peak.note or ''}; shown is the highest".replace(" ;", ";")


def roof_of(pool: Group, peak: Peak | None, refuted: Collection[float] = ()) -> Roof | None:
    """The measured roof of a group, else the vendor's; None if both are unknown.

    `refuted`: measured FLOP/s to ignore.
    """
    rates = [value for value in pool.known("ceiling_flop_per_s") if value not in refuted]
    bytes_per_s = pool.median("ceiling_bytes_per_s")
    if rates and bytes_per_s:
        return Roof(kind=RoofKind.MEASURED, flop_per_s=median(rates), bytes_per_s=bytes_per_s)
    return Roof(kind=RoofKind.PEAK, flop_per_s=peak.flop_per_s, bytes_per_s=peak.bytes_per_s) if peak else None

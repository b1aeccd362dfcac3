"""Refuse numbers that no GPU can have counted: negative numbers, and rates far above the GPU's peak rates."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from analysis.readers.ncu import metrics
from analysis.readers.ncu.errors import NcuFileError
from analysis.readers.ncu.launches import Launches
from analysis.readers.ncu.table import Floats
from workload.contract import ncu_csv, peaks
from workload.contract.ncu_csv import ID, METRIC, UNIT, VALUE, NcuSource, Quantity
from workload.contract.text import plain, si

# Rates above this many times the peak are refused. Boost clocks, rounding and smaller boards of the same name explain
# less than this; ten times the peak means another unit or another counter.
TIMES_PEAK = 10.0
# No launch takes an hour: drivers would end it.
LONGEST_LAUNCH_S = 3600.0
# Clocks of GPUs are 0.1 to 3 GHz; a value ten times outside this range is not in the unit that the file names.
LEAST_CLOCK_HZ, MOST_CLOCK_HZ = 1e7, 3e10


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The highest possible rates per second, and the GPU whose peaks they are derived from."""

    flop_per_s: float
    bytes_per_s: float
    gpu: str

    @classmethod
    def of_device(cls, name: str | None) -> "Limits":
        """Limits of a device by its name; an unknown device gets the highest peaks of the table."""
        gpu = peaks.find_gpu(name)
        known = peaks.gpus() if gpu is None else (gpu,)
        return cls(
            flop_per_s=TIMES_PEAK * max(row.tflop_per_s for known_gpu in known for row in known_gpu.peaks) * 1e12,
            bytes_per_s=TIMES_PEAK * max(known_gpu.bytes_per_s for known_gpu in known),
            gpu="the fastest GPU that is known here" if gpu is None else gpu.gpu,
        )


def refuse(path: Path, source: NcuSource | None, tables: Sequence[Launches], durations: Sequence[Floats]) -> None:
    """Raise `NcuFileError` for the first impossible value.

    `source`: the table, for the line of the cell; None if it has other lines than the file. `durations`: for each
    table, the seconds of its launches.
    """
    for table, duration_s in zip(tables, durations, strict=True):
        devices = list(table.identity["device"].categories)
        shared = str(devices[0]) if len(devices) == 1 else None
        limits = Limits.of_device(table.attributes.get(metrics.DEVICE_NAME) or shared)
        for role in metrics.known(table.metrics):
            values = table.by_role.get(role.name)
            if values is None:
                continue
            for is_wrong, why in _rules(role.name, role.kind, values, duration_s, limits):
                if is_wrong.any():
                    launch = int(np.flatnonzero(is_wrong)[0])
                    metric = next((name for name in role.metrics if name in table.metrics), role.metrics[0])
                    number, name = int(table.ids[launch]), str(table.identity["name"][launch])[:60]
                    # Without the cell, the value in base units.
                    cell = f"is {plain(float(values[launch]), 6)}"
                    where, cell = (_cell(source, number, metric) if source else None) or ("", cell)
                    raise NcuFileError(
                        path,
                        f"{where}{metric} of launch {number} ({name}) {cell}: {why}",
                        hint="correct the cell or its unit, or profile again",
                        what="cannot be a profile",
                    )


def _rules(
    role: str, kind: Quantity, values: Floats, duration_s: Floats, limits: Limits
) -> Iterator[tuple["np.ndarray[tuple[int], np.dtype[np.bool_]]", str]]:
    """Masks of impossible values of a role, each with the reason."""
    with np.errstate(divide="ignore", invalid="ignore"):
        yield values < 0, "a counter is never negative"
        rate = np.where(duration_s > 0, values / duration_s, np.nan)
    of_gpu = f"{TIMES_PEAK:g} x the peak of {limits.gpu}"
    most_flop = f"this rate is above {of_gpu}, {si(limits.flop_per_s / TIMES_PEAK, 'FLOP/s')}"
    most_bytes = f"this rate is above {of_gpu}, {si(limits.bytes_per_s / TIMES_PEAK, 'B/s')}"
    match kind:
        case Quantity.TIME:
            yield values > LONGEST_LAUNCH_S, "no kernel launch takes an hour: perhaps the unit of the times is wrong"
        case Quantity.COUNT if role == "cycles":
            yield rate > MOST_CLOCK_HZ, "with the duration of the launch, the clock would be above 30 GHz"
            yield rate < LEAST_CLOCK_HZ, "with the duration of the launch, the clock would be below 10 MHz"
        case Quantity.COUNT:
            yield rate > limits.flop_per_s, f"within the duration of the launch {most_flop}"
        case Quantity.BYTES if role.startswith("dram"):
            yield rate > limits.bytes_per_s, f"within the duration of the launch {most_bytes}"
        case Quantity.BYTES_PER_SECOND:
            yield values > limits.bytes_per_s, most_bytes
        case _:
            pass


def _cell(source: NcuSource, launch: int, metric: str) -> tuple[str, str] | None:
    """Line, and text with unit, of a launch's metric; None if it is not found."""
    head = ncu_csv.find(source)
    for table, line, row in ncu_csv.rows(source, head):
        cells = dict(zip(table.header, row, strict=False))
        is_long = METRIC in table.header
        if cells.get(ID) == str(launch) and (not is_long or cells.get(METRIC) == metric):
            units = dict(zip(table.header, table.units or (), strict=False))
            unit = cells.get(UNIT, "") if is_long else units.get(metric, "")
            where = f"line {ncu_csv.lines_before(source, head) + line}: "
            return where, f"is '{cells.get(VALUE if is_long else metric, '')}' {unit}".rstrip()
    return None

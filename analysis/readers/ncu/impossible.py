"""Refuse numbers that no GPU can have counted: negative numbers, and rates far above the GPU's peak rates."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from analysis.readers.ncu import metrics
from analysis.readers.ncu.errors import NcuFileError
from analysis.readers.ncu.launches import Launches
from analysis.readers.ncu.numbers import Floats
from workload.contract import ncu_csv, peaks
from workload.contract.ncu_csv import ID, METRIC, VALUE, NcuSource, Quantity
from workload.contract.text import si

# Rates above this many times the peak are refused. Boost clocks, rounding and smaller boards of the same name explain
# less than this; ten times the peak means another unit or another counter.
TIMES_PEAK = 10.0
# No launch takes an hour: drivers would end it.
LONGEST_LAUNCH_S = 3600.0
# Clocks of GPUs are 0.1 to 3 GHz; a value ten times outside this range is not in the unit that the file names.
LEAST_CLOCK_HZ, MOST_CLOCK_HZ = 1e7, 3e10
MOST_PERCENT = 100 * TIMES_PEAK


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


def refuse(
    source: NcuSource, original: NcuSource, tables: Sequence[Launches], durations: Sequence[Floats | None]
) -> None:
    """Raise `NcuFileError` for the first impossible cell.

    `source` holds the table, `original` the file from which it was converted. `durations`: for each
    table, the seconds of its launches.
    """
    for table, duration_s in zip(tables, durations, strict=True):
        limits = Limits.of_device(table.attributes.get(metrics.DEVICE_NAME) or _shared_device_name(table))
        for role in metrics.known(table.metrics):
            values = table.by_role.get(role.name)
            if values is None:
                continue
            for is_wrong, why in _rules(role.name, role.kind, values, duration_s, limits):
                if is_wrong.any():
                    launch = int(np.flatnonzero(is_wrong)[0])
                    metric = next((name for name in role.metrics if name in table.units), role.metrics[0])
                    raise _refusal(source, original, table, launch, metric, why)


def _shared_device_name(table: Launches) -> str | None:
    names = list(table.identity["device"].categories)
    return str(names[0]) if len(names) == 1 else None


def _rules(
    role: str, kind: Quantity, values: Floats, duration_s: Floats | None, limits: Limits
) -> Iterator[tuple["np.ndarray[tuple[int], np.dtype[np.bool_]]", str]]:
    """Masks of impossible values of a role, each with the reason."""
    with np.errstate(divide="ignore", invalid="ignore"):
        yield values < 0, "a counter is never negative"
        rate = (
            np.full(len(values), np.nan)
            if duration_s is None
            else np.where(duration_s > 0, values / duration_s, np.nan)
        )
    peak = f"{TIMES_PEAK:g} x the peak of {limits.gpu}"
    peak_flop = f"{peak}, {si(limits.flop_per_s / TIMES_PEAK, 'FLOP/s')}"
    peak_bytes = f"{peak}, {si(limits.bytes_per_s / TIMES_PEAK, 'B/s')}"
    match kind:
        case Quantity.TIME:
            yield values > LONGEST_LAUNCH_S, "no kernel launch takes an hour: perhaps the unit of the times is wrong"
        case Quantity.COUNT if role == "cycles":
            yield rate > MOST_CLOCK_HZ, "with the duration of the launch, the clock would be above 30 GHz"
            yield rate < LEAST_CLOCK_HZ, "with the duration of the launch, the clock would be below 10 MHz"
        case Quantity.COUNT:
            yield rate > limits.flop_per_s, f"within the duration of the launch this rate is above {peak_flop}"
        case Quantity.BYTES if role.startswith("dram"):
            yield rate > limits.bytes_per_s, f"within the duration of the launch this rate is above {peak_bytes}"
        case Quantity.BYTES:
            # A cache serves 128 bytes per clock and multiprocessor; a multiprocessor does at least as many FLOP per
            # clock.
            yield rate > limits.flop_per_s, "no cache can move so much within the duration of the launch"
        case Quantity.BYTES_PER_SECOND:
            yield values > limits.bytes_per_s, f"that is above {peak_bytes}"
        case Quantity.FREQUENCY:
            yield values > MOST_CLOCK_HZ, "no GPU has a clock above 30 GHz"
        case Quantity.PER_CYCLE:
            yield values > limits.flop_per_s / LEAST_CLOCK_HZ, f"this rate is above {peak} at any clock of the GPU"
        case Quantity.PERCENT:
            yield values > MOST_PERCENT, f"a share of a peak is at most {MOST_PERCENT:g} %"


def _refusal(
    source: NcuSource, original: NcuSource, table: Launches, launch: int, metric: str, why: str
) -> NcuFileError:
    number, name = int(table.ids[launch]), str(table.identity["name"][launch])[:60]
    line, cell = _cell(source, number, metric)
    if line is not None and source is not original:
        # The table was converted from printed text, in which the figure is in another line.
        line = _line_of(original, metric, cell)
    where = f"line {line}: " if line is not None else ""
    units = table.units.get(metric, ())
    unit = units[0] if len(units) == 1 else ""
    reason = f"{where}{metric} of launch {number} ({name}) is '{cell}'{' ' + unit if unit else ''}: {why}"
    return NcuFileError(
        original.path,
        reason,
        hint="correct the cell or its unit, or profile again",
        what="cannot be a profile",
    )


def _cell(source: NcuSource, launch: int, metric: str) -> tuple[int | None, str]:
    """Line number and text of a launch's metric; None and `?` if unknown."""
    if source.path.suffix == ".ncu-rep":
        return None, "?"
    head = ncu_csv.find(source)
    for table, line, row in ncu_csv.rows(source, head):
        cells = dict(zip(table.header, row, strict=False))
        is_long = METRIC in table.header
        if cells.get(ID) == str(launch) and (not is_long or cells.get(METRIC) == metric):
            return ncu_csv.lines_before(source, head) + line, cells.get(VALUE if is_long else metric, "?")
    return None, "?"


def _line_of(original: NcuSource, metric: str, cell: str) -> int | None:
    with original.open() as file:
        lines = file.read().decode(errors="replace").splitlines()
    both = (number for number, line in enumerate(lines, start=1) if metric in line and cell in line)
    either = (number for number, line in enumerate(lines, start=1) if cell in line)
    return next(both, None) or next(either, None)

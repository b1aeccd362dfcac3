"""FLOP and bytes of kernel launches, from counts or else from rates; impossible figures are refused.

FLOP = add + mul + 2 fma per type, plus tensor operations, which already count 2 per multiply-accumulate.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from analysis.readers.ncu import metrics
from analysis.readers.ncu.launches import Launches
from analysis.readers.ncu.table import Floats, NcuFileError
from workload.contract import ncu_csv, peaks
from workload.contract.ncu_csv import ID, METRIC, UNIT, VALUE, NcuSource, Quantity
from workload.contract.text import plain, si
from workload.contract.vocabulary import tensor_operations

# Values per launch by role, in base units; roles that the file lacks are absent.
Values = Mapping[str, Floats]
Flags = npt.NDArray[np.bool_]

TYPES = ("fp64", "fp32", "fp16")
_OPERATIONS = {"add": 1, "mul": 1, "fma": 2}
TIME_FROM_CYCLES = "kernel times are cycles / clock: the file has no durations"
FLOP_FROM_RATES = "FLOP are operations per cycle x clock x time, rounded as ncu prints them: the file has no counts"
BYTES_FROM_RATES = "DRAM bytes are bytes per second x time, rounded as ncu prints them: the file has no counts"


@dataclass(frozen=True, kw_only=True)
class LaunchWork:
    """Work of each launch, an array per figure: None if the file lacks the figure, NaN if only a launch lacks it.

    `flop` is the sum over the types that were counted. `hides_tensor`: the launch has uncounted tensor operations.
    `is_lower_bound`: `flop` is too low, as tensor operations or some operations of a type were not counted. `remarks`:
    how figures were derived.
    """

    duration_s: Floats | None
    flop_by_type: Mapping[str, Floats]
    flop_tensor: Floats | None
    flop: Floats | None
    hides_tensor: Flags
    is_lower_bound: Flags
    dram_read: Floats | None
    dram_write: Floats | None
    dram: Floats | None
    remarks: tuple[str, ...]


def work(values: Values, is_named_for_tensor_cores: Flags, tensor_pipe_is_products: Flags) -> LaunchWork:
    """Work of each launch, from its metrics.

    If no metric tells whether a launch used tensor cores, `is_named_for_tensor_cores` (from its name) decides.
    `tensor_pipe_is_products`: whether the launch's GPU executes only matrix products on the tensor pipe.
    """
    duration_s = values.get("duration")
    if duration_s is None and {"cycles", "clock"} <= set(values):
        with np.errstate(divide="ignore", invalid="ignore"):
            duration_s = np.where(values["clock"] > 0, values["cycles"] / values["clock"], np.nan)
    by_type = _by_type(values, duration_s)
    tensor_counts = [values[name] for name in tensor_operations(values)]
    uses_tensor_cores = _uses_tensor_cores(values, is_named_for_tensor_cores, tensor_pipe_is_products)
    tensor = _total(tensor_counts)
    hidden = uses_tensor_cores if tensor is None else uses_tensor_cores & ~(tensor > 0)
    counted = [sum(f"{kind}_{operation}" in values for operation in _OPERATIONS) for kind in TYPES]
    bytes_read, bytes_written = (_dram(values, f"dram_{way}", duration_s) for way in ("read", "write"))
    both = None if bytes_read is None or bytes_written is None else bytes_read + bytes_written
    dram = _first_known(values.get("dram"), both, _dram(values, "dram", duration_s))
    remarks = [TIME_FROM_CYCLES] if duration_s is not None and "duration" not in values else []
    if any(not _operations(values, kind, "") for kind in by_type):
        remarks.append(FLOP_FROM_RATES)
    if dram is not None and "dram" not in values and not {"dram_read", "dram_write"} <= set(values):
        remarks.append(BYTES_FROM_RATES)
    return LaunchWork(
        duration_s=duration_s,
        flop_by_type=by_type,
        flop_tensor=_idle(values) if tensor is None else tensor,
        flop=_total([*by_type.values(), *tensor_counts]),
        hides_tensor=hidden,
        is_lower_bound=hidden | any(0 < number < len(_OPERATIONS) for number in counted),
        dram_read=bytes_read,
        dram_write=bytes_written,
        dram=dram,
        remarks=tuple(remarks),
    )


def _by_type(values: Values, duration_s: Floats | None) -> dict[str, Floats]:
    flop_of = {}
    for kind in TYPES:
        if counts := _operations(values, kind, ""):
            flop_of[kind] = _weighted(counts)
        elif (rates := _operations(values, kind, "_rate")) and "clock" in values and duration_s is not None:
            flop_of[kind] = _weighted(rates) * values["clock"] * duration_s
    return flop_of


def _operations(values: Values, kind: str, suffix: str) -> list[tuple[Floats, int]]:
    """Values per launch of each operation (add, mul, fma), each with its FLOP; empty if one operation is missing."""
    names = {f"{kind}_{operation}{suffix}": flop for operation, flop in _OPERATIONS.items()}
    return [(values[name], flop) for name, flop in names.items()] if names.keys() <= values.keys() else []


def _weighted(operations: Iterable[tuple[Floats, int]]) -> Floats:
    total = _total([values if flop == 1 else values * flop for values, flop in operations])
    assert total is not None
    return total


def _uses_tensor_cores(values: Values, is_named_for_them: Flags, pipe_is_products: Flags) -> Flags:
    """Whether each launch used tensor cores, from tensor instructions, else the tensor pipe's busy time, else its name.

    A busy pipe proves nothing if it also executes other instructions; an idle pipe is always conclusive.
    """
    uses = is_named_for_them
    for role in ("tensor_percent", "tensor_instructions"):
        if role in values:
            is_conclusive = (values[role] == 0) | (pipe_is_products & ~np.isnan(values[role]))
            uses = np.where(is_conclusive, values[role] > 0, uses)
    products = _tensor_products(values)
    return uses if products is None else np.where(np.isnan(products), uses, products > 0)


def _tensor_products(values: Values) -> Floats | None:
    """Tensor instructions without HFMA2.MMA, which only builds constants; None if HFMA2.MMA was not counted."""
    if not {"tensor_instructions", "hfma2_instructions"} <= set(values):
        return None
    return values["tensor_instructions"] - values["hfma2_instructions"]


def _idle(values: Values) -> Floats | None:
    """0 FLOP for launches without tensor instructions, NaN for others; None if the instructions were not counted."""
    instructions = _first_known(_tensor_products(values), values.get("tensor_instructions"))
    return None if instructions is None else np.where(instructions == 0, 0.0, np.nan)


def _dram(values: Values, role: str, duration_s: Floats | None) -> Floats | None:
    if role in values or duration_s is None or f"{role}_rate" not in values:
        return values.get(role)
    return values[f"{role}_rate"] * duration_s


def _total(arrays: list[Floats]) -> Floats | None:
    """Sum of the arrays, element by element; NaN if a summand is NaN. None if the list is empty."""
    if not arrays:
        return None
    total = arrays[0].copy()
    for array in arrays[1:]:
        total += array
    return total


def _first_known(*arrays: Floats | None) -> Floats | None:
    return next((array for array in arrays if array is not None), None)


# --- impossible figures

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

"""FLOP and bytes of kernel launches, from counts or else from the rates of ncu's roofline sections.

FLOP = add + mul + 2 fma per type, plus tensor operations, which already count 2 per multiply-accumulate.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from analysis.readers.ncu.table import Floats
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

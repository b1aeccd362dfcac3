"""What limits a run, from its step time, its FLOP, its modelled bytes and the measured ceilings.

The bytes are modelled, so the memory side is an interval: from every tensor moved once to every operation reading
and writing memory. Counters (`--profile ncu`) replace the model where there are any.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

# Above this share of the wall time, the input pipeline and not the step decides the throughput.
INPUT_BOUND_FRACTION = 0.10
# Below this share of both roofs neither can be the limit: launches, small kernels or synchronisation are.
OVERHEAD_FRACTION = 0.25


class Bound(StrEnum):
    """What a step waits for."""

    COMPUTE = "compute"
    MEMORY = "memory"
    OVERHEAD = "overhead"
    INPUT = "input"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The bound, the fractions of the measured ceilings reached (1 = at the roof), and a sentence."""

    bound: Bound
    why: str
    flop_per_s: float | None = None
    compute_fraction: float | None = None
    memory_fraction_low: float | None = None
    memory_fraction_high: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain values by field name."""
        return asdict(self)


def judge(
    *,
    step_s: float,
    data_wait_fraction: float,
    flop_per_step: float,
    bytes_low: float,
    bytes_high: float,
    ceiling_flop_per_s: float,
    ceiling_bytes_per_s: float,
) -> Verdict:
    """Classify a run by its median step time; all arguments are per step, in seconds, FLOP and bytes."""
    compute = flop_per_step / ceiling_flop_per_s / step_s
    low, high = (moved / ceiling_bytes_per_s / step_s for moved in (bytes_low, bytes_high))
    bound = _classify(data_wait_fraction, compute=compute, low=low, high=high)
    return Verdict(
        bound=bound,
        compute_fraction=compute,
        memory_fraction_low=low,
        memory_fraction_high=high,
        flop_per_s=flop_per_step / step_s,
        why=_explain(bound, data_wait_fraction=data_wait_fraction, compute=compute, low=low, high=high),
    )


def _input_bound(data_wait_fraction: float) -> Verdict | None:
    """What can be said without ceilings."""
    if data_wait_fraction <= INPUT_BOUND_FRACTION:
        return None
    return Verdict(bound=Bound.INPUT, why=_waits(data_wait_fraction))


def _waits(data_wait_fraction: float) -> str:
    return f"{data_wait_fraction:.0%} of the wall time is spent waiting for data"


def _classify(data_wait_fraction: float, *, compute: float, low: float, high: float) -> Bound:
    if data_wait_fraction > INPUT_BOUND_FRACTION:
        return Bound.INPUT
    if max(compute, high) < OVERHEAD_FRACTION:
        return Bound.OVERHEAD
    # Eager PyTorch writes each operation's result to memory, so the upper end is the better guess for its traffic.
    return Bound.COMPUTE if compute >= max(low, min(high, 1.0)) else Bound.MEMORY


def _explain(bound: Bound, *, data_wait_fraction: float, compute: float, low: float, high: float) -> str:
    roofs = f"{compute:.0%} of the measured compute ceiling, {low:.0%} to {high:.0%} of the bandwidth (modelled)"
    match bound:
        case Bound.INPUT:
            return _waits(data_wait_fraction)
        case Bound.OVERHEAD:
            return f"far below both roofs: {roofs}"
        case Bound.MEMORY if low < compute:
            return f"{roofs}; memory if the caches do not help, compute if they do"
        case _:
            return roofs


def from_record(record: Mapping[str, Any]) -> Verdict | None:
    """The verdict on a run.json; None without steps, or without the ceilings that tell compute from memory."""
    timing, complexity = record["timing"], record["complexity"]
    if not timing.get("step_s"):
        return None
    ceilings = record["ceilings"] or {"flop_per_s": {}, "bytes_per_s": {}}
    flop_rate = ceilings["flop_per_s"].get(record["spec"]["precision"])
    byte_rate = ceilings["bytes_per_s"].get("copy")
    if not (flop_rate and byte_rate):
        return _input_bound(timing["data_wait_fraction"])
    return judge(
        step_s=timing["step_s"]["median"],
        data_wait_fraction=timing["data_wait_fraction"],
        flop_per_step=complexity["train_flop_per_step"],
        bytes_low=complexity["bytes_per_step_lower"],
        bytes_high=complexity["bytes_per_step_upper"],
        ceiling_flop_per_s=flop_rate["median"],
        ceiling_bytes_per_s=byte_rate["median"],
    )

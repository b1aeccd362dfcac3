"""What limits a run, from its step time, its FLOP, its modelled bytes and the measured ceilings.

The bytes are modelled, so the memory side is an interval: from every tensor moved once to every operation reading
and writing memory. Counters (`--profile ncu`) replace the model where there are any.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from workload.contract.text import between, percent

# Above this share of the wall time, the input pipeline and not the step decides the throughput.
INPUT_BOUND_FRACTION = 0.10
# Below this share of both roofs neither can be the limit: launches, small kernels or synchronisation are.
OVERHEAD_FRACTION = 0.25
# A ceiling is a median, and noise in it of a few per cent is no fault; a run above this has shown it to be wrong.
ABOVE_CEILING = 1.05
# Training steps alone keep their threads 90 % to 100 % busy; two runs at once get about half each.
COMPETED_SHARE = 0.75
# Of the time for which a run wanted a CPU. Threads of an idle machine waited for less than 5 % of it (24 runs of
# analysis/example on two CPUs); with fewer busy threads than CPUs but more waits than this, other work had the CPUs.
LEAST_WAITED_SHARE = 0.10


class Bound(StrEnum):
    """What a step waits for."""

    COMPUTE = "compute"
    MEMORY = "memory"
    OVERHEAD = "overhead"
    INPUT = "input"
    # Other work had the CPUs: the figures say nothing about this machine or this model.
    BUSY = "busy"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The bound, the fractions of the measured ceilings reached (1 = at the roof), and a sentence.

    Without a bound the sentence says why it is not known.
    """

    bound: Bound | None
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
    is_input = data_wait_fraction > INPUT_BOUND_FRACTION
    bound = Bound.INPUT if is_input else by_fractions(compute=compute, low=low, high=high)
    return Verdict(
        bound=bound,
        compute_fraction=compute,
        memory_fraction_low=low,
        memory_fraction_high=high,
        flop_per_s=flop_per_step / step_s,
        why=_explain(bound, data_wait_fraction=data_wait_fraction, compute=compute, low=low, high=high),
    )


def _waits(data_wait_fraction: float) -> str:
    return f"{percent(data_wait_fraction)} of the wall time is spent waiting for data"


def by_fractions(*, compute: float, low: float, high: float) -> Bound:
    """What limits a step that does not wait for data, by the fractions of the compute and the memory roof it reaches.

    Modelled bytes are an interval: `low` and `high`.
    """
    if max(compute, high) < OVERHEAD_FRACTION:
        return Bound.OVERHEAD
    # Eager PyTorch writes each operation's result to memory, so the upper end is the better guess for its traffic.
    return Bound.COMPUTE if compute >= max(low, min(high, 1.0)) else Bound.MEMORY


def _explain(bound: Bound, *, data_wait_fraction: float, compute: float, low: float, high: float) -> str:
    roofs = f"{percent(compute)} of the measured compute ceiling, {between(low, high)} of the bandwidth (modelled)"
    match bound:
        case Bound.INPUT:
            return _waits(data_wait_fraction)
        case Bound.OVERHEAD:
            return f"far below both roofs: {roofs}"
        case Bound.MEMORY if low < compute:
            return f"{roofs}; memory if the caches do not help, compute if they do"
        case _:
            return roofs


def competition(record: Mapping[str, Any]) -> str | None:
    """What a CPU run got of the CPUs that it has threads for, where other work had the rest; otherwise None."""
    timing = record["timing"]
    used, waited = timing.get("cpus_used"), timing.get("cpus_waited")
    if not lacks_cpus(record) or waited is None:
        return None
    share = waited / (used + waited)
    if share < LEAST_WAITED_SHARE:
        return None
    threads = record["environment"]["device"]["threads"]
    return f"the run got {used:.1f} of {threads} CPUs and waited for one {percent(share)} of its time"


def lacks_cpus(record: Mapping[str, Any]) -> bool:
    """Whether a CPU run kept few of its threads busy, for whatever reason."""
    used = record["timing"].get("cpus_used")
    if record["spec"].get("device") != "cpu" or used is None:
        return False
    threads = record["environment"]["device"].get("threads")
    return bool(threads) and used < COMPETED_SHARE * threads


def share_of_ceiling(record: Mapping[str, Any]) -> float | None:
    """The FLOP/s of the median step by the ceiling that was measured for its precision; None where one is unknown."""
    step_s, ceilings = record["timing"].get("step_s"), record["ceilings"]
    rate = ceilings and ceilings["flop_per_s"].get(record["spec"]["precision"])
    if not (step_s and rate):
        return None
    return float(record["complexity"]["train_flop_per_step"] / step_s["median"] / roof_per_s(rate))


def roof_per_s(rate: Mapping[str, Any]) -> float:
    """FLOP or bytes per second to hold a run against, from a rate of run.json.

    The sustained one where a device slowed down under load, else the median; older bundles have the median alone.
    """
    return float(rate.get("sustained") or rate["median"])


def from_record(record: Mapping[str, Any]) -> Verdict | None:
    """The verdict on a run.json; None without steps."""
    timing = record["timing"]
    if not timing.get("step_s"):
        return None
    if taken := competition(record):
        return Verdict(bound=Bound.BUSY, why=taken)
    why_not = _unknown(record)
    if why_not is None:
        return _judged(record)
    if timing["data_wait_fraction"] > INPUT_BOUND_FRACTION:
        # This can be said without ceilings.
        return Verdict(bound=Bound.INPUT, why=_waits(timing["data_wait_fraction"]))
    return Verdict(bound=None, why=why_not)


def _unknown(record: Mapping[str, Any]) -> str | None:
    """Why compute cannot be told from memory."""
    ceilings, precision = record["ceilings"], record["spec"]["precision"]
    if ceilings is None:
        return "no ceilings were measured (--no-ceilings)"
    unavailable = ceilings.get("unavailable", {})
    for quantity, name, what in (
        ("flop_per_s", precision, f"{precision} ceiling"),
        ("bytes_per_s", "copy", "bandwidth"),
    ):
        if not ceilings[quantity].get(name):
            return f"the {what} was not measured: {unavailable.get(name, 'nobody knows why')}"
    share = share_of_ceiling(record)
    if share is not None and share > ABOVE_CEILING:
        return (
            f"the run reached {percent(share)} of the measured {precision} ceiling, which cannot be:"
            " the ceiling is too low, or the kernels execute fewer FLOP than the model has (Winograd)"
        )
    return None


def _judged(record: Mapping[str, Any]) -> Verdict:
    timing, complexity, ceilings = record["timing"], record["complexity"], record["ceilings"]
    return judge(
        step_s=timing["step_s"]["median"],
        data_wait_fraction=timing["data_wait_fraction"],
        flop_per_step=complexity["train_flop_per_step"],
        bytes_low=complexity["bytes_per_step_lower"],
        bytes_high=complexity["bytes_per_step_upper"],
        ceiling_flop_per_s=roof_per_s(ceilings["flop_per_s"][record["spec"]["precision"]]),
        ceiling_bytes_per_s=roof_per_s(ceilings["bytes_per_s"]["copy"]),
    )

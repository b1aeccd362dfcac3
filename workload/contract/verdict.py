"""What limits a run, from its step time, its FLOP, its modelled bytes and the measured ceilings.

The bytes are modelled, so the memory side is an interval: from every tensor moved once to every operation reading
and writing memory. Counters (`--profile ncu`) replace the model where there are any.
"""

from enum import StrEnum

from workload.contract.record import Record, Verdict
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


def competition(run: Record) -> str | None:
    """What a CPU run got of the CPUs that it has threads for, where other work had the rest; otherwise None."""
    used, waited = run.timing.cpus_used, run.timing.cpus_waited
    if not lacks_cpus(run) or used is None or waited is None:
        return None
    share = waited / (used + waited)
    if share < LEAST_WAITED_SHARE:
        return None
    threads = run.environment.device.threads
    return f"the run got {used:.1f} of {threads} CPUs and waited for one {percent(share)} of its time"


def lacks_cpus(run: Record) -> bool:
    """Whether a CPU run kept few of its threads busy, for whatever reason."""
    used, threads = run.timing.cpus_used, run.environment.device.threads
    return run.spec.device == "cpu" and used is not None and bool(threads) and used < COMPETED_SHARE * (threads or 0)


def flop_per_s(run: Record) -> float | None:
    """The FLOP of a step by its median time; unlike images/s it leaves out waits for data."""
    flop = run.complexity.train_flop_per_step if run.complexity else None
    median_s = run.timing.step_s.median if run.timing.step_s else None
    return None if flop is None or median_s is None else flop / median_s


def share_of_ceiling(run: Record) -> float | None:
    """The FLOP/s of the median step by the ceiling that was measured for its precision; None where one is unknown."""
    reached, roof = flop_per_s(run), compute_roof_per_s(run)
    return None if reached is None or roof is None else reached / roof


def compute_roof_per_s(run: Record) -> float | None:
    """The measured ceiling of the run's precision."""
    rate = run.ceilings.compute(run.spec.precision) if run.ceilings else None
    return rate.roof_per_s if rate else None


def from_record(run: Record) -> Verdict | None:
    """The verdict on a run; None without steps."""
    if run.timing.step_s is None:
        return None
    if taken := competition(run):
        return Verdict(bound=Bound.BUSY, why=taken)
    verdict = _judged(run)
    waits = run.timing.data_wait_fraction
    if isinstance(verdict, str) and waits is not None and waits > INPUT_BOUND_FRACTION:
        # This can be said without ceilings.
        return Verdict(bound=Bound.INPUT, why=_waits(waits))
    return Verdict(bound=None, why=verdict) if isinstance(verdict, str) else verdict


def _judged(run: Record) -> Verdict | str:
    """The verdict, or why compute cannot be told from memory."""
    ceilings, precision, complexity = run.ceilings, run.spec.precision, run.complexity
    if ceilings is None:
        return "no ceilings were measured (--no-ceilings)"
    compute, copy = ceilings.compute(precision), ceilings.copy()
    unavailable = ceilings.unavailable or {}
    for rate, name, what in (
        (compute, precision or "", f"{precision} ceiling"),
        (copy, "copy", "bandwidth"),
    ):
        if rate is None:
            return f"the {what} was not measured: {unavailable.get(name) or 'nobody knows why'}"
    share = share_of_ceiling(run)
    if share is not None and share > ABOVE_CEILING:
        return (
            f"the run reached {percent(share)} of the measured {precision} ceiling, which cannot be:"
            " the ceiling is too low, or the kernels execute fewer FLOP than the model has (Winograd)"
        )
    figures = {
        "step_s": run.timing.step_s.median if run.timing.step_s else None,
        "data_wait_fraction": run.timing.data_wait_fraction,
        "flop_per_step": complexity.train_flop_per_step if complexity else None,
        "bytes_low": complexity.bytes_per_step_lower if complexity else None,
        "bytes_high": complexity.bytes_per_step_upper if complexity else None,
        "ceiling_flop_per_s": compute.roof_per_s if compute else None,
        "ceiling_bytes_per_s": copy.roof_per_s if copy else None,
    }
    if absent := [name for name, value in figures.items() if value is None]:
        return f"run.json lacks {', '.join(absent)}"
    return judge(**{name: value for name, value in figures.items() if value is not None})

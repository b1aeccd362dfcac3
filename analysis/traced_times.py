"""Imported traces on a roofline: the time of a step that only torch.profiler took, and what work is missing."""

from collections.abc import Iterator

from analysis.configurations import Group
from workload.contract.spec import Device
from workload.contract.text import percent, si
from workload.contract.verdict import MOST_UNATTRIBUTED, Bound, traced_step_s

# How a note on such a time begins.
TRACED_TIME = "time under torch.profiler"
# Gaps of a few per cent between kernels are usual.
WHOLLY_BUSY = 0.95


def times(pool: Group) -> list[float]:
    """Seconds of a step by run, of traces from elsewhere: wall time, or where unknown that of kernels or operators."""
    if not pool["imported"]:
        return []
    columns = (pool.runs[name].astype(float) for name in ("traced_wall_s", "traced_busy_s"))
    pairs = (tuple(value if value > 0 else None for value in pair) for pair in zip(*columns, strict=True))
    return [step_s for wall_s, busy_s in pairs if (step_s := traced_step_s(wall_s, busy_s))]


def has_no_gaps(pool: Group) -> bool:
    """Whether the times of a trace are those of its kernels alone, so that gaps between them are unknown."""
    return not any(wall_s > 0 for wall_s in pool.known("traced_wall_s"))


def lower_bounds(pool: Group) -> tuple[str, ...]:
    """Why the FLOP of a trace are not all: its operators without a formula may compute too."""
    share = pool.median("uncounted_share") or 0.0
    return (f"{percent(share)} of the time is unattributed",) if share > MOST_UNATTRIBUTED else ()


def without_bytes(pool: Group) -> float:
    """The share of a trace's time in operators whose bytes are unknown."""
    return (pool.median("unattributed_share") or 0.0) - (pool.median("uncounted_share") or 0.0)


def notes(pool: Group, flop: float | None, bound: str | None) -> Iterator[str]:
    """Notes on a time that only the profiler took; `flop`: of a step, where all of them are known.

    The reason of `bound` tells for how much of the step kernels run, where that matters to it.
    """
    on_gpu = pool["device_type"] != Device.CPU
    running = "kernels" if on_gpu else "operators"
    if has_no_gaps(pool):
        yield f"{TRACED_TIME}: the {running}', overlapping ones once, without the gaps between them"
    else:
        yield f"{TRACED_TIME}, which lengthens the gaps between {running}" + ("" if on_gpu else " and slows small ones")
    if (share := without_bytes(pool)) > MOST_UNATTRIBUTED:
        yield f"the bytes of {percent(share)} of the time are missing: the trace lacks their shapes"
    busy_s, wall_s = pool.median("traced_busy_s"), pool.median("traced_wall_s")
    if busy_s and wall_s and busy_s < WHOLLY_BUSY * wall_s:
        if bound not in (Bound.OVERHEAD, Bound.NEITHER):
            yield f"{running} run in {percent(busy_s / wall_s)} of the step"
        yield f"{si(flop / busy_s, 'FLOP/s')} while {running} run" if flop else ""

"""Step times of imported traces, which only torch.profiler measured, and notes on missing work."""

from collections.abc import Iterator

from analysis.loading.configurations import Group
from workload.contract.spec import Device
from workload.contract.text import percent, si
from workload.contract.verdict import MOST_UNATTRIBUTED, Bound, traced_step_s

# Beginning of a note on such a time.
TRACED_TIME = "time under torch.profiler"
# Busy share above which gaps are not reported: gaps of a few per cent between kernels are usual.
WHOLLY_BUSY = 0.95


def times(pool: Group) -> list[float]:
    """Seconds of a step by run, for imported traces: wall time, or if unknown the time of kernels or operators."""
    if not pool["imported"]:
        return []
    columns = (pool.runs[name].astype(float) for name in ("traced_wall_s", "traced_busy_s"))
    pairs = (tuple(value if value > 0 else None for value in pair) for pair in zip(*columns, strict=True))
    return [step_s for wall_s, busy_s in pairs if (step_s := traced_step_s(wall_s, busy_s))]


def has_no_gaps(pool: Group) -> bool:
    """Whether the times of a trace are those of its kernels alone, so that gaps between kernels are unknown."""
    return not any(wall_s > 0 for wall_s in pool.known("traced_wall_s"))


def lower_bounds(pool: Group) -> tuple[str, ...]:
    """Why a trace's FLOP are incomplete, if they are: operators without a formula may compute too."""
    share = pool.median("uncounted_share") or 0.0
    return (f"{percent(share)} of the time is unattributed",) if share > MOST_UNATTRIBUTED else ()


def without_bytes(pool: Group) -> float:
    """Share of a trace's time in operators whose bytes are unknown."""
    return (pool.median("unattributed_share") or 0.0) - (pool.median("uncounted_share") or 0.0)


def notes(pool: Group, flop: float | None, bound: str | None) -> Iterator[str]:
    """Notes on a time that only the profiler measured; `flop`: FLOP of a step, None if incomplete.

    The busy share of the step is left out if the reason of `bound` already contains it.
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

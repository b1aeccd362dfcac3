"""Of imported traces, what a roofline needs: the time that only torch.profiler took, and what work is missing."""

from collections.abc import Iterator
from statistics import median

from analysis.configurations import Group
from analysis.roof import Roof, Work, classify
from workload.contract.spec import Device
from workload.contract.text import percent
from workload.contract.verdict import Bound

# What operators without a formula compute in less of the time changes no verdict.
MOST_UNATTRIBUTED = 0.05
# How a note on such a time begins.
TRACED_TIME = "time under torch.profiler"
# Gaps of a few per cent between kernels are usual.
WHOLLY_BUSY = 0.95


def times(pool: Group) -> list[float]:
    """Of traces from elsewhere by run: seconds of a step in which kernels, or on a CPU operators, ran."""
    return [busy_s for busy_s in pool.known("traced_busy_s") if busy_s > 0] if pool["imported"] else []


def lower_bounds(pool: Group) -> tuple[str, ...]:
    """Why the FLOP of a trace are not all: its operators without a formula may compute too."""
    share = pool.median("uncounted_share") or 0.0
    return (f"{percent(share)} of the time is unattributed",) if share > MOST_UNATTRIBUTED else ()


def without_bytes(pool: Group) -> float:
    """The share of a trace's time of operators that move bytes which nobody can say."""
    return (pool.median("unattributed_share") or 0.0) - (pool.median("uncounted_share") or 0.0)


def is_sure(pool: Group, work: Work, roof: Roof, bound: Bound) -> bool:
    """Whether what limits the kernels limits the profiled step too, gaps between them included, and no bytes lack."""
    if without_bytes(pool) > MOST_UNATTRIBUTED:
        return False
    walls_s = [wall_s for wall_s in pool.known("traced_wall_s") if wall_s > 0]
    return not walls_s or classify(work, step_s=median(walls_s), roof=roof, data_wait_fraction=None) is bound


def notes(pool: Group) -> Iterator[str]:
    """What to know of a time that only the profiler took."""
    on_gpu = pool["device_type"] != Device.CPU
    yield (
        f"{TRACED_TIME}: the kernels', overlapping ones once, without the gaps between them"
        if on_gpu
        else f"{TRACED_TIME}, which slows down small operators"
    )
    if (share := without_bytes(pool)) > MOST_UNATTRIBUTED:
        yield f"the bytes of {percent(share)} of the time are missing: the trace lacks their shapes"
    busy_s, wall_s = pool.median("traced_busy_s"), pool.median("traced_wall_s")
    if busy_s and wall_s and busy_s < WHOLLY_BUSY * wall_s:
        what = "kernels ran" if on_gpu else "operators ran"
        busy = percent(busy_s / wall_s)
        yield f"{what} in {busy} of the profiled step: the rest are gaps, longer under the profiler"

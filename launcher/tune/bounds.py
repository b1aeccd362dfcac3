"""Bounds of the gain that a change can bring, computed from one measured run before the change is tried.

A change can at best remove the part of the wall time that it acts on: waits for data, the optimizer, the kernel of the
operating system, or what a step takes beyond its FLOP at the machine's measured ceiling. If a share s of the time goes,
throughput grows by s / (1 - s) (Amdahl 1967, AFIPS 30). Parts are never counted together, so that a change that acts on
two of them has the larger of both bounds.
"""

from collections.abc import Sequence

from workload.contract import verdict
from workload.contract.changes import Change
from workload.contract.record import Record

# Less time than this share is left of no run.
LEAST_REST = 1e-6


def bound_of(changes: Sequence[Change], run: Record, steps: Sequence[dict[str, str]]) -> float | None:
    """Largest growth of throughput by changes that are made together: 0.61 is 61 % more samples per second.

    `run`: measured without them; `steps`: rows of its steps.csv. None if the share of a part is unknown.
    """
    share = 0.0
    for part in (part for change in changes for part in _parts(change, run, steps)):
        if part is None:
            return None
        share = max(share, part)
    return share / max(1 - share, LEAST_REST)


def _parts(change: Change, run: Record, steps: Sequence[dict[str, str]]) -> list[float | None]:
    """Shares of the wall time of the parts that a change can remove."""
    helps, timing = set(change.row.helps), run.timing
    if change.row.name == "optimizer":
        return [_optimizer_share(run, steps)]
    if helps == {"kernel"}:
        used, kernel = timing.cpus_used, timing.cpus_in_kernel
        return [min(1.0, kernel / used) if used and kernel is not None else None]
    if helps == {"input"}:
        return [timing.data_wait_fraction]
    beyond = _beyond_the_ceiling(change, run)
    return [timing.data_wait_fraction, beyond] if "input" in helps else [beyond]


def _optimizer_share(run: Record, steps: Sequence[dict[str, str]]) -> float | None:
    measured = [row for row in steps if row["phase"] == "measured"]
    times_s = [float(row["optimizer_s"]) for row in measured if row["optimizer_s"]]
    if not times_s or len(times_s) < len(measured) or not run.timing.measured_s:
        return None
    return min(1.0, sum(times_s) / run.timing.measured_s)


def _beyond_the_ceiling(change: Change, run: Record) -> float | None:
    """Share of the wall time that a step takes beyond its FLOP at the measured ceiling of the changed precision."""
    flop, timing = run.complexity and run.complexity.train_flop_per_step, run.timing
    lower = change.row.precision and run.ceilings and run.ceilings.compute(change.row.precision)
    roof = lower.roof_per_s if lower else None if change.row.precision else verdict.compute_roof_per_s(run)
    images, step_s = timing.images, timing.step_s
    # The ceiling was measured with the script's own number of threads, so it bounds no other number.
    if change.row.name == "torch.set_num_threads" or not (flop and roof and images and step_s and step_s.n):
        return None
    least_s = flop / roof * step_s.n
    return max(0.0, 1 - least_s / timing.measured_s) if timing.measured_s else None

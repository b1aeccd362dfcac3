"""Bounds of the gain that a change can bring, computed from one measured run before the change is tried.

A change can at best remove the parts of the wall time that it acts on: waits for data, the optimizer, page faults, or
what steps take beyond their FLOP at the machine's measured ceiling, the roof. If a share s of the time goes, throughput
grows by s / (1 - s) (Amdahl 1967, AFIPS 30). Changes that are made together act on the same part.
"""

from collections.abc import Sequence

from workload.contract import verdict
from workload.contract.changes import Change
from workload.contract.record import Record

# Less time than this share is left of no run.
LEAST_REST = 1e-6
# Without page faults, threads neither wait for each other's faults nor read new memory into the caches: 77 % of the
# time went where the kernel had 74.5 % of it (benchmarks/tuned/page_faults.py on two CPUs).
BESIDE_FAULTS = 1.1


def bound_of(changes: Sequence[Change], run: Record, steps: Sequence[dict[str, str]]) -> float | None:
    """Largest growth of throughput by changes that are made together: 0.61 is 61 % more samples per second.

    `run`: measured without them; `steps`: rows of its steps.csv. None if the share of a part is unknown.
    """
    shares = []
    for change in changes:
        parts = [_optimizer_share(run, steps)] if change.row.name == "optimizer" else _parts(change, run)
        if None in parts:
            return None
        shares.append(sum(part for part in parts if part is not None))
    share = min(1.0, max(shares, default=0.0))
    return share / max(1 - share, LEAST_REST)


def _parts(change: Change, run: Record) -> list[float | None]:
    """Shares of the wall time that a change acts on, None for one that is unknown."""
    helps, timing = set(change.row.helps), run.timing
    parts = list[float | None]()
    if "kernel" in helps:
        used, kernel, per_s = timing.cpus_used, timing.cpus_in_kernel, timing.page_faults_per_s
        # The rest of the kernel's time, such as switching between threads, has nothing to do with memory.
        if used and kernel is not None and per_s is not None:
            parts.append(min(1.0, BESIDE_FAULTS * min(used, kernel, verdict.MOST_FAULT_S * per_s) / used))
        else:
            parts.append(None)
    if "input" in helps:
        parts.append(timing.data_wait_fraction)
    if helps - {"input", "kernel"}:
        # The ceiling was measured with the script's own number of threads, so it bounds no other number.
        parts.append(None if change.row.name == "torch.set_num_threads" else _beyond_the_roof(change, run))
    return parts


def _optimizer_share(run: Record, steps: Sequence[dict[str, str]]) -> float | None:
    measured = [row for row in steps if row["phase"] == "measured"]
    times_s = [float(row["optimizer_s"]) for row in measured if row["optimizer_s"]]
    if not times_s or len(times_s) < len(measured) or not run.timing.measured_s:
        return None
    return min(1.0, sum(times_s) / run.timing.measured_s)


def _beyond_the_roof(change: Change, run: Record) -> float | None:
    """Share of the wall time that steps take beyond their FLOP at the measured ceiling of the changed precision."""
    flop, timing = run.complexity and run.complexity.train_flop_per_step, run.timing
    lower = change.row.precision and run.ceilings and run.ceilings.compute(change.row.precision)
    roof = lower.roof_per_s if lower else None if change.row.precision else verdict.compute_roof_per_s(run)
    images, step_s = timing.images, timing.step_s
    if not (flop and roof and images and step_s and step_s.n):
        return None
    least_s = flop / roof * step_s.n
    return max(0.0, 1 - (timing.data_wait_fraction or 0.0) - least_s / timing.measured_s) if timing.measured_s else None

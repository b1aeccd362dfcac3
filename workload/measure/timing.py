"""Summarises recorded steps as the `timing` section of run.json."""

from dataclasses import replace

from workload.contract.record import StepSeconds, Timing
from workload.measure.cpu_time import CpuShare
from workload.measure.recorder import PhaseTotals


def summarize(before: Timing, measured: PhaseTotals, *, wall_s: float, cpus: CpuShare) -> Timing:
    """Copy `before` with the figures of the measured region, which took `wall_s` seconds of the host's clock.

    `cpus`: CPUs used and waited for. `images_per_s` is images over wall time, never a mean of rates.
    `explained_fraction` is the share of the wall time that steps and data waits add up to. Without a single step the
    figures are None.
    """
    known = replace(before, measured_s=wall_s, cpus_used=cpus.got, cpus_waited=cpus.waited, images=measured.images)
    if not measured.step_s:
        return known
    step_sum_s, data_sum_s = sum(measured.step_s), sum(measured.data_s)
    return replace(
        known,
        images_per_s=measured.images / wall_s,
        step_s=StepSeconds.of(measured.step_s),
        data_wait_fraction=data_sum_s / wall_s,
        explained_fraction=(step_sum_s + data_sum_s) / wall_s,
    )

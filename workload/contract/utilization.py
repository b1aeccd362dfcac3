"""MFU and HFU of a run: shares of the vendor's dense peak that its FLOP took of the wall time."""

from collections.abc import Sequence
from dataclasses import dataclass

from workload.contract import peaks, verdict
from workload.contract.peaks import Peak
from workload.contract.record import Record
from workload.contract.spec import Device
from workload.contract.text import percent, percent_range, si


@dataclass(frozen=True, kw_only=True)
class Utilization:
    """FLOP of a run's steps over their wall time, waits for data included, as a fraction of `peak`.

    `mfu`: of model FLOP, without those that gradient checkpointing repeats. `hfu`: of all FLOP; None if none are
    repeated. Both are those of one device; they hold for all if the devices share the work evenly. `repeated`: share of
    the FLOP that are repeated. `is_least`: the FLOP of some operations are unknown. Source: Chowdhery et al. 2022,
    https://arxiv.org/abs/2204.02311, appendix B.
    """

    mfu: float
    hfu: float | None
    peak: Peak
    repeated: float
    is_least: bool

    @property
    def peak_name(self) -> str:
        """Device and precision of the peak."""
        return f"{self.peak.gpu}, {self.peak.precision}"


def of(run: Record) -> Utilization | None:
    """MFU and HFU of a run, by the peak of the precision with most FLOP; None without FLOP, time or a known peak.

    CPUs have none, because a run may use some of the cores. Neither have imports that may have computed in TF32.
    """
    work, device, step_s = run.complexity, run.environment.device, seconds_per_step(run)
    flop = (work and work.train_flop_per_step) or 0.0
    if work is None or not flop or not step_s or device.type == Device.CPU or verdict.tf32_instead(run) is not None:
        return None
    precision = next(iter(verdict.shares_of_flop(run)))
    peak = peaks.find(device.name, precision=precision, memory_bytes=device.memory_total_bytes)
    if peak is None:
        return None
    repeated = work.recomputed_flop_per_step or 0.0
    all_of_peak = flop / step_s / peak.flop_per_s
    return Utilization(
        mfu=all_of_peak * (1 - repeated / flop),
        hfu=all_of_peak if repeated else None,
        peak=peak,
        repeated=repeated / flop,
        is_least=bool(work.uncounted),
    )


def seconds_per_step(run: Record) -> float | None:
    """Mean wall time of a step, waits included; None if unknown."""
    timing, batch_size = run.timing, run.spec.batch_size
    steps = timing.step_s.n if timing.step_s else None
    if not steps and timing.images and batch_size:
        # The log of another program may say only how many samples it trained on in which time.
        steps = timing.images / batch_size
    return timing.measured_s / steps if timing.measured_s and steps else None


def sentence(runs: Sequence[Record]) -> str | None:
    """MFU of the runs of one configuration, and the peak; with checkpointing HFU too. None if no run has an MFU."""
    found = [each for run in runs if (each := of(run))]
    if not found:
        return None
    first, hfus = found[0], [each.hfu for each in found if each.hfu is not None]
    least = "at least " if any(each.is_least for each in found) else ""
    peak = f"{first.peak.gpu}'s dense {first.peak.precision} peak, {si(first.peak.flop_per_s, 'FLOP/s')}"
    text = f"{least}{_range([each.mfu for each in found])} of the {peak}: model FLOP over wall time"
    if not hfus:
        return text
    repeated = percent(max(each.repeated for each in found))
    return f"{text}; HFU {least}{_range(hfus)}, with the {repeated} of the FLOP that gradient checkpointing repeats"


def repetition(share: float) -> str:
    """Note for a run whose step repeats work. `share`: part of the step's FLOP that gradient checkpointing repeats."""
    return f"gradient checkpointing computes a part of the forward pass again: {percent(share)} of the FLOP"


def _range(shares: Sequence[float]) -> str:
    return percent_range(min(shares), max(shares))

"""Measured region of a run: rows of its steps, phases, telemetry, CPU time, and the wall time without gaps."""

from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workload.contract import bundle
from workload.contract.record import Timing
from workload.contract.spec import Device
from workload.measure.clock import Clock, clock_for
from workload.measure.collectives import Collectives
from workload.measure.recorder import LossReader, PhaseTotals, Recorder, StepPhase, loss_reader_for
from workload.measure.telemetry import Telemetry
from workload.measure.timing import CpuMeter, CpuUse, Timeline, summarize


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Figures of the measured steps. `wall_s`: seconds of steps and waits for data, without pauses of a script."""

    totals: PhaseTotals
    wall_s: float
    cpus: CpuUse

    def summarize(self, before: Timing) -> Timing:
        """Copy `before` and add the figures of these steps."""
        return summarize(before, self.totals, wall_s=self.wall_s, cpus=self.cpus)


class Region:
    """Steps under measurement: opens steps.csv of a bundle, and telemetry.csv unless the bundle `has_telemetry`.

    On CUDA they are steps of the GPU that is current now. `is_open`: a step is open, to which new marks belong.
    `measured`: set at the end of the measured phase.
    """

    def __init__(
        self,
        folder: Path,
        device: Device,
        timeline: Timeline,
        losses: LossReader | None = None,
        *,
        has_telemetry: bool = False,
        collectives: Collectives | None = None,
    ) -> None:
        self.phase = StepPhase.WARMUP
        self.is_open = self.wants_more = False
        self.measured: Measured | None = None
        self._clock: Clock = clock_for(device)
        self.instant = self._clock.mark
        self._timeline = timeline
        self._stack = ExitStack()
        if not has_telemetry:
            path = folder / bundle.TELEMETRY
            self._stack.enter_context(Telemetry(path, device=device, origin_s=timeline.started_s))
        # The recorder needs a reader of losses, but gets no loss from a user's script, because the loss cannot be told
        # from other tensors.
        losses = losses or loss_reader_for(Device.CPU)
        self.recorder = self._stack.enter_context(
            Recorder(folder, self._clock, losses, started_s=timeline.started_s, collectives=collectives)
        )
        self._meter = CpuMeter()

    @property
    def totals(self) -> PhaseTotals:
        """Totals of the present phase."""
        return self.recorder.totals[self.phase]

    def enter(self, phase: StepPhase) -> None:
        """Begin a phase of steps, after the device has finished earlier work."""
        self.phase = phase
        self._clock.synchronize()
        self._meter = CpuMeter()
        self._timeline.enter(phase)

    def begin(self, mark: Any = None) -> None:
        """Begin a step, now or at `mark`, which was taken earlier."""
        self.recorder.begin(self.phase, 0, mark)
        self.is_open = True

    def end(self, images: int, *, is_step: bool) -> None:
        """End the step. `images`: samples that it trained on; `is_step`: False if it was no training step."""
        self.is_open = False
        self.recorder.end(images=images, is_step=is_step)

    def leave(self, *, ends_now: bool = False) -> bool:
        """End the phase at its last complete step, or with `ends_now` at this moment; False if the device has failed.

        Time after the last step, an unfinished step and gaps between steps are no part of the wall time.
        """
        totals, began_s = self.totals, self._timeline.began_s[self.phase]
        self.is_open = False
        # A device that has failed can be neither waited for nor read; the rows so far are in the file.
        with suppress(RuntimeError):
            self._clock.synchronize()
            wall_s = self._timeline.elapsed_s() - began_s
            cpus = self._meter.use()
            self.recorder.on_flush = lambda: None
            self.recorder.drain()
            if totals.step_s and not ends_now:
                wall_s = totals.ended_at_s - began_s
            if self.phase is StepPhase.MEASURED:
                gaps_s = sum(gap.seconds for gap in totals.gaps.values()) + totals.measuring_s
                self.measured = Measured(totals=totals, wall_s=max(wall_s - gaps_s, 1e-9), cpus=cpus)
            return True
        return False

    def close(self) -> None:
        """Close the files; an open measured phase ends with its last step."""
        if self.phase is StepPhase.MEASURED and self.measured is None:
            self.leave()
        self.is_open = False
        self._stack.close()

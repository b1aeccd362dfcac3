"""The life of a run, of our trainer and of a user's script alike, in this order.

A first record opens the bundle. The ceilings are measured, and the device cools down. A `Region` times the steps. If
they exceeded the ceilings, these are measured again. A verdict and notes complete the record, and the bundle is sealed.
"""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from workload import log
from workload.contract import bundle, verdict
from workload.contract.fields import from_facts
from workload.contract.process import raise_if_interrupted
from workload.contract.ranks import LinkRate
from workload.contract.record import CeilingsRecord, GapSeconds, Memory, Record, Status, Timing
from workload.contract.spec import Device, Precision
from workload.contract.text import percent, seconds, si
from workload.contract.trainer import Context, KeptCeilings
from workload.environment import device, gpu_index
from workload.measure import ceilings, energy, timing
from workload.measure.clock import Clock, Collectives, clock_for
from workload.measure.energy import EnergyMeter, Metered
from workload.measure.recorder import LossReader, PhaseTotals, Recorder, StepPhase, loss_reader_for
from workload.measure.telemetry import Telemetry, settle, thermometer_of
from workload.measure.timing import CpuMeter, CpuUse, Timeline

LOGGER = logging.getLogger("workload")
# Measuring the ceilings takes a few seconds for each precision and for the bandwidth, longer if other work disturbs.
CEILINGS_LIMIT_S = 180.0
ROOT = Path(__file__).parents[2]


class Life:
    """An open bundle, with its log and its telemetry. `record` is replaced whenever more is known.

    `apart`: measure ceilings in a process of their own, free of a script's settings and memory, started in this folder.
    """

    def __init__(
        self, folder: Path, first: Record, timeline: Timeline, context: Context, *, apart: Path | None = None
    ) -> None:
        self.folder, self.record = folder, first
        self.device = Device(str(first.spec.device))
        self.notes = list(first.notes or ())
        self._timeline, self._context, self._apart = timeline, context, apart
        self._idle_w: float | None = None
        self._stack = ExitStack()
        bundle.write_record(folder, first)
        self._stack.enter_context(log.to_file(folder / bundle.LOG))
        path = folder / bundle.TELEMETRY
        self._telemetry = self._stack.enter_context(Telemetry(path, device=self.device, origin_s=timeline.started_s))

    def set(self, **sections: Any) -> None:
        """Replace sections of the record."""
        self.record = replace(self.record, **sections)

    def set_timing(self, **figures: Any) -> None:
        """Replace figures of the record's timing."""
        self.set(timing=replace(self.record.timing, **figures))

    def take(self, region: "Region") -> None:
        """Take the figures of the measured steps, if their phase has ended."""
        self.set(timing=region.timing(self.record.timing))
        steps_s, began_s = self.record.timing.measured_s, self._timeline.began_s
        if steps_s is None or region.span is None:
            return
        # Power is that of one whole GPU.
        is_sampled = len(region.energy.counters) == 1 and not self.record.environment.device.mig_enabled
        samples, pauses = self._telemetry.powers if is_sampled else [], region.totals.pauses
        goes_on = len(region.totals.step_s) >= (self.record.spec.iterations or 0)
        found = energy.of_steps(
            region.metered, samples, steps_s=steps_s, span=region.span, pauses=pauses, goes_on=goes_on
        )
        until_s = began_s.get(StepPhase.WARMUP, began_s[StepPhase.MEASURED])
        idle_w = energy.idle_w(samples, until_s) if self._idle_w is None else self._idle_w
        self.set(energy=found and replace(found, idle_w=idle_w))
        if found is None and region.metered:
            share = percent(1 - steps_s / region.metered.seconds)
            self.notes.append(f"energy is unknown: {share} of the time between two readings of its counter were pauses")

    # --- before the steps

    def begin_again(self, first: Record) -> None:
        """Begin with steps of another kind; what is known of the machine stays."""
        known, self.device, self.notes = self.record, Device(str(first.spec.device)), list(first.notes or ())
        self.record = replace(first, ceilings=known.ceilings, settling=known.settling)
        bundle.write_record(self.folder, self.record)

    def prepare(self) -> None:
        """Measure the ceilings, then let the device cool down."""
        context, spec, known = self._context, self.record.spec, self.record.ceilings
        thermometer = thermometer_of(self.device) if context.settles and self.record.settling is None else None
        # Read before the ceilings, which load the device: the first run of a task reads the temperature from before the
        # task.
        target_c = thermometer() if thermometer and context.settle_to_c is None else context.settle_to_c
        if spec.ceilings and not (known and all(map(known.compute, self._precisions()))):
            self._timeline.enter("ceilings")
            self._measure_ceilings(KeptCeilings.NONE if spec.fresh_ceilings else KeptCeilings(context.kept_ceilings))
        raise_if_interrupted()
        if thermometer:
            self._timeline.enter("settle")
            meter = EnergyMeter.of(self.device)
            self.set(settling=(settling := settle(thermometer, target_c, report=LOGGER.info)))
            # While it cools down, the device has no work.
            if settling.waited_s and (idle := meter.end()):
                self._idle_w = idle.joules / idle.seconds
        self._timeline.enter("setup")

    def measure_again(self) -> None:
        """Measure the ceilings again after a run that exceeded them, which proves them wrong; later runs use these."""
        share = verdict.share_of_ceiling(self.record)
        if share is None or share <= verdict.ABOVE_CEILING:
            return
        self._timeline.enter("ceilings_again")
        was = verdict.compute_roof_per_s(self.record) or 0.0
        above = f"the run reached {percent(share)} of the {self.record.spec.precision} ceiling"
        LOGGER.info("%s: this machine's ceilings are measured again", above)
        # Read before the probes, whose allocations are not part of the run's memory.
        self._read_memory()
        self._measure_ceilings(KeptCeilings.NONE)
        self.notes.append(
            f"{above} measured before the run, {si(was, 'FLOP/s')}: the ceilings were measured again after the run"
        )

    def set_links(self, rates: Sequence[LinkRate]) -> None:
        """Record the rates of the links between ranks beside the ceilings of the device."""
        self.set(ceilings=replace(self.record.ceilings or CeilingsRecord(), links=rates))

    def _precisions(self) -> list[Precision]:
        return [Precision(name) for name in verdict.shares_of_flop(self.record) if name in set(Precision)]

    def _measure_ceilings(self, kept: KeptCeilings) -> None:
        wanted = self._precisions()
        if self.device is Device.CUDA:
            # Memory that the allocator keeps is missing to the probes.
            torch.cuda.empty_cache()
        measured = self._ceilings_here(wanted, kept) if self._apart is None else self._ceilings_apart(wanted, kept)
        if measured is None:
            return
        if age_s := measured.get("age_s"):
            age = seconds(age_s, 2)
            LOGGER.info("this machine's ceilings of %s ago are used again (not with --fresh-ceilings)", age)
        known = self.record.ceilings
        self.set(ceilings=replace(from_facts(CeilingsRecord, measured), links=known.links if known else None))

    def _ceilings_here(self, precisions: Sequence[Precision], kept: KeptCeilings) -> dict[str, Any]:
        measured, age_s = ceilings.cached_or_measure(
            self.folder.parent,
            device=self.device,
            precisions=precisions,
            sample=ceilings.sensors_of(self.device),
            progress=LOGGER.info,
            kept=kept,
        )
        return measured.to_json() | {"age_s": age_s}

    def _ceilings_apart(self, precisions: Sequence[Precision], kept: KeptCeilings) -> dict[str, Any] | None:
        command = [sys.executable, "-P", "-m", "workload", "ceilings", "--device", self.device.value]
        command += ["--cache", str(self.folder.parent), "--kept", kept]
        command += [f"--precision={precision}" for precision in precisions]
        python_path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads()), "PYTHONPATH": python_path}
        if self.device is Device.CUDA:
            index = int(self.record.environment.device.index or 0)
            visible = [name.strip() for name in os.environ.get(gpu_index.VISIBLE, "").split(",") if name.strip()]
            environment[gpu_index.VISIBLE] = visible[index] if index < len(visible) else str(index)
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stdin": subprocess.DEVNULL}
        try:
            done = subprocess.run(
                command, check=True, timeout=CEILINGS_LIMIT_S, cwd=self._apart, env=environment, **pipes
            )
            return dict(json.loads(done.stdout))
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            self.notes.append(f"this machine's ceilings could not be measured: {error}")
            return None

    # --- the end

    def note_times(self) -> None:
        """Record the phases up to now, for good."""
        times = self._timeline
        self.set_timing(setup_s=times.setup_s(), phases=times.phases(), interpreter_s=times.interpreter_s)

    def finish(self, status: Status, error: str | None, *, seals: bool = True) -> None:
        """Complete the record, and seal the bundle unless others seal it. A full disk raises `OSError`."""
        times = self._timeline
        self.set(status=status, error=error)
        if self.record.timing.phases is None:
            self.note_times()
        if self.record.memory == Memory():
            self._read_memory()
        self.set(usage=timing.process_usage(times.started_s, times.started_s + times.elapsed_s()))
        roof, complexity = verdict.compute_roof_per_s(self.record), self.record.complexity
        if roof and complexity and complexity.train_flop_per_step:
            self.set(complexity=replace(complexity, theoretical_step_s=complexity.train_flop_per_step / roof))
        self.set(bound=verdict.from_record(self.record))
        # Every run has its verdict's notes last.
        self.set(notes=[*self.notes, *verdict.faults_note(self.record)])
        self.close()
        if self._telemetry.error:
            raise self._telemetry.error
        bundle.write_record(self.folder, self.record)
        if seals:
            bundle.seal(self.folder)

    def _read_memory(self) -> None:
        index = self.record.environment.device.index
        # A device that has failed cannot report its memory.
        with suppress(RuntimeError):
            self.set(memory=device.memory(self.device, None if index is None else int(index)))

    def close(self) -> None:
        """Close the log and the telemetry."""
        self._stack.close()


class Region:
    """Steps under measurement, whose rows go to steps.csv in `folder`.

    On CUDA they are steps of the GPU that is current now. `is_open`: a step is open, to which new marks belong.
    `wall_s`: seconds of steps and waits for data, without pauses of a script; None until the measured phase has ended,
    as are `span`, its beginning and end in seconds since the run began, and `metered`, the energy in this time.
    """

    # All requested steps are enough, unlike for a profiler.
    wants_more = False

    def __init__(
        self,
        folder: Path,
        device: Device,
        timeline: Timeline,
        losses: LossReader | None = None,
        *,
        collectives: Collectives | None = None,
    ) -> None:
        self.phase, self.is_open = StepPhase.WARMUP, False
        self.wall_s: float | None = None
        self._clock: Clock = clock_for(device)
        self.instant = self._clock.mark
        self._timeline = timeline
        # The recorder needs a reader of losses, but gets no loss from a user's script, because the loss cannot be told
        # from other tensors.
        losses = losses or loss_reader_for(Device.CPU)
        self.recorder = Recorder(folder, self._clock, losses, started_s=timeline.started_s, collectives=collectives)
        self._meter = CpuMeter()
        self._cpus: CpuUse | None = None
        self.energy = EnergyMeter.of(device, ranks=distributed.get_world_size() if collectives else 1)
        self.metered: Metered | None = None
        self.span: tuple[float, float] | None = None

    @property
    def totals(self) -> PhaseTotals:
        """Totals of the present phase."""
        return self.recorder.totals[self.phase]

    @property
    def has_steps(self) -> bool:
        """Whether the measured phase has ended with a step."""
        return self.wall_s is not None and bool(self.recorder.totals[StepPhase.MEASURED].step_s)

    def enter(self, phase: StepPhase) -> None:
        """Begin a phase of steps, after the device has finished earlier work."""
        self.phase = phase
        self._clock.synchronize()
        self._meter = CpuMeter()
        self.energy.begin()
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
            metered, cpus = self.energy.end(), self._meter.use()
            self.recorder.on_flush = lambda: None
            self.recorder.drain()
            if totals.step_s and not ends_now:
                wall_s = totals.ended_at_s - began_s
            if self.phase is StepPhase.MEASURED:
                self.metered, self.span = metered, (began_s, began_s + wall_s)
                gaps_s = sum(gap.seconds for gap in totals.gaps.values()) + totals.measuring_s
                self.wall_s, self._cpus = max(wall_s - gaps_s, 1e-9), cpus
            return True
        return False

    def timing(self, known: Timing) -> Timing:
        """Copy `known` and add the figures of the measured steps, if their phase has ended."""
        if self.wall_s is None or self._cpus is None:
            return known
        totals = self.recorder.totals[StepPhase.MEASURED]
        gaps = {gap.value: GapSeconds(number=all_.number, seconds=all_.seconds) for gap, all_ in totals.gaps.items()}
        return replace(timing.summarize(known, totals, wall_s=self.wall_s, cpus=self._cpus), gaps=gaps or None)

    def close(self) -> None:
        """Close the file; an open measured phase ends with its last step."""
        if self.phase is StepPhase.MEASURED and self.wall_s is None:
            self.leave()
        self.is_open = False
        self.recorder.close()

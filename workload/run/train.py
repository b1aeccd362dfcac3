"""A training run, top to bottom: prepare, open the bundle, measure the ceilings, warm up, measure, write."""

import logging
import math
import os
import re
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from itertools import repeat
from pathlib import Path
from typing import Any

import torch
from torch import nn

from workload.contract import bundle, verdict
from workload.contract.bundle import Status
from workload.contract.environment_record import Environment
from workload.contract.errors import OutOfDeviceMemoryError, RooflaunchError, RunFailedError
from workload.contract.fields import from_facts
from workload.contract.interrupt import asked, check, undisturbed
from workload.contract.record import (
    CeilingsRecord,
    ComplexityRecord,
    JobPlace,
    Memory,
    Record,
    Repeat,
    SkippedSteps,
    Spec,
    Timing,
)
from workload.contract.spec import Context, Device, KeptCeilings, Precision, Resolved, RunSpec, options
from workload.contract.text import counted, of_cpus, percent, seconds, si
from workload.environment import device, resource_errors
from workload.environment.collect import collect
from workload.log import Progress
from workload.measure import ceiling_cache, ceilings, timing
from workload.measure.clock import Clock, clock_for
from workload.measure.recorder import Recorder, StepPhase, loss_reader_for
from workload.measure.settle import settle, thermometer_of
from workload.measure.telemetry import Telemetry
from workload.measure.timing import CpuMeter, Timeline
from workload.model import models
from workload.profile.status import before_the_pass
from workload.run.unfinished import status_of
from workload.steps import complexity, data
from workload.steps.training_step import TrainingStep

LOGGER = logging.getLogger("workload")
# Error text by which `torch.use_deterministic_algorithms` refuses an operation, with the name of its kernel.
NOT_DETERMINISTIC = re.compile(r"(\w+) does not have a deterministic implementation")


@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """A run that is ready to start: all mistakes of the user have been found, and nothing has been written."""

    spec: RunSpec
    context: Context
    place: str
    origin: dict[str, str]
    source: data.DataSource
    model: nn.Module
    complexity: complexity.Complexity
    notes: list[str]

    def run_id(self, started_at: datetime) -> str:
        """New name for this run."""
        assert self.spec.batch_size is not None
        return bundle.make_run_id(
            now=started_at,
            place=self.place,
            model=self.spec.model,
            batch_size=self.spec.batch_size,
            precision=self.spec.precision,
        )


def prepare(resolved: Resolved, context: Context) -> TrainingJob:
    """Choose the device, open the data, build the model and count its FLOP. Raises `UsageError` or `ToolError`."""
    models.require(resolved.spec.model)
    cpus = device.usable_cpus()
    chosen = device.choose(resolved.spec.device)
    spec = resolved.spec.filled(chosen, cpus=max(1, int(cpus))).checked()
    passed_over = device.passed_over(resolved.spec.device, chosen)
    for note in passed_over:
        LOGGER.warning("note       %s", note)
    notes = [*passed_over, *device.prepare(spec, cpus=cpus)]
    source = data.open_source(spec)
    assert spec.image_size is not None
    assert spec.batch_size is not None
    counted = complexity.count(
        spec.model,
        num_classes=source.classes,
        image_size=spec.image_size,
        batch_size=spec.batch_size,
        precision=spec.precision,
        optimizer=spec.optimizer,
        grad_accumulation=spec.grad_accumulation,
        device=spec.device,
        with_fvcore=True,
    )
    return TrainingJob(
        spec=spec,
        context=context,
        place=context.place or f"local-{spec.device}",
        origin={option.name: "default" for option in options()} | dict(context.spec_origin or resolved.origin),
        source=source,
        model=models.build(spec.model, num_classes=source.classes, image_size=spec.image_size),
        complexity=counted,
        notes=notes,
    )


@dataclass(kw_only=True)
class Draft:
    """Record of an unfinished run, replaced whenever more is known."""

    record: Record

    def set(self, **sections: Any) -> None:
        """Replace sections of the record."""
        self.record = replace(self.record, **sections)

    def set_timing(self, **figures: Any) -> None:
        """Replace figures of the record's timing."""
        self.set(timing=replace(self.record.timing, **figures))


def execute(job: TrainingJob, folder: Path, timeline: Timeline) -> Record:
    """Run the job and leave a sealed bundle in `folder`, even if the run fails; return the record.

    Raises the run's error after sealing the bundle. A full disk leaves the bundle incomplete and raises `OSError`.
    """
    draft = Draft(record=_first_record(job, folder.name, timeline))
    bundle.write_record(folder, draft.record)
    broken: Exception | None = None
    try:
        _measure(job, folder, draft, timeline)
        draft.set(status=Status.COMPLETED)
    except Exception as error:
        if isinstance(error, OSError) and bundle.is_write_failure(error):
            raise
        # Every other error is recorded, and raised again below.
        broken = asked() or explain(error, job.spec)
        draft.set(status=status_of(broken), error=str(broken) or type(broken).__name__)
        LOGGER.debug("%s", "".join(traceback.format_exception(error)))
    with undisturbed():
        _close_record(job, draft, timeline)
        bundle.write_record(folder, draft.record)
        bundle.seal(folder)
    if broken:
        raise broken
    return draft.record


def _first_record(job: TrainingJob, run_id: str, timeline: Timeline) -> Record:
    facts = collect(device=job.spec.device, dataset_path=job.source.path, outside=job.context.outside)
    where = {
        "place": job.place,
        "backend": job.context.backend,
        "runtime": job.context.runtime,
        "runtime_reason": job.context.runtime_reason,
    }
    return Record(
        run_id=run_id,
        status=Status.RUNNING,
        repeat=Repeat(index=job.context.repeat, of=job.context.repeats),
        job=JobPlace.of(job.context.job),
        run_key=job.context.run_key or None,
        spec=Spec.of(job.spec),
        spec_origin=job.origin,
        environment=from_facts(Environment, where | facts),
        timing=Timing(started_at=timeline.started_at.isoformat()),
        complexity=ComplexityRecord(**asdict(job.complexity)),
        memory=Memory(),
        profile=before_the_pass(job.spec.profile, job.context),
        notes=job.notes,
    )


def _measure(job: TrainingJob, folder: Path, draft: Draft, timeline: Timeline) -> None:
    path = folder / bundle.TELEMETRY
    with Telemetry(path, device=job.spec.device, origin_s=timeline.started_s) as telemetry:
        context = job.context
        thermometer = thermometer_of(job.spec.device) if context.settles else None
        # Read before the ceilings, which load the device: at this time the first run of a task finds the temperature
        # from before the task.
        target_c = thermometer() if thermometer and context.settle_to_c is None else context.settle_to_c
        if job.spec.ceilings:
            timeline.enter("ceilings")
            kept = KeptCeilings.NONE if job.spec.fresh_ceilings else KeptCeilings(context.kept_ceilings)
            draft.set(ceilings=_measure_ceilings(job.spec, folder.parent, kept))
        check()
        if thermometer:
            timeline.enter("settle")
            draft.set(settling=settle(thermometer, target_c, report=LOGGER.info))
        timeline.enter("setup")
        device.reset_peak_memory(job.spec.device)
        _train(job, TrainingStep(job.model, job.spec), folder, draft, timeline)
        share = verdict.share_of_ceiling(draft.record)
        if share is not None and share > verdict.ABOVE_CEILING:
            timeline.enter("ceilings_again")
            _measure_ceilings_again(job, folder, draft, share)
        timeline.enter("finish")
    if telemetry.error:
        raise telemetry.error


def _measure_ceilings(spec: RunSpec, output: Path, kept: KeptCeilings) -> CeilingsRecord:
    measured, age_s = ceiling_cache.cached_or_measure(
        output,
        device=spec.device,
        precisions=(spec.precision,),
        sample=ceilings.sensors_of(spec.device),
        progress=LOGGER.info,
        fresh=kept is KeptCeilings.NONE,
        max_age_s=math.inf if kept is KeptCeilings.BLOCK else ceiling_cache.MAX_AGE_S,
    )
    if age_s:
        LOGGER.info("this machine's ceilings of %s ago are used again (not with --fresh-ceilings)", seconds(age_s, 2))
    return from_facts(CeilingsRecord, measured.to_json() | {"age_s": age_s})


def _measure_ceilings_again(job: TrainingJob, folder: Path, draft: Draft, share: float) -> None:
    """Measure the ceilings after a run that exceeded them, which proves them wrong; later runs use the new ones."""
    spec = job.spec
    was = verdict.compute_roof_per_s(draft.record) or 0.0
    above = f"the run reached {percent(share)} of the {spec.precision} ceiling"
    LOGGER.info("%s: this machine's ceilings are measured again", above)
    # Read before the probes, whose allocations are not part of the run's memory.
    draft.set(memory=device.memory(spec.device))
    if spec.device is Device.CUDA:
        torch.cuda.empty_cache()
    draft.set(ceilings=_measure_ceilings(spec, folder.parent, KeptCeilings.NONE))
    job.notes.append(f"{above} measured before it, {si(was, 'FLOP/s')}: the ceilings were measured again after it")


def _train(job: TrainingJob, step: TrainingStep, folder: Path, draft: Draft, timeline: Timeline) -> None:
    spec, clock = job.spec, clock_for(job.spec.device)
    assert spec.warmup is not None
    assert spec.iterations is not None
    recorder = Recorder(folder, clock, loss_reader_for(spec.device), started_s=timeline.started_s)
    phases = ((StepPhase.WARMUP, spec.warmup, 0.0), (StepPhase.MEASURED, spec.iterations, spec.min_seconds or 0.0))
    with closing(job.source.batches()) as batches, recorder:
        for phase, count, least_s in phases:
            skipped_before = step.skipped
            try:
                with _region(phase, count, recorder, clock, spec, draft, timeline) as progress:
                    for _ in at_least(count, least_s, progress):
                        check()
                        recorder.begin(phase, spec.images_per_step)
                        recorder.end(step(batches, recorder.mark))
            finally:
                if spec.precision is Precision.AMP:
                    counted_before = draft.record.timing.skipped_steps or SkippedSteps()
                    draft.set_timing(
                        skipped_steps=replace(counted_before, **{phase.value: step.skipped - skipped_before})
                    )


def at_least(
    count: int, least_s: float, progress: Progress, now: Callable[[], float] = time.perf_counter
) -> Iterator[None]:
    """Yield for `count` steps, then for more until `least_s` seconds have passed since the first. Logs added steps."""
    began_s = now()
    yield from repeat(None, count)
    taken_s, taken = now() - began_s, count
    if taken_s >= least_s:
        return
    LOGGER.info("measured   %s took less than %g s: more are added (--min-seconds)", counted(count, "step"), least_s)
    while (taken_s := now() - began_s) < least_s:
        progress.expect(max(taken + 1, round(taken * least_s / taken_s)))
        yield
        taken += 1
    progress.expect(taken)


@contextmanager
def _region(
    phase: StepPhase,
    count: int,
    recorder: Recorder,
    clock: Clock,
    spec: RunSpec,
    draft: Draft,
    timeline: Timeline,
) -> Iterator[Progress]:
    """Context manager for the steps of one phase; synchronises the device at both ends and keeps the measurements.

    The measured region of a run that fails ends with its last complete step.
    """
    totals = recorder.totals[phase]
    progress = Progress(phase, count, images_per_step=spec.images_per_step)
    recorder.on_flush = lambda: progress.update(len(totals.step_s))
    clock.synchronize()
    meter = CpuMeter()
    timeline.enter(phase)
    came_to_its_end = False
    try:
        yield progress
        came_to_its_end = True
    finally:
        # A device that has failed can be neither waited for nor read; the rows so far are in the file.
        with suppress(RuntimeError):
            clock.synchronize()
            wall_s = timeline.elapsed_s() - timeline.began_s[phase]
            cpus = meter.share()
            recorder.on_flush = lambda: None
            recorder.drain()
            if not came_to_its_end and totals.step_s:
                # An unfinished step has no row and no images, so its time is left out too.
                wall_s = totals.ended_at_s - timeline.began_s[phase]
            progress.finish(len(totals.step_s))
            if phase is StepPhase.MEASURED:
                draft.set(timing=timing.summarize(draft.record.timing, totals, wall_s=wall_s, cpus=cpus))


def _close_record(job: TrainingJob, draft: Draft, timeline: Timeline) -> None:
    began_s = timeline.began_s
    setup_end_s = began_s.get(StepPhase.WARMUP, timeline.elapsed_s())
    # Ceilings and cooling down are not part of a run's own set-up time.
    ceilings_began_s = began_s.get("ceilings", began_s.get("settle"))
    ceilings_s = 0.0 if ceilings_began_s is None else began_s.get("setup", setup_end_s) - ceilings_began_s
    draft.set_timing(setup_s=setup_end_s - ceilings_s, phases={**began_s, "end": timeline.elapsed_s()})
    with suppress(RuntimeError):
        if draft.record.memory == Memory():
            draft.set(memory=device.memory(job.spec.device))
    draft.set(usage=timing.process_usage(timeline.started_s, timeline.started_s + timeline.elapsed_s()))
    if (roof := verdict.compute_roof_per_s(draft.record)) and draft.record.complexity:
        theoretical_s = job.complexity.train_flop_per_step / roof
        draft.set(complexity=replace(draft.record.complexity, theoretical_step_s=theoretical_s))
    draft.set(bound=verdict.from_record(draft.record))
    draft.set(notes=[*job.notes, *_skipped(draft.record), *_idle_cpus(draft.record)])


def _skipped(run: Record) -> list[str]:
    """Note on measured steps in which AMP left out the optimizer."""
    skipped, step_s = run.timing.skipped_steps, run.timing.step_s
    if not skipped or not skipped.measured or not step_s:
        return []
    of = f"AMP skipped {skipped.measured} of {counted(int(step_s.n or 0), 'measured step')}"
    note = f"{of}: a gradient overflowed in fp16, and the optimizer was left out"
    LOGGER.warning("note       %s", note)
    return [note]


def _idle_cpus(run: Record) -> list[str]:
    """Note if a CPU run kept few of its threads busy and the verdict does not explain it."""
    if not verdict.lacks_cpus(run) or verdict.competition(run):
        return []
    used = f"the run got {of_cpus(run.timing.cpus_used or 0.0, run.environment.device.threads or 0)}"
    if run.timing.cpus_waited is None:
        load = f"; load average {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
        return [f"{used}: other work competed, or one thread did most{load}"]
    return [f"{used} and did not wait for more: one thread did most of the work"]


def explain(error: Exception, spec: RunSpec) -> Exception:
    """Error that a user can act on; any other error is a bug of ours and returned unchanged."""
    if isinstance(error, RooflaunchError):
        return error
    if device.is_out_of_memory(error):
        what = f"{spec.model} at batch size {spec.batch_size} in {spec.precision}"
        return OutOfDeviceMemoryError(
            f"{what} does not fit into the {spec.device}'s memory",
            hint=f"--batch-size {max(1, (spec.batch_size or 1) // 2)}, or --grad-accumulation for the same step",
        )
    if resource_errors.is_of_threads(error) and (refused := resource_errors.explain(error, "in a training step")):
        refused.__cause__ = error
        return refused
    if spec.deterministic and (operation := NOT_DETERMINISTIC.search(str(error))):
        return RunFailedError(
            f"{spec.model} uses {operation[1]}, of which torch {torch.__version__} has no deterministic version",
            hint="leave --deterministic out, or take a model without that operation; alexnet and vgg have adaptive"
            " pooling, resnets and mobilenets do without on a GPU",
        )
    # OSError: for example, no file descriptor is left for a data worker.
    if not isinstance(error, RuntimeError | OSError):
        return error
    first_line = str(error).strip().split("\n", 1)[0]
    explained = RunFailedError(f"the training step failed: {first_line}", hint=_cure(first_line, spec))
    explained.__cause__ = error
    return explained


def _cure(message: str, spec: RunSpec) -> str:
    if "DataLoader worker" in message:
        return "--workers 0, or more shared memory (docker run --shm-size=2g)"
    if spec.compile:
        return "leave --compile out; on a CPU it needs a C++ compiler"
    return "log.txt in the bundle has the whole traceback"

"""A training run, top to bottom: prepare, open the bundle, measure the ceilings, warm up, measure, write."""

import logging
import math
import os
import re
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import repeat
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn

from workload.contract import bundle, ranks, verdict
from workload.contract.context import Context, KeptCeilings
from workload.contract.errors import OutOfDeviceMemoryError, RooflaunchError, RunFailedError
from workload.contract.fields import from_facts
from workload.contract.interrupt import interruption_deferred, pending_interruption, raise_if_interrupted
from workload.contract.record import CeilingsRecord, Record, SkippedSteps, Spec, Status
from workload.contract.spec import Device, Precision, Resolved, RunSpec, options
from workload.contract.text import counted, cpu_share, percent, seconds, si
from workload.environment import device, resource_errors
from workload.environment.cgroup import usable_cpus
from workload.environment.collect import collect
from workload.environment.host_sections import SectionsBeside
from workload.log import Progress
from workload.measure import ceiling_cache, ceilings
from workload.measure.clock import clock_for
from workload.measure.collectives import Collectives
from workload.measure.recorder import StepPhase, loss_reader_for
from workload.measure.settle import settle, thermometer_of
from workload.measure.telemetry import Telemetry
from workload.measure.timing import Timeline
from workload.model import models
from workload.run.first_record import first_record
from workload.run.region import Region
from workload.run.run_record import RunRecord
from workload.run.unfinished import status_of
from workload.steps import complexity, complexity_cache, data
from workload.steps.training_step import TrainingStep

LOGGER = logging.getLogger("workload")
# Longest wait for another rank: all wait while rank 0 measures the ceilings of the machine.
GROUP_LIMIT = timedelta(minutes=30)
# Error text by which `torch.use_deterministic_algorithms` refuses an operation, with the name of its kernel.
NOT_DETERMINISTIC = re.compile(r"(\w+) does not have a deterministic implementation")


@dataclass(frozen=True, kw_only=True)
class Group:
    """Position of this process among the ranks. `device`: the kind of device of all ranks."""

    rank: int
    size: int
    device: Device

    @classmethod
    def join(cls, device: Device) -> "Group":
        """Join the group that torchrun's variables describe; wait for the other ranks."""
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        # Without it, NCCL guesses the GPU and warns. Each rank has made its own GPU the current one.
        own = torch.device("cuda", torch.cuda.current_device()) if device is Device.CUDA else None
        distributed.init_process_group(ranks.backend_of(device), timeout=GROUP_LIMIT, device_id=own)
        return cls(rank=rank, size=size, device=device)

    def shared(self, text: str) -> str:
        """Send the `text` of rank 0 to all ranks; returns it in each rank."""
        # Not as an object, which torch would unpickle: others may reach the ports of gloo.
        content = os.fsencode(text)
        size = torch.tensor(len(content), device=self.device.value)
        distributed.broadcast(size, src=0)
        letters = torch.tensor([*content] if self.rank == 0 else [0] * int(size), device=self.device.value)
        distributed.broadcast(letters, src=0)
        return os.fsdecode(bytes(letters.tolist()))

    def more_steps(self, taken: int, taken_s: float, least_s: float) -> int:
        """Number of steps that are missing until `least_s` seconds have passed, as rank 0 sees it.

        `taken`: steps so far, in `taken_s` seconds. Every rank gets the same number.
        """
        wanted = 0 if taken_s >= least_s else max(1, math.ceil(taken * (least_s - taken_s) / taken_s))
        shared = torch.tensor(wanted, device=self.device.value)
        distributed.broadcast(shared, src=0)
        return int(shared)


@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """A run that is ready to start: all mistakes of the user have been found, and nothing has been written.

    `counted`: arguments of `complexity.count` that gave `complexity`.
    """

    spec: RunSpec
    context: Context
    place: str
    origin: dict[str, str]
    source: data.DataSource
    model: nn.Module
    complexity: complexity.Complexity
    counted: Mapping[str, Any]
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


def prepare(resolved: Resolved, context: Context, output: Path, rank: int = 0) -> TrainingJob:
    """Choose the device, open the data, build the model and count its FLOP. Raises `UsageError` or `ToolError`.

    `output`: folder of the bundles, which may have the FLOP of an earlier run. `rank`: number of this process, if
    several train together; each gets its share of the CPUs.
    """
    models.require(resolved.spec.model)
    cpus = usable_cpus() / max(resolved.spec.devices, context.cpu_shares)
    chosen = device.choose(resolved.spec.device)
    if chosen is Device.CUDA:
        # Counting the FLOP takes memory of the current GPU. Every rank would otherwise take memory of the first GPU.
        torch.cuda.set_device(rank)
    spec = resolved.spec.filled(chosen, cpus=max(1, int(cpus))).checked()
    gpu_notes = device.unused_gpu_note(resolved.spec.device, chosen)
    for note in gpu_notes:
        LOGGER.warning("note       %s", note)
    notes = [*gpu_notes, *device.prepare(spec, cpus=cpus)]
    source = data.open_source(spec, rank)
    assert spec.image_size is not None
    assert spec.batch_size is not None
    counted: dict[str, Any] = {
        "model": spec.model,
        "num_classes": source.classes,
        "image_size": spec.image_size,
        "batch_size": spec.batch_size,
        "precision": spec.precision,
        "optimizer": spec.optimizer,
        "grad_accumulation": spec.grad_accumulation,
        "device": spec.device,
        "with_fvcore": True,
    }
    return TrainingJob(
        spec=spec,
        context=context,
        place=context.place_on(spec.device),
        origin={option.name: "default" for option in options()} | dict(context.spec_origin or resolved.origin),
        source=source,
        model=models.build(spec.model, num_classes=source.classes, image_size=spec.image_size),
        complexity=complexity_cache.read(output, counted) or complexity.count(**counted),
        counted=counted,
        notes=notes,
    )


def execute(
    job: TrainingJob, folder: Path, timeline: Timeline, beside: SectionsBeside | None = None, group: Group | None = None
) -> Record:
    """Run the job and leave a sealed bundle in `folder`, even if the run fails; return the record.

    Raises the run's error after sealing the bundle. A full disk leaves the bundle incomplete and raises `OSError`.
    `beside`: collects facts of the environment in a thread, which ends before the first step. `group`: set in rank 0
    of several ranks. If such a run fails, the process that started the ranks knows which rank failed, and seals the
    bundle.
    """
    run = RunRecord(folder, _first_record(job, folder.name, timeline, beside), timeline)
    complexity_cache.write(folder.parent, job.counted, job.complexity)
    failure: Exception | None = None
    try:
        _measure(job, run, timeline, group)
        if group:
            distributed.barrier()
            measured_s = run.record.timing.measured_s
            run.set(ranks=ranks.summary(folder, device=job.spec.device, measured_s=measured_s))
        run.set(status=Status.COMPLETED)
    except Exception as error:
        if isinstance(error, OSError) and bundle.is_write_failure(error):
            raise
        # Every error but a failed write is recorded, and raised again below.
        failure = pending_interruption() or explain(error, job.spec)
        run.set(
            status=status_of(failure),
            error=str(failure) or type(failure).__name__,
            hint=getattr(failure, "hint", None),
        )
        LOGGER.debug("%s", "".join(traceback.format_exception(error)))
    with interruption_deferred():
        _finish(job, run, timeline)
        if failure and group:
            run.write()
        else:
            run.seal()
    if failure:
        raise failure
    return run.record


def _first_record(job: TrainingJob, run_id: str, timeline: Timeline, beside: SectionsBeside | None) -> Record:
    facts = collect(
        device=job.spec.device,
        dataset_path=job.source.path,
        outside=job.context.outside,
        known=beside.wait() if beside else None,
    )
    return first_record(
        run_id,
        job.context,
        place=job.place,
        spec=Spec.from_run_spec(job.spec),
        spec_origin=job.origin,
        facts=facts,
        started_at=timeline.started_at.isoformat(),
        complexity=job.complexity.record(),
        notes=job.notes,
    )


def follow(job: TrainingJob, folder: Path, timeline: Timeline, group: Group) -> None:
    """Train beside rank 0, which writes the bundle `folder`; write only this rank's own files."""
    _train(job, folder, None, timeline, group)
    distributed.barrier()


def _measure(job: TrainingJob, run: RunRecord, timeline: Timeline, group: Group | None) -> None:
    path = run.folder / bundle.TELEMETRY
    with Telemetry(path, device=job.spec.device, origin_s=timeline.started_s) as telemetry:
        context = job.context
        thermometer = thermometer_of(job.spec.device) if context.settles else None
        # Read before the ceilings, which load the device: the first run of a task reads the temperature from before the
        # task.
        target_c = thermometer() if thermometer and context.settle_to_c is None else context.settle_to_c
        if job.spec.ceilings:
            timeline.enter("ceilings")
            kept = KeptCeilings.NONE if job.spec.fresh_ceilings else KeptCeilings(context.kept_ceilings)
            run.set(ceilings=_measure_ceilings(job.spec, run.folder.parent, kept))
        raise_if_interrupted()
        if thermometer:
            timeline.enter("settle")
            run.set(settling=settle(thermometer, target_c, report=LOGGER.info))
        timeline.enter("setup")
        device.reset_peak_memory(job.spec.device)
        _train(job, run.folder, run, timeline, group)
        share = verdict.share_of_ceiling(run.record)
        if share is not None and share > verdict.ABOVE_CEILING:
            timeline.enter("ceilings_again")
            _measure_ceilings_again(job, run, share)
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


def _measure_ceilings_again(job: TrainingJob, run: RunRecord, share: float) -> None:
    """Measure the ceilings after a run that exceeded them, which proves them wrong; later runs use the new ones."""
    spec = job.spec
    was = verdict.compute_roof_per_s(run.record) or 0.0
    above = f"the run reached {percent(share)} of the {spec.precision} ceiling"
    LOGGER.info("%s: this machine's ceilings are measured again", above)
    # Read before the probes, whose allocations are not part of the run's memory.
    run.set(memory=device.memory(spec.device))
    if spec.device is Device.CUDA:
        torch.cuda.empty_cache()
    run.set(ceilings=_measure_ceilings(spec, run.folder.parent, KeptCeilings.NONE))
    job.notes.append(
        f"{above} measured before the run, {si(was, 'FLOP/s')}: the ceilings were measured again after the run"
    )


def _train(job: TrainingJob, folder: Path, run: RunRecord | None, timeline: Timeline, group: Group | None) -> None:
    """Warm up and measure. `folder`: the bundle's; `run`: its record, None in a rank that does not write it."""
    spec = job.spec
    assert spec.warmup is not None
    assert spec.iterations is not None
    phases = ((StepPhase.WARMUP, spec.warmup, 0.0), (StepPhase.MEASURED, spec.iterations, spec.min_seconds or 0.0))
    with ExitStack() as stack:
        own = ranks.own_folder(folder, group.rank) if group else folder
        collectives = stack.enter_context(Collectives(own, clock_for(spec.device))) if group else None
        step = TrainingStep(job.model, spec, collectives)
        losses = loss_reader_for(spec.device)
        place = folder if run else own
        region = Region(place, spec.device, timeline, losses, has_telemetry=True, collectives=collectives)
        batches = stack.enter_context(closing(job.source.batches()))
        stack.enter_context(closing(region))
        for phase, count, least_s in phases:
            skipped_before = step.skipped
            try:
                with _phase(region, phase, count, spec) as progress:
                    for _ in at_least(count, least_s, progress, group):
                        raise_if_interrupted()
                        region.recorder.begin(phase, spec.images_per_step)
                        region.recorder.end(step(batches, region.recorder.mark))
            finally:
                if run:
                    _note_timing(run, region, phase, step.skipped - skipped_before)


def _note_timing(run: RunRecord, region: Region, phase: StepPhase, skipped: int) -> None:
    if region.measured:
        run.set(timing=region.measured.summarize(run.record.timing))
    if run.record.spec.precision == Precision.AMP:
        known = run.record.timing.skipped_steps or SkippedSteps()
        run.set_timing(skipped_steps=replace(known, **{phase.value: skipped}))


@contextmanager
def _phase(region: Region, phase: StepPhase, count: int, spec: RunSpec) -> Iterator[Progress]:
    """Context manager for the steps of one phase. A phase that fails ends with its last complete step."""
    progress = Progress(phase, count, images_per_step=spec.images_per_step * spec.devices)
    region.enter(phase)
    region.recorder.on_flush = lambda: progress.update(len(region.totals.step_s))
    is_complete = False
    try:
        yield progress
        is_complete = True
    finally:
        if region.leave(ends_now=is_complete):
            progress.finish(len(region.totals.step_s))


def at_least(
    count: int,
    least_s: float,
    progress: Progress,
    group: Group | None = None,
    *,
    now: Callable[[], float] = time.perf_counter,
) -> Iterator[None]:
    """Yield once per step: `count` times, then until `least_s` seconds have passed since the first step began.

    Adding steps is logged, and raises the total of `progress`. `group`: its ranks take the same number of steps.
    """
    began_s = now()
    yield from repeat(None, count)
    taken_s, taken = now() - began_s, count
    if group and least_s:
        # The host has only queued the steps.
        clock_for(group.device).synchronize()
        while more := group.more_steps(taken, now() - began_s, least_s):
            progress.expect(taken + more)
            yield from repeat(None, more)
            taken += more
        return
    if taken_s >= least_s:
        return
    LOGGER.info("measured   %s took less than %g s: adding more steps (--min-seconds)", counted(count, "step"), least_s)
    while (taken_s := now() - began_s) < least_s:
        progress.expect(max(taken + 1, round(taken * least_s / taken_s)))
        yield
        taken += 1
    progress.expect(taken)


def _finish(job: TrainingJob, run: RunRecord, timeline: Timeline) -> None:
    run.set_timing(setup_s=timeline.setup_s(), phases=timeline.phases(), interpreter_s=timeline.interpreter_s)
    run.set_process(lambda: device.memory(job.spec.device))
    run.judge()
    run.set(notes=[*job.notes, *_skipped(run.record), *_idle_cpus(run.record), *verdict.faults_note(run.record)])


def _skipped(run: Record) -> list[str]:
    """Note on measured steps in which AMP skipped the optimizer."""
    skipped, step_s = run.timing.skipped_steps, run.timing.step_s
    if not skipped or not skipped.measured or not step_s:
        return []
    share = f"{skipped.measured} of {counted(int(step_s.n or 0), 'measured step')}"
    note = f"AMP skipped {share}: a gradient overflowed in fp16, and the optimizer was skipped"
    LOGGER.warning("note       %s", note)
    return [note]


def _idle_cpus(run: Record) -> list[str]:
    """Note if a CPU run kept few of its threads busy and the verdict does not explain it."""
    if not verdict.lacks_cpus(run) or verdict.competition(run):
        return []
    used = f"the run got {cpu_share(run.timing.cpus_used or 0.0, run.environment.device.threads or 0)}"
    if run.timing.cpus_waited is None:
        load = f"; load average {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
        return [f"{used}: other processes used the CPUs, or one thread did most of the work{load}"]
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
    if resource_errors.is_thread_shortage(error) and (refused := resource_errors.explain(error, "in a training step")):
        refused.__cause__ = error
        return refused
    if spec.deterministic and (operation := NOT_DETERMINISTIC.search(str(error))):
        return RunFailedError(
            f"{spec.model} uses {operation[1]}, but torch {torch.__version__} has no deterministic version of it",
            hint="leave --deterministic out, or use a model without that operation; alexnet and vgg use adaptive "
            "pooling, resnets and mobilenets do not on a GPU",
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

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
from datetime import timedelta
from itertools import repeat
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn

from workload import log
from workload.contract import allocations, bundle, ranks, verdict
from workload.contract.errors import (
    OutOfDeviceMemoryError,
    RooflaunchError,
    RunFailedError,
    explain_shortage,
    is_thread_shortage,
)
from workload.contract.operating_system import replace_text
from workload.contract.process import interruption_deferred, pending_interruption, raise_if_interrupted
from workload.contract.record import Record, SkippedSteps, Spec, Status
from workload.contract.spec import Device, Precision, Resolved, RunSpec, options
from workload.contract.text import counted, cpu_share
from workload.contract.trainer import Context
from workload.environment import device
from workload.environment.collect import SectionsBeside, collect
from workload.environment.host import usable_cpus
from workload.environment.machine import HostSystem
from workload.log import Progress
from workload.measure import link_rates
from workload.measure.clock import Collectives, clock_for
from workload.measure.recorder import StepPhase, loss_reader_for
from workload.measure.timing import Timeline
from workload.model import models
from workload.run import machines
from workload.run.life import Life, Region
from workload.run.unfinished import first_record, status_of
from workload.steps import complexity, training_step
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
    origin: dict[str, str]
    source: training_step.DataSource
    model: nn.Module
    complexity: complexity.Complexity
    counted: Mapping[str, Any]
    notes: list[str]


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
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", rank)))
    spec = resolved.spec.filled(chosen, cpus=max(1, int(cpus))).checked()
    gpu_notes = device.unused_gpu_note(resolved.spec.device, chosen)
    for note in gpu_notes:
        LOGGER.warning("note       %s", note)
    notes = [*gpu_notes, *device.prepare(spec, cpus=cpus)]
    source = training_step.open_source(spec, rank)
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
        origin={option.name: "default" for option in options()} | dict(context.spec_origin or resolved.origin),
        source=source,
        model=models.build(spec.model, num_classes=source.classes, image_size=spec.image_size),
        complexity=complexity.read_kept(output, counted) or complexity.count(**counted),
        counted=counted,
        notes=notes,
    )


def run(
    resolved: Resolved,
    context: Context,
    output: Path,
    timeline: Timeline,
    *,
    beside: SectionsBeside,
    announce: Callable[[Path], None],
    rank: int | None = None,
) -> None:
    """Train once and leave a sealed bundle, even if the run fails; raises the run's error after sealing the bundle.

    `beside`: collects facts of the environment in a thread, which ends before the first step. `announce` receives the
    bundle's folder. `rank`: number of this process, if several train together. If such a run fails, the process that
    started the ranks knows which rank failed, and seals the bundle.
    """
    timeline.enter("prepare")
    job = prepare(resolved, context, output, rank or 0)
    raise_if_interrupted()
    timeline.enter("environment")
    group = None if rank is None else Group.join(job.spec.device)
    if group and group.rank:
        _follow(job, machines.folder_here(Path(group.shared(""))), timeline, group)
    else:
        spec = job.spec
        run_id = bundle.make_run_id(
            now=timeline.started_at,
            place=context.place_on(spec.device),
            model=spec.model,
            batch_size=spec.batch_size or 1,
            precision=spec.precision,
        )
        folder = bundle.create(output, run_id)
        announce(folder)
        if group:
            group.shared(str(folder.absolute()))
        with bundle.guarded_writes(folder):
            _execute(job, folder, timeline, beside, group)
    if group:
        distributed.destroy_process_group()


def _execute(job: TrainingJob, folder: Path, timeline: Timeline, beside: SectionsBeside, group: Group | None) -> None:
    """Train, and write the bundle `folder`. A full disk leaves the bundle incomplete and raises `OSError`."""
    facts = collect(
        device=device.device_facts(HostSystem(), job.spec.device),
        dataset_path=job.source.path,
        outside=job.context.outside,
        known=beside.wait(),
    )
    first = first_record(
        folder.name,
        job.context,
        spec=replace(Spec.from_run_spec(job.spec), dataset_images=job.source.images),
        spec_origin=job.origin,
        facts=facts,
        started_at=timeline.started_at.isoformat(),
        complexity=job.complexity.record(),
        notes=job.notes,
    )
    first = replace(first, step_memory=job.complexity.memory)
    replace_text(folder / allocations.FILE, job.complexity.allocations)
    failure: Exception | None = None
    with closing(Life(folder, first, timeline, job.context)) as life:
        complexity.keep(folder.parent, job.counted, job.complexity)
        try:
            life.prepare()
            device.reset_peak_memory(job.spec.device)
            _train(job, folder, life, timeline, group)
            life.measure_again()
            timeline.enter("finish")
            if group:
                machines.write_hosts(folder)
                distributed.barrier()
                measured_s = life.record.timing.measured_s
                life.set(ranks=ranks.summary(folder, device=job.spec.device, measured_s=measured_s))
        except Exception as error:
            if isinstance(error, OSError) and bundle.is_write_failure(error):
                raise
            # Every error but a failed write is recorded, and raised again below.
            failure = pending_interruption() or explain(error, job.spec)
            LOGGER.debug("%s", "".join(traceback.format_exception(error)))
        with interruption_deferred():
            life.notes += [*_skipped(life.record), *_idle_cpus(life.record), *ranks.clock_notes(life.record.ranks)]
            status = status_of(failure) if failure else Status.COMPLETED
            what = (str(failure) or type(failure).__name__) if failure else None
            life.set(hint=getattr(failure, "hint", None))
            life.finish(status, what, seals=not (failure and group))
    if failure:
        raise failure


def _follow(job: TrainingJob, folder: Path, timeline: Timeline, group: Group) -> None:
    """Train beside rank 0, which writes the bundle `folder`; write only this rank's own files."""
    with log.to_file(ranks.own_folder(folder, group.rank) / bundle.LOG):
        try:
            _train(job, folder, None, timeline, group)
            machines.deliver()
            distributed.barrier()
        except Exception as error:
            raise explain(error, job.spec) from error


def _train(job: TrainingJob, folder: Path, life: Life | None, timeline: Timeline, group: Group | None) -> None:
    """Warm up and measure. `folder`: the bundle's; `life`: None in a rank that does not write the record."""
    spec = job.spec
    assert spec.warmup is not None
    assert spec.iterations is not None
    phases = ((StepPhase.WARMUP, spec.warmup, 0.0), (StepPhase.MEASURED, spec.iterations, spec.min_seconds or 0.0))
    with ExitStack() as stack:
        own = ranks.own_folder(folder, group.rank) if group else folder
        if group and spec.ceilings:
            rates = link_rates.measure(spec.device, ranks.backend_of(spec.device))
            if life:
                life.set_links(rates)
        collectives = stack.enter_context(Collectives(own, clock_for(spec.device))) if group else None
        step = TrainingStep(job.model, spec, collectives)
        region = Region(
            folder if life else own, spec.device, timeline, loss_reader_for(spec.device), collectives=collectives
        )
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
                if life:
                    life.take(region)
                if life and spec.precision == Precision.AMP:
                    known = life.record.timing.skipped_steps or SkippedSteps()
                    life.set_timing(skipped_steps=replace(known, **{phase.value: step.skipped - skipped_before}))


@contextmanager
def _phase(region: Region, phase: StepPhase, count: int, spec: RunSpec) -> Iterator[Progress]:
    """Context manager for the steps of one phase. A phase that fails ends with its last complete step."""
    progress = Progress(phase, count, images_per_step=spec.images_per_step * spec.ranks)
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
    began_s, taken, more = now(), 0, count
    while more:
        yield from repeat(None, more)
        taken += more
        if not least_s:
            return
        if group:
            # The host has only queued the steps.
            clock_for(group.device).synchronize()
            if more := group.more_steps(taken, now() - began_s, least_s):
                progress.expect(taken + more)
            continue
        passed_s = now() - began_s
        more = int(passed_s < least_s)
        if more and taken == count:
            what = counted(count, "step")
            LOGGER.info("measured   %s took less than %g s: adding more steps (--min-seconds)", what, least_s)
        if more or taken > count:
            progress.expect(max(taken + 1, round(taken * least_s / passed_s)) if more else taken)


def _skipped(run: Record) -> list[str]:
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
    if verdict.has_surplus_threads(run):
        return [f"{used}: it has more threads than CPUs, and they wait for each other"]
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
    if is_thread_shortage(error) and (refused := explain_shortage(error, "in a training step")):
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
    cure = "log.txt in the bundle has the whole traceback"
    if "DataLoader worker" in first_line:
        cure = "--workers 0, or more shared memory (docker run --shm-size=2g)"
    elif spec.compile:
        cure = "leave --compile out; on a CPU it needs a C++ compiler"
    explained = RunFailedError(f"the training step failed: {first_line}", hint=cure)
    explained.__cause__ = error
    return explained

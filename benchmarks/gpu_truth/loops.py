"""Compares the measured loop, with all its instruments, with the same steps without them, in turn on one model."""

import random
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import torch

from workload.contract.spec import RunSpec
from workload.environment import device, host
from workload.log import Progress
from workload.measure.clock import Clock, clock_for
from workload.measure.recorder import Recorder, StepPart, StepPhase, loss_reader_for
from workload.measure.telemetry import Telemetry
from workload.model import models
from workload.steps import training_step
from workload.steps.training_step import TrainingStep

Step = Callable[[Iterator[training_step.Batch], Callable[[StepPart], object]], torch.Tensor]


def ours(step: Step, batches: Iterator[training_step.Batch], spec: RunSpec, clock: Clock, steps: int) -> float:
    """Seconds of a measured region with the instruments of `workload.run.train`."""
    with tempfile.TemporaryDirectory() as name:
        folder, started_s = Path(name), time.perf_counter()
        telemetry = Telemetry(folder / "telemetry.csv", device=spec.device, origin_s=started_s)
        recorder = Recorder(folder, clock, loss_reader_for(spec.device), started_s=started_s)
        with telemetry, closing(recorder):
            progress = Progress("measured", steps, images_per_step=spec.images_per_step)
            recorder.on_flush = lambda: progress.update(len(recorder.totals[StepPhase.MEASURED].step_s))
            clock.synchronize()
            begin_s = time.perf_counter()
            for _ in range(steps):
                recorder.begin(StepPhase.MEASURED, spec.images_per_step)
                recorder.end(step(batches, recorder.mark))
            clock.synchronize()
            return time.perf_counter() - begin_s


def bare(step: TrainingStep, batches: Iterator[training_step.Batch], clock: Clock, steps: int) -> float:
    """Seconds of the same steps without instruments."""
    clock.synchronize()
    begin_s = time.perf_counter()
    for _ in range(steps):
        step(batches, lambda _: None)
    clock.synchronize()
    return time.perf_counter() - begin_s


def ratios(first: Callable[[], float], second: Callable[[], float], *, pairs: int, seed: int = 0) -> list[float]:
    """`pairs` ratios first / second of the seconds that each call returns; the order within a pair is random.

    The calls alternate, so that a drift of the machine affects both.
    """
    order = random.Random(seed)
    found = []
    for _ in range(pairs):
        if order.random() < 0.5:
            numerator, denominator = first(), second()
        else:
            denominator, numerator = second(), first()
        found.append(numerator / denominator)
    return found


def measure(spec: RunSpec, *, pairs: int, steps: int) -> list[float]:
    """Ratios of the time with instruments to the time without, for a filled `spec`."""
    device.prepare(spec, cpus=host.usable_cpus())
    clock = clock_for(spec.device)
    batches = training_step.open_source(spec).batches()
    step = TrainingStep(models.build(spec.model, num_classes=1000, image_size=spec.image_size or 224), spec)
    # Warm up: cuDNN's autotuning and the allocator.
    bare(step, batches, clock, 2 * steps)
    return ratios(
        lambda: ours(step, batches, spec, clock, steps), lambda: bare(step, batches, clock, steps), pairs=pairs
    )

"""Profiled process: trains the same step as the timing run, a few times, and marks the part to be profiled.

A profile pass starts `python -m workload profiled-step` to count kernels, under ncu, or with torch.profiler. The
process writes its answer to a JSON file at the end.
"""

import json
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch.cuda import nvtx

from workload.contract.operating_system import replace_text
from workload.contract.spec import RunSpec
from workload.contract.vocabulary import step_range
from workload.environment import device
from workload.environment.host import usable_cpus
from workload.measure.clock import clock_for
from workload.measure.recorder import StepPart
from workload.model import models
from workload.profile import answers
from workload.profile.command import RETAKES, WARMUP_STEPS, Mode
from workload.profile.supervise import end_with
from workload.steps import data
from workload.steps.data import Batch
from workload.steps.training_step import TrainingStep

T = TypeVar("T")


class _Session:
    """A model, its data and its optimizer, warmed up."""

    def __init__(self, spec: RunSpec, batches: Iterator[Batch], step: TrainingStep) -> None:
        self.spec = spec
        self.clock = clock_for(spec.device)
        self._batches = batches
        self._step = step

    def train(self, steps: int, mark: Callable[[StepPart], object] = lambda _: None) -> None:
        """Train without waiting for the device."""
        for _ in range(steps):
            self._step(self._batches, mark)

    @property
    def skipped(self) -> int:
        """Number of steps so far in which AMP skipped the optimizer."""
        return self._step.skipped

    def without_skips(self, measure: Callable[[], T]) -> T:
        """Return the result of `measure`, which trains; repeat it after more warm-up if AMP skipped one of its steps.

        The last of a few repetitions is returned in any case.
        """
        for _ in range(RETAKES):
            before = self.skipped
            measured = measure()
            if self.skipped == before:
                return measured
            self.train(WARMUP_STEPS)
        return measure()

    def timed_s(self, steps: int) -> float:
        """Train for `steps` steps; return the seconds per step, including the device's time."""
        self.clock.synchronize()
        began_s = time.perf_counter()
        self.train(steps)
        self.clock.synchronize()
        return (time.perf_counter() - began_s) / steps


def run(mode: Mode, spec: RunSpec, report: Path, *, owner: int, warmup_steps: int | None = None) -> None:
    """Profile `spec`, whose defaults must be filled in, and write the answer to `report`. Raises errors of training."""
    end_with(owner)
    began_s = time.perf_counter()
    warmup = warmup_steps or (max(1, spec.warmup or 0) if mode is Mode.TRACE else WARMUP_STEPS)
    with _prepared(spec, warmup) as session:
        start_s = time.perf_counter() - began_s
        match mode:
            case Mode.COUNT:
                answer = _count(session) | {"start_s": start_s}
            case Mode.CALIBRATED:
                answer = _under_ncu(session, calibrate=True)
            case Mode.STEPS:
                answer = _under_ncu(session, calibrate=False)
            case Mode.TRACE:
                answer = _trace(session, report.parent)
    replace_text(report, json.dumps(answer | {"warmup_steps": warmup}), durable=False)


@contextmanager
def _prepared(spec: RunSpec, warmup: int) -> Generator[_Session]:
    """Prepare a session like the timing run, but with data loaded in this process: workers would be profiled too."""
    alone = replace(spec, workers=0)
    device.choose(alone.device)
    device.prepare(alone, cpus=usable_cpus())
    source = data.open_source(alone)
    assert alone.image_size is not None
    model = models.build(alone.model, num_classes=source.classes, image_size=alone.image_size)
    with closing(source.batches()) as batches:
        session = _Session(alone, batches, TrainingStep(model, alone))
        session.train(warmup)
        session.clock.synchronize()
        yield session


def _count(session: _Session) -> dict[str, Any]:
    step_s = session.timed_s(answers.TIMED_STEPS)
    kernels = session.without_skips(lambda: answers.kernels_of(lambda: session.train(1)))
    return answers.count(session.spec.precision, step_s=step_s, kernels_per_step=kernels)


def _under_ncu(session: _Session, *, calibrate: bool) -> dict[str, Any]:
    """Train between start and stop of the profiler, which profiles all kernels that any thread launches meanwhile."""
    products = answers.calibration_products(session.spec.precision) if calibrate else {}
    skipped_before, steps = session.skipped, session.spec.profile_steps
    answers.start_profiler(products)
    for number in range(steps):
        marks = _Marks(number, session.spec.grad_accumulation)
        session.train(1, marks.passed)
    answers.stop_profiler()
    return {"steps": steps, "skipped_steps": session.skipped - skipped_before}


class _Marks:
    """Opens an NVTX range around each part of a step, one range at a time.

    Ranges are process-wide, because autograd launches kernels from its own thread.
    """

    def __init__(self, number: int, passes: int) -> None:
        parts = [*(StepPart.DATA, StepPart.FORWARD, StepPart.BACKWARD) * passes, StepPart.OPTIMIZER]
        self._names = iter([step_range(number, part) for part in parts])
        self._handle: int | None = nvtx.range_start(next(self._names))

    def passed(self, _: StepPart) -> None:
        """Close the range of the part that has ended and open the range of the next part."""
        assert self._handle is not None
        nvtx.range_end(self._handle)
        name = next(self._names, None)
        self._handle = nvtx.range_start(name) if name else None


def _trace(session: _Session, folder: Path) -> dict[str, Any]:
    plain_s = session.timed_s(1)
    profiler, step_s = session.without_skips(lambda: _traced(session))
    return answers.write_trace(profiler, folder, session.spec.device, step_s=step_s, step_without_profiler_s=plain_s)


def _traced(session: _Session) -> tuple[torch.profiler.profile, dict[str, float]]:
    """Profiler with the recorded steps, and the seconds of each step by its label."""
    step_s = {}
    with torch.profiler.profile(activities=answers.activities(session.spec.device)) as profiler:
        for number in range(session.spec.profile_steps):
            with torch.profiler.record_function(answers.label(number)):
                step_s[answers.label(number)] = session.timed_s(1)
    return profiler, step_s

"""Profiled process: trains the same step as the timing run, a few times, and marks the part to be profiled.

A profile pass starts `python -m workload profiled-step` to count kernels, under ncu, or with torch.profiler. The
process writes its answer to a JSON file at the end.
"""

import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch.cuda import nvtx
from torch.profiler import ProfilerActivity

from workload.contract.operating_system import replace_text
from workload.contract.spec import Device, Precision, RunSpec
from workload.contract.vocabulary import calibration_range, step_range
from workload.environment import device
from workload.environment.host import usable_cpus
from workload.measure import ceilings
from workload.measure.clock import clock_for
from workload.measure.recorder import StepPart
from workload.model import models
from workload.profile import torch_pass
from workload.profile.command import RETAKES, WARMUP_STEPS, Mode, end_with
from workload.profile.torch_pass import TraceRow
from workload.steps import training_step
from workload.steps.training_step import Batch, TrainingStep

# Number of steps timed without a profiler.
TIMED_STEPS = 5
# Edge of the matrices of a calibration product: a multiple of every tile size, so that padding adds no FLOP. The
# product has 17 GFLOP.
PRODUCT_EDGE = 2048
# Types of the calibration products, by the step's precision. Autocast leaves some operations in fp32.
PRODUCTS = {
    Precision.FP32: (Precision.FP32,),
    Precision.TF32: (Precision.TF32,),
    Precision.AMP: (Precision.AMP, Precision.FP32),
    Precision.BF16: (Precision.BF16, Precision.FP32),
}
TYPE_NAMES = {Precision.FP32: "fp32", Precision.TF32: "tf32", Precision.AMP: "fp16", Precision.BF16: "bf16"}

Product = Callable[[], object]


# --- counting


def count(precision: Precision, *, step_s: float, kernels_per_step: int | None) -> dict[str, Any]:
    """Facts that a run under ncu needs: the GPU, seconds and kernels of a step, and the calibration products."""
    products = calibration_products(precision)
    properties = torch.cuda.get_device_properties()
    return {
        "device": properties.name,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "torch": torch.__version__,
        "step_s": step_s,
        "kernels_per_step": kernels_per_step,
        "calibration_kernels": kernels_of(lambda: [product() for product in products.values()]),
        "calibration_flop": dict.fromkeys(products, 2 * PRODUCT_EDGE**3),
    }


def kernels_of(work: Callable[[], object]) -> int | None:
    """Number of kernels that `work` launches; None if torch.profiler sees none at all."""
    with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as profiler:
        work()
        torch.cuda.synchronize()
    return kernels_in(profiler)


def kernels_in(profiler: torch.profiler.profile) -> int | None:
    """Number of kernels in a profile; None if it has none."""
    return sum(row.calls for row in kernel_rows(profiler)) or None


def kernel_rows(profiler: torch.profiler.profile) -> list[TraceRow]:
    """Row for each kernel name in a profile, with the largest total time first."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / torch_pass.TRACE
        profiler.export_chrome_trace(str(path))
        return torch_pass.kernels(torch_pass.read(path))


# --- under ncu


def start_profiler(products: Mapping[str, Product]) -> None:
    """Let ncu profile all kernels from now on, first the calibration products, each in a range of its own."""
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    for name, product in products.items():
        with process_range(calibration_range(name)):
            product()


def stop_profiler() -> None:
    """End the profiled part after all of its kernels have run."""
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


@contextmanager
def process_range(name: str) -> Iterator[None]:
    """Context manager: put a process-wide NVTX range around the `with` block."""
    handle = nvtx.range_start(name)
    try:
        yield
    finally:
        nvtx.range_end(handle)


def calibration_products(precision: Precision) -> dict[str, Product]:
    """Calls that multiply two matrices, by element type, for steps of this precision.

    Each call has been made once, so that libraries and workspaces are loaded.
    """
    products = {TYPE_NAMES[each]: _product(each) for each in PRODUCTS[precision]}
    for product in products.values():
        product()
    torch.cuda.synchronize()
    return products


def _product(precision: Precision) -> Product:
    multiply = ceilings.product_maker(Device.CUDA, ceilings.DTYPES[precision])(PRODUCT_EDGE)

    def product() -> object:
        with ceilings.matmul_precision(precision):
            return multiply()

    return product


# --- with torch.profiler


def label(number: int) -> str:
    """Name of a profiled step in the trace."""
    return f"step {number}"


def activities(device: Device) -> tuple[ProfilerActivity, ...] | None:
    """Activities to record; None, torch's default, includes the kernels of a CUDA GPU."""
    return None if device is Device.CUDA else (ProfilerActivity.CPU,)


def write_trace(
    profiler: torch.profiler.profile,
    folder: Path,
    device: Device,
    *,
    step_s: Mapping[str, float],
    step_without_profiler_s: float | None,
) -> dict[str, Any]:
    """Write the trace and the table of its kernels (on a CPU: of its operators) to `folder`; return the answer.

    `step_s`: seconds of each profiled step, by its label in the trace; the table leaves out work outside the labels.
    `step_without_profiler_s`: seconds of a step without the profiler; None if unknown.
    """
    path, is_gpu, steps = folder / torch_pass.TRACE, device is Device.CUDA, len(step_s)
    profiler.export_chrome_trace(str(path))
    rows = torch_pass.kernels_within(torch_pass.read(path), step_s) if is_gpu else _operators(profiler, step_s)
    torch_pass.write(folder / torch_pass.TABLE, rows)
    return {
        "steps": steps,
        "rows": "kernels" if is_gpu else "operators",
        "calls_per_step": sum(row.calls for row in rows) / steps,
        "step_s": list(step_s.values()),
        "step_without_profiler_s": step_without_profiler_s,
        "time_s_per_step": sum(row.total_s for row in rows) / steps,
        "top": torch_pass.top(rows, steps),
        "device": torch.cuda.get_device_name() if is_gpu else None,
        "torch": torch.__version__,
    }


def _operators(profiler: torch.profiler.profile, labels: Collection[str]) -> list[TraceRow]:
    """Operators that began under a label; an operator's time excludes the operators that it calls."""
    events = profiler.events() or []
    windows = [(row.time_range.start, row.time_range.end) for row in events if row.name in labels]
    calls, total_us = Counter[str](), Counter[str]()
    for row in events:
        start = row.time_range.start
        if not row.is_user_annotation and any(low <= start <= high for low, high in windows):
            calls[row.key] += 1
            total_us[row.key] += row.self_cpu_time_total
    return torch_pass.ordered(
        TraceRow(name=name, calls=number, total_s=total_us[name] / torch_pass.US_PER_S)
        for name, number in calls.items()
    )


T = TypeVar("T")


class _Session:
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
    source = training_step.open_source(alone)
    assert alone.image_size is not None
    model = models.build(alone.model, num_classes=source.classes, image_size=alone.image_size)
    with closing(source.batches()) as batches:
        session = _Session(alone, batches, TrainingStep(model, alone))
        session.train(warmup)
        session.clock.synchronize()
        yield session


def _count(session: _Session) -> dict[str, Any]:
    step_s = session.timed_s(TIMED_STEPS)
    kernels = session.without_skips(lambda: kernels_of(lambda: session.train(1)))
    return count(session.spec.precision, step_s=step_s, kernels_per_step=kernels)


def _under_ncu(session: _Session, *, calibrate: bool) -> dict[str, Any]:
    """Train between start and stop of the profiler, which profiles all kernels that any thread launches meanwhile."""
    products = calibration_products(session.spec.precision) if calibrate else {}
    skipped_before, steps = session.skipped, session.spec.profile_steps
    start_profiler(products)
    for number in range(steps):
        marks = _Marks(number, session.spec.grad_accumulation)
        session.train(1, marks.passed)
    stop_profiler()
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
    return write_trace(profiler, folder, session.spec.device, step_s=step_s, step_without_profiler_s=plain_s)


def _traced(session: _Session) -> tuple[torch.profiler.profile, dict[str, float]]:
    step_s = {}
    with torch.profiler.profile(activities=activities(session.spec.device)) as profiler:
        for number in range(session.spec.profile_steps):
            with torch.profiler.record_function(label(number)):
                step_s[label(number)] = session.timed_s(1)
    return profiler, step_s

"""Profiled process: trains the same step as the timing run, a few times, and marks the part to be profiled.

A profile pass starts `python -m workload profiled-step` to count kernels, under ncu, or with torch.profiler. The
process writes its results to a JSON file at the end.
"""

import json
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.cuda import nvtx
from torch.profiler import ProfilerActivity

from workload.contract.files import replace_text
from workload.contract.spec import Device, Precision, RunSpec
from workload.contract.vocabulary import calibration_range, step_range
from workload.environment import device
from workload.measure import ceilings
from workload.measure.clock import clock_for
from workload.measure.recorder import StepPart
from workload.model import models
from workload.profile import trace
from workload.profile.command import RETAKES, WARMUP_STEPS, Mode
from workload.profile.owner import end_with
from workload.steps import data
from workload.steps.data import Batch
from workload.steps.training_step import TrainingStep

# Steps timed without a profiler.
TIMED_STEPS = 5
# A multiple of every tile size, so that padding adds nothing. The product has 17 GFLOP.
PRODUCT_EDGE = 2048
# Types of the calibration products, by the step's precision. Autocast leaves some operations in fp32.
PRODUCTS = {
    Precision.FP32: (Precision.FP32,),
    Precision.TF32: (Precision.TF32,),
    Precision.AMP: (Precision.AMP, Precision.FP32),
    Precision.BF16: (Precision.BF16, Precision.FP32),
}
TYPE_NAMES = {Precision.FP32: "fp32", Precision.TF32: "tf32", Precision.AMP: "fp16", Precision.BF16: "bf16"}
ACTIVITIES = {Device.CPU: (ProfilerActivity.CPU,), Device.MPS: (ProfilerActivity.CPU,)}

Product = Callable[[], object]
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
        """Number of steps so far in which AMP left the optimizer out."""
        return self._step.skipped

    def whole(self, take: Callable[[], T]) -> T:
        """Return the result of `take`, which trains and measures; repeat it if AMP skipped one of its steps."""
        for _ in range(RETAKES):
            before = self.skipped
            taken = take()
            if self.skipped == before:
                return taken
            self.train(WARMUP_STEPS)
        return take()

    def timed_s(self, steps: int) -> float:
        """Seconds per step, including device time."""
        self.clock.synchronize()
        began_s = time.perf_counter()
        self.train(steps)
        self.clock.synchronize()
        return (time.perf_counter() - began_s) / steps


def run(mode: Mode, spec: RunSpec, report: Path, *, owner: int, warmup_steps: int | None = None) -> None:
    """Profile `spec`, which must be filled, and write the report. Raises the errors of training."""
    end_with(owner)
    began_s = time.perf_counter()
    warmup = warmup_steps or (max(1, spec.warmup or 0) if mode is Mode.TRACE else WARMUP_STEPS)
    with _prepared(spec, warmup) as session:
        start_s = time.perf_counter() - began_s
        match mode:
            case Mode.COUNT:
                found = _count(session) | {"start_s": start_s}
            case Mode.CALIBRATED:
                found = _under_ncu(session, calibrate=True)
            case Mode.STEPS:
                found = _under_ncu(session, calibrate=False)
            case Mode.TRACE:
                found = _trace(session, report.parent)
    replace_text(report, json.dumps(found | {"warmup_steps": warmup}), durable=False)


@contextmanager
def _prepared(spec: RunSpec, warmup: int) -> Generator[_Session]:
    """Prepare a session like the timing run, but with data loaded in this process: workers would be profiled too."""
    alone = replace(spec, workers=0)
    device.choose(alone.device)
    device.prepare(alone, cpus=device.usable_cpus())
    source = data.open_source(alone)
    assert alone.image_size is not None
    model = models.build(alone.model, num_classes=source.classes, image_size=alone.image_size)
    with closing(source.batches()) as batches:
        session = _Session(alone, batches, TrainingStep(model, alone))
        session.train(warmup)
        session.clock.synchronize()
        yield session


# --- counting


def _count(session: _Session) -> dict[str, Any]:
    products = calibration_products(session.spec)
    properties = torch.cuda.get_device_properties()
    step_s = session.timed_s(TIMED_STEPS)
    return {
        "device": properties.name,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "free_bytes": torch.cuda.mem_get_info()[0],
        "torch": torch.__version__,
        "step_s": step_s,
        "kernels_per_step": session.whole(lambda: kernels_of(lambda: session.train(1))),
        "calibration_kernels": kernels_of(lambda: [product() for product in products.values()]),
        "calibration_flop": dict.fromkeys(products, 2 * PRODUCT_EDGE**3),
    }


def kernels_of(work: Callable[[], object]) -> int | None:
    """Number of kernels that `work` launches; None if torch.profiler sees none at all."""
    with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as profiler:
        work()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / trace.TRACE
        profiler.export_chrome_trace(str(path))
        return sum(row.calls for row in trace.kernels(trace.read(path))) or None


# --- under ncu


def _under_ncu(session: _Session, *, calibrate: bool) -> dict[str, Any]:
    """Train between start and stop of the profiler; kernels launched there by any thread are profiled."""
    products = calibration_products(session.spec) if calibrate else {}
    skipped_before = session.skipped
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    for name, product in products.items():
        with process_range(calibration_range(name)):
            product()
    for number in range(session.spec.profile_steps):
        marks = _Marks(number, session.spec.grad_accumulation)
        session.train(1, marks.passed)
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()
    return {"steps": session.spec.profile_steps, "skipped_steps": session.skipped - skipped_before}


class _Marks:
    """Process-wide range around each part of a step, one at a time, because autograd launches from its own thread."""

    def __init__(self, number: int, passes: int) -> None:
        parts = [*(StepPart.DATA, StepPart.FORWARD, StepPart.BACKWARD) * passes, StepPart.OPTIMIZER]
        self._names = iter([step_range(number, part) for part in parts])
        self._handle: int | None = nvtx.range_start(next(self._names))

    def passed(self, _: StepPart) -> None:
        """Close the part that has ended and open the next."""
        assert self._handle is not None
        nvtx.range_end(self._handle)
        name = next(self._names, None)
        self._handle = nvtx.range_start(name) if name else None


@contextmanager
def process_range(name: str) -> Iterator[None]:
    handle = nvtx.range_start(name)
    try:
        yield
    finally:
        nvtx.range_end(handle)


def calibration_products(spec: RunSpec) -> dict[str, Product]:
    """Matrix product by type, called once already so that libraries and workspaces are loaded."""
    products = {TYPE_NAMES[precision]: _product(precision) for precision in PRODUCTS[spec.precision]}
    for product in products.values():
        product()
    torch.cuda.synchronize()
    return products


def _product(precision: Precision) -> Product:
    generator = torch.Generator("cuda").manual_seed(0)
    shape = (PRODUCT_EDGE, PRODUCT_EDGE)
    left, right = (
        torch.randn(shape, generator=generator, device="cuda").to(ceilings.DTYPES[precision]) for _ in range(2)
    )
    out = torch.empty_like(left)

    def multiply() -> Tensor:
        with ceilings.matmul_precision(precision):
            return torch.mm(left, right, out=out)

    return multiply


# --- with torch.profiler


def _trace(session: _Session, folder: Path) -> dict[str, Any]:
    spec = session.spec
    plain_s = session.timed_s(1)
    profiler, step_s = session.whole(lambda: _traced(session))
    profiler.export_chrome_trace(str(folder / trace.TRACE))
    rows = trace.kernels(trace.read(folder / trace.TRACE)) if spec.device is Device.CUDA else _operators(profiler)
    trace.write(folder / trace.TABLE, rows)
    steps = spec.profile_steps
    return {
        "steps": steps,
        "rows": "kernels" if spec.device is Device.CUDA else "operators",
        "calls_per_step": sum(row.calls for row in rows) / steps,
        "step_s": step_s,
        "step_without_profiler_s": plain_s,
        "time_s_per_step": sum(row.total_s for row in rows) / steps,
        "top": trace.top(rows, steps),
        "device": _device_name(spec.device),
        "torch": torch.__version__,
    }


def _traced(session: _Session) -> tuple[torch.profiler.profile, list[float]]:
    """Profiler of the steps, and the seconds of each step."""
    step_s = []
    with torch.profiler.profile(activities=ACTIVITIES.get(session.spec.device)) as profiler:
        for number in range(session.spec.profile_steps):
            with torch.profiler.record_function(f"step {number}"):
                step_s.append(session.timed_s(1))
    return profiler, step_s


def _operators(profiler: torch.profiler.profile) -> list[trace.TraceRow]:
    """Time of each operator without the operators that it calls."""
    return trace.ordered(
        trace.TraceRow(name=each.key, calls=each.count, total_s=each.self_cpu_time_total / trace.US_PER_S)
        for each in profiler.key_averages()
        if not each.is_user_annotation
    )


def _device_name(used: Device) -> str | None:
    return torch.cuda.get_device_name() if used is Device.CUDA else None

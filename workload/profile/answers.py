"""Parts that the profiled processes of our trainer and of a user's script share: ranges, calibration, and answers.

A profiled process writes its answer, a JSON object, for the profile pass that started it.
"""

import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.cuda import nvtx
from torch.profiler import ProfilerActivity

from workload.contract.spec import Device, Precision
from workload.contract.vocabulary import calibration_range
from workload.measure import ceilings
from workload.profile import torch_pass
from workload.profile.torch_pass import TraceRow

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

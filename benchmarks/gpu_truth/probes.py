"""Probes that run as the collector's children: `python -m benchmarks.gpu_truth.probes NAME ANSWER.json …`.

The children hold the GPU; the collector does not. Each writes its answer last.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

# torch looks for the toolkit when it is imported, and does not compile a kernel without one. The wheels bring what is
# needed, so that any folder will do.
os.environ.setdefault("CUDA_HOME", sys.prefix)

import torch
from torch import nn
from torch.cuda import nvtx

from benchmarks.gpu_truth import kernels, loops
from workload.contract.operating_system import replace_text
from workload.contract.spec import Device, Precision, RunSpec
from workload.environment import device
from workload.environment.device import GpuSensors
from workload.measure import ceilings
from workload.measure.clock import clock_for
from workload.model import models
from workload.profile import profiled_step
from workload.profile.command import end_with
from workload.steps.training_step import TrainingStep, open_source

# Compile targets: one with HFMA2.MMA, one without, and a newer one.
COMPILED_FOR = ("80", "89", "90")
# Seconds of launches queued between two readings of the sensors.
ROW_S = 0.05
# The best of this many times gives the number of launches, because a wait looks like work.
TIMINGS, SHORTEST_S = 5, 1e-6
SMALL_MEMORY_BYTES = 20 * 10**9
NAME_CHARACTERS, NAMES_KEPT = 300, 200
TRACED = ("resnet50", "resnet18", "mobilenet_v2", "vit_b_16")


def device_facts() -> dict[str, Any]:
    """Facts of torch, and of the GPU that it can compute on."""
    obstacle = device.cuda_obstacle()
    facts: dict[str, Any] = {
        "torch": torch.__version__,
        "cuda_build": torch.version.cuda,
        "targets": torch.cuda.get_arch_list(),
        "obstacle": f"{obstacle.reason}; {obstacle.hint}" if obstacle else None,
        "auto": device.choose(Device.AUTO).value,
        "notes": device.unused_gpu_note(Device.AUTO, device.choose(Device.AUTO)),
        "gpu": None,
    }
    if obstacle is None:
        properties = torch.cuda.get_device_properties()
        gpu = GpuSensors.open(torch.cuda.current_device())
        facts["gpu"] = {
            "name": properties.name,
            "capability": f"{properties.major}.{properties.minor}",
            "memory_bytes": properties.total_memory,
            "sms": properties.multi_processor_count,
            "l2_bytes": properties.L2_cache_size,
            "nvml": gpu.identity() if gpu else None,
        }
    return facts


# --- compiled at run time


def compiler() -> dict[str, Any]:
    """Machine code of each hand-written kernel, for several GPUs; needs no GPU."""
    from torch.cuda import _utils  # noqa: PLC0415 - there is no public way to compile without a GPU

    tool = kernels.disassembler()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for target in COMPILED_FOR:
            for hand in kernels.HANDS:
                try:
                    cubin, _ = _utils._nvrtc_compile(hand.source, hand.name, target)  # noqa: SLF001 - see above
                except (RuntimeError, OSError, AttributeError) as error:
                    found.setdefault(target, {})[hand.name] = {"error": str(error)[:500]}
                    continue
                counted = kernels.instructions(cubin, Path(folder), tool) if tool else None
                found.setdefault(target, {})[hand.name] = {"bytes": len(cubin), "instructions": counted}
    return {"targets": found, "disassembler": tool is not None, "cuda": torch.version.cuda}


def _compiled(hand: kernels.Hand) -> Callable[[], object]:
    """Function that launches the kernel on this GPU."""
    launch = torch.cuda._compile_kernel(hand.source, hand.name)  # noqa: SLF001 - since 2.9
    threads = kernels.BLOCKS * kernels.THREADS
    size = len(kernels.CONSTANTS) * threads
    out = torch.zeros(size, dtype=torch.int32, device="cuda")
    number = threads if hand.name == "constants" else kernels.LOOPS
    grid, block = (kernels.BLOCKS, 1, 1), (kernels.THREADS, 1, 1)
    # 0x3c003c00 is a pair of half-precision ones.
    return lambda: launch(grid=grid, block=block, args=[out, number, 0x3C003C00])


def counters() -> dict[str, Any]:
    """Run hand-written kernels, plain ones of torch, and a backward pass, each in its own range; started under ncu."""
    capability = torch.cuda.get_device_capability()
    hands = [hand for hand in kernels.HANDS if capability >= hand.needs]
    works: dict[str, Callable[[], object]] = {hand.name: _compiled(hand) for hand in hands}
    works |= _plain_works()
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 16)).cuda()
    images = torch.randn(64, 256, device="cuda")
    for work in works.values():
        work()
    model(images).sum().backward()
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    for name, work in works.items():
        with _range(name):
            work()
    loss = model(images).sum()
    torch.cuda.synchronize()
    # Two kinds of range around one backward pass: of the thread, and of the whole process.
    nvtx.range_push("pushed")
    with _range("backward"):
        loss.backward()
        torch.cuda.synchronize()
    nvtx.range_pop()
    torch.cuda.profiler.stop()
    return {"known": {hand.name: hand.known for hand in hands}, "plain": list(_plain_works())}


def _plain_works() -> dict[str, Callable[[], object]]:
    """Work without matrix products, whose code in torch for A100 and H100 has many constants."""
    images = torch.randn(8, 64, 56, 56, device="cuda", requires_grad=True)
    rows = torch.randn(512, 1000, device="cuda", requires_grad=True)
    norm = nn.BatchNorm2d(64).cuda()
    return {
        "batch_norm": lambda: norm(images).sum().backward(),
        "max_pool": lambda: nn.functional.max_pool2d(images, 3, 2, 1).sum().backward(),
        "softmax": lambda: rows.softmax(1).sum().backward(),
        "cross_entropy": lambda: rows.log_softmax(1).sum().backward(),
    }


@contextmanager
def _range(name: str) -> Iterator[None]:
    handle = nvtx.range_start(f"truth {name}")
    try:
        yield
    finally:
        nvtx.range_end(handle)


# --- ceilings from idle


def loads(seconds: str, idle_s: str) -> dict[str, Any]:
    """Run a product of each precision and a copy, each from idle for some seconds, with sensor readings."""
    on_gpu = torch.cuda.is_available()
    used = Device.CUDA if on_gpu else Device.CPU
    read = _sensors() if on_gpu else dict
    found: dict[str, Any] = {}
    precisions = Precision if on_gpu else (Precision.FP32,)
    for precision in precisions:
        if precision is Precision.TF32 and device.why_no_tf32():
            continue
        edge = _edge(used)
        with ceilings.matmul_precision(precision):
            call = ceilings.product_maker(used, ceilings.DTYPES[precision])(edge)
            work = 2 * edge**3
            found[precision] = {"work": work, "rows": _load(used, call, float(seconds), float(idle_s), read)}
    array = torch.ones(2**28 if on_gpu else 2**20, device=used.value)
    other = torch.empty_like(array)
    rows = _load(used, lambda: other.copy_(array), float(seconds), float(idle_s), read)
    found["copy"] = {"work": 2 * array.nbytes, "rows": rows}
    return {"loads": found, "edge": _edge(used)}


def _edge(used: Device) -> int:
    if used is Device.CPU:
        return 512
    return 4096 if torch.cuda.get_device_properties().total_memory < SMALL_MEMORY_BYTES else 8192


def _load(
    used: Device, call: Callable[[], object], seconds: float, idle_s: float, read: Callable[[], Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Rows about every 50 ms, each with seconds per call and sensor readings."""
    probe = ceilings.Probe(clock=clock_for(used))
    probe.warm_up(call)
    calls = max(1, int(ROW_S / max(min(probe.call_s(call) for _ in range(TIMINGS)), SHORTEST_S)))
    time.sleep(idle_s)
    rows, began_s = [], time.perf_counter()
    while (at_s := time.perf_counter() - began_s) < seconds:
        row: dict[str, Any] = {"t_s": round(at_s, 4)}
        row["call_s"] = probe.call_s(call, calls=calls, meanwhile=partial(_put, row, read))
        rows.append(row)
    return rows


def _put(row: dict[str, Any], read: Callable[[], Mapping[str, Any]]) -> None:
    row.update(read())


def _sensors() -> Callable[[], Mapping[str, Any]]:
    """Function that reads clock, temperature, clock event reasons, and power: now, averaged, and by the usual query."""
    gpu = GpuSensors.open(torch.cuda.current_device())
    if gpu is None:
        return dict
    names = {"power_instant_w": "NVML_FI_DEV_POWER_INSTANT", "power_average_w": "NVML_FI_DEV_POWER_AVERAGE"}
    fields = {name: getattr(gpu.library, field, None) for name, field in names.items()}

    def read() -> Mapping[str, Any]:
        sample = gpu.sample()
        row: dict[str, Any] = {
            name: sample.get(name) for name in ("sm_clock_mhz", "temperature_c", "clock_event_reasons")
        }
        try:
            row["power_usual_w"] = gpu.library.nvmlDeviceGetPowerUsage(gpu.handle) / 1000
        except gpu.library.NVMLError:
            row["power_usual_w"] = None
        return row | {name: _power(gpu, field) for name, field in fields.items()}

    return read


def _power(gpu: GpuSensors, field: int | None) -> float | None:
    if field is None:
        return None
    try:
        value = gpu.library.nvmlDeviceGetFieldValues(gpu.handle, [field])[0]
    except gpu.library.NVMLError:
        return None
    return value.value.uiVal / 1000 if value.nvmlReturn == gpu.library.NVML_SUCCESS else None


# --- training


def names() -> dict[str, Any]:
    """Every kernel of one step of each model in fp32 and fp16, with its time."""
    return {f"{model} {precision}": _names(model, precision) for model in TRACED for precision in ("fp32", "amp")}


def _names(model: str, precision: str) -> list[dict[str, Any]]:
    spec = RunSpec(model=model, precision=Precision(precision), batch_size=32).filled(Device.CUDA, cpus=1)
    device.prepare(spec, cpus=1)
    batches = open_source(spec).batches()
    step = TrainingStep(models.build(model, num_classes=1000, image_size=spec.image_size or 224), spec)
    loops.bare(step, batches, clock_for(spec.device), 3)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        loops.bare(step, batches, clock_for(spec.device), 1)
    rows = profiled_step.kernel_rows(profiler)[:NAMES_KEPT]
    return [{"name": row.name[:NAME_CHARACTERS], "calls": row.calls, "s": row.total_s} for row in rows]


def paired(model: str, batch_size: str, image_size: str, pairs: str, steps: str) -> dict[str, Any]:
    """Compare the measured loop with instruments with the bare one."""
    used = device.choose(Device.AUTO)
    spec = RunSpec(model=model, batch_size=int(batch_size), image_size=int(image_size)).filled(used, cpus=1)
    found = loops.measure(spec, pairs=int(pairs), steps=int(steps))
    return {"device": used.value, "model": model, "batch_size": int(batch_size), "steps": int(steps), "ratios": found}


PROBES: dict[str, Callable[..., dict[str, Any]]] = {
    "device": device_facts,
    "compiler": compiler,
    "counters": counters,
    "loads": loads,
    "names": names,
    "paired": paired,
}


def main(words: Sequence[str]) -> None:
    """Run one probe and write its answer to a file."""
    name, path, *arguments = words
    # Under ncu the parent is ncu.
    end_with(os.getppid())
    answer = PROBES[name](*arguments)
    replace_text(Path(path), json.dumps(answer), durable=False)


if __name__ == "__main__":
    main(sys.argv[1:])

"""Measures ceilings: the FLOP/s of a matrix product per precision, and the bytes/s of copy and triad.

Each probe has a time limit, because a CPU without units for an element type is a hundred times slower with that type.
The limits are 2 s for a product and 1 s each for copy and triad. A GPU is loaded for 1.5 s before each probe. On a
quiet machine all probes together take less than 20 s. A disturbed probe is repeated once. If other work still has the
CPUs, this rate and all further ones are work over CPU time. If the second attempt's samples differ too much or are too
few, the rate is unavailable, because a ceiling that is too low makes every run below it look better than it is.
"""

import json
import os
import platform
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import cycle
from math import ceil, inf, isqrt
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor

from workload.contract.operating_system import replace_text
from workload.contract.spec import Device, Precision
from workload.contract.trainer import KeptCeilings
from workload.environment import host
from workload.environment.device import ISA_VARIABLE, GpuSensors, faults, is_out_of_memory, why_no_tf32
from workload.environment.host import usable_cpus
from workload.environment.machine import HostSystem
from workload.measure.ceiling_rates import Attempts, Ceilings, MeasuredRate, Samples
from workload.measure.clock import Clock, clock_for
from workload.measure.timing import CpuMeter

PRODUCT_LIMIT_S = 2.0
BANDWIDTH_LIMIT_S = 1.0
# Seconds of load before the samples. A GPU that was idle runs faster at first than it can for long: a T4, an L4 or a
# laptop's GPU reaches its power limit within a second or two. A CPU's clock settles within milliseconds, while the size
# of the product is chosen. A CPU's power limit takes effect after half a minute, too late for any probe.
LOAD_S = {Device.CUDA: 1.5, Device.MPS: 1.5, Device.CPU: 0.0}
SAMPLES = 30
SAMPLE_S = 10e-3
# A call this long hides the cost of its launch.
LONG_CALL_S = 5e-3
# Number of timings of a product. The shortest time decides whether the product is large enough, because a wait for a
# CPU looks like work.
TIMINGS = 3
SMALLEST_EDGE = 128
# GROWTH: growth of a product's work when the edge doubles. If the time grows by less than WORK_GROWTH, the call mostly
# waited on a busy machine: the call may be long although the product is too small.
GROWTH = 8
WORK_GROWTH = 4
# Number of calls with twice the edge that must fit before the deadline: a warm-up, a timed call and three samples.
CALLS_AHEAD = 5
# Matrices and arrays take at most the free memory divided by this number, which leaves memory to other processes.
FREE_MEMORY_DIVISOR = 4
# STREAM's rule, https://www.cs.virginia.edu/stream/ref.html#size: four times the last-level cache.
CACHE_MULTIPLE = 4
# Least total size of the arrays, on a GPU or where the size of the cache is unknown.
USUAL_FOOTPRINT_BYTES = 10**9
# Largest total size of the arrays: touching a GB of memory for the first time took 2.2 s on a fresh virtual machine.
LARGEST_FOOTPRINT_BYTES = 2 * 10**9
SMALLEST_ARRAY_BYTES = 2**20
ARRAYS = 3
COPY, TRIAD = "copy", "triad"
# Number of arrays that one call moves.
MOVED = {COPY: 2, TRIAD: 3}
TRIAD_FACTOR = 3.0

DTYPES = {
    Precision.FP32: torch.float32,
    Precision.TF32: torch.float32,
    Precision.AMP: torch.float16,
    Precision.BF16: torch.bfloat16,
}
# Variables that limit the instructions of a CPU's matrix product.
ISA_VARIABLES = ("ATEN_CPU_CAPABILITY", "DNNL_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA")

Call = Callable[[], object]
Sampler = Callable[[], Mapping[str, float | None]]
Report = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Probe:
    """Settings of a measurement, which takes at most `limit_s` host seconds.

    The device is first loaded for `load_s` host seconds, which do not count against the limit. `clock`: the device's
    clock; `now_s`: the host's clock. `sensors` reads a GPU's sensors; `cpus_wanted`: CPUs that a CPU's threads can use.
    """

    clock: Clock
    limit_s: float = PRODUCT_LIMIT_S
    load_s: float = 0.0
    now_s: Callable[[], float] = time.perf_counter
    sensors: Sampler | None = None
    cpus_wanted: float | None = None

    def deadline(self) -> float:
        """Latest end of this probe, which begins now, in seconds of the host's clock."""
        return self.now_s() + self.limit_s

    def warm_up(self, call: Call) -> None:
        """Make the first call, which selects kernels and touches memory, and is not timed."""
        call()
        self.clock.synchronize()

    def alone_s(self, call: Call) -> float:
        """Seconds of a call without other work on the machine; on a CPU, this assumes that one thread makes it now."""
        if not self.cpus_wanted:
            return self.call_s(call)
        began_s = time.thread_time()
        call()
        return (time.thread_time() - began_s) / self.cpus_wanted

    def call_s(self, call: Call, *, calls: int = 1, meanwhile: Call | None = None) -> float:
        """Device seconds per call, over `calls` calls in a row; `meanwhile` runs while a GPU executes them."""
        start = self.clock.mark()
        for _ in range(calls):
            call()
        end = self.clock.mark()
        if meanwhile:
            meanwhile()
        self.clock.synchronize()
        return self.clock.seconds_between(start, end) / calls


@dataclass(frozen=True, kw_only=True)
class _Product:
    """A call that multiplies two matrices of `edge` x `edge`, and its measured time in seconds."""

    edge: int
    call: Call
    call_s: float


def measure(
    device: Device,
    *,
    precisions: Collection[str] | None = None,
    bandwidth: bool = True,
    sample: Sampler | None = None,
    progress: Report | None = None,
    limit_share: float = 1.0,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Ceilings:
    """Measure the arithmetic rate in each of `precisions` (default: all) and, with `bandwidth`, copy and triad.

    `sample` reads a GPU's sensors; `limit_share` shortens each probe's load and time limit. Random state, precision
    settings and the GPU's allocator are left as they were.
    """
    began_s, measured_at = time.perf_counter(), now()
    # On macOS, other units compute a product.
    is_on_cpus = device is Device.CPU and platform.system() != "Darwin"
    probe = Probe(
        clock=clock_for(device),
        limit_s=PRODUCT_LIMIT_S * limit_share,
        load_s=LOAD_S[device] * limit_share,
        sensors=sample,
        cpus_wanted=min(torch.get_num_threads(), usable_cpus()) if is_on_cpus else None,
    )
    attempts = Attempts(began_s=began_s, report=progress or (lambda _: None))
    flop_per_s = _flop_rates(device, wanted(precisions), probe, attempts)
    probe = replace(probe, limit_s=BANDWIDTH_LIMIT_S * limit_share)
    if bandwidth and attempts.gave_up:
        attempts.unavailable |= dict.fromkeys((COPY, TRIAD), attempts.gave_up)
        bandwidth = False
    bytes_per_s, footprint = _byte_rates(device, probe, attempts) if bandwidth else ({}, "")
    if attempts.gave_up:
        attempts.report(f"continuing without a ceiling: {attempts.gave_up}")
    return Ceilings(
        flop_per_s=flop_per_s,
        bytes_per_s=bytes_per_s,
        unavailable=attempts.unavailable,
        method=_method(limit_share, probe.load_s, footprint),
        measured_at=measured_at.isoformat(),
        elapsed_s=time.perf_counter() - began_s,
        **identity(device),
    )


def wanted(precisions: Collection[str] | None) -> list[Precision]:
    return [precision for precision in Precision if precisions is None or precision in precisions]


def sensors_of(device: Device) -> Sampler | None:
    """Function that reads the GPU's clock, power and temperature; None if NVML does not know the device."""
    gpu = GpuSensors.open(torch.cuda.current_device()) if device is Device.CUDA else None
    return gpu.sample if gpu else None


def _method(limit_share: float, load_s: float, footprint: str) -> str:
    product_s, bandwidth_s = PRODUCT_LIMIT_S * limit_share, BANDWIDTH_LIMIT_S * limit_share
    products = (
        "n x n x n product of random normal matrices, n is doubled until a call takes 5 ms, or time or "
        f"memory is used up; up to {SAMPLES} samples of at least 10 ms in {product_s:g} s per precision, "
        "measured again if they were disturbed; 1 fused multiply-add = 2 FLOP"
    )
    if load_s:
        products += f"; each rate after {load_s:g} s of the same work, after which the clock has settled"
    bytes_ = f"copy moves 2 and triad 3 float32 arrays, as in STREAM, in {bandwidth_s:g} s each; {footprint}"
    return f"{products}. {bytes_}" if footprint else products


# --- matrix products


def _flop_rates(
    device: Device, precisions: list[Precision], probe: Probe, attempts: Attempts
) -> dict[str, MeasuredRate]:
    rates: dict[str, MeasuredRate] = {}
    for precision in precisions:
        if reason := attempts.gave_up or _why_not(device, precision):
            attempts.unavailable[precision] = reason
            continue
        attempts.report(f"measuring this machine's ceiling: {precision} matrix product")
        with _released(device), _refusals(precision, attempts.unavailable):
            if rate := attempts.first_clean(precision, partial(product_rate, device, precision, probe)):
                rates[precision] = rate
    return rates


def _why_not(device: Device, precision: Precision) -> str | None:
    if precision is Precision.TF32:
        return "TF32 needs an NVIDIA GPU" if device is not Device.CUDA else why_no_tf32()
    dtype = DTYPES[precision]
    if device is Device.CPU and dtype is not torch.float32 and faults(dtype):
        return f"torch's kernels for {dtype} crash on this CPU; {ISA_VARIABLE}=AVX512_CORE_FP16 avoids AMX"
    return None


def product_rate(device: Device, precision: Precision, probe: Probe) -> MeasuredRate:
    """Rate of an n x n x n product: 2 n^3 FLOP. Raises the device's error if the smallest product fails."""
    dtype = DTYPES[precision]
    make = product_maker(device, dtype)
    largest_edge = isqrt(free_memory_bytes(device) // FREE_MEMORY_DIVISOR // (3 * dtype.itemsize))
    with matmul_precision(precision):
        # The first call loads libraries, before the time limit begins.
        probe.warm_up(make(SMALLEST_EDGE))
        deadline_s = probe.deadline()
        threads = torch.get_num_threads()
        if probe.cpus_wanted:
            # Several threads spend CPU time on waits for each other.
            torch.set_num_threads(1)
        try:
            product = grow(make, probe, deadline_s, largest_edge=largest_edge)
        finally:
            torch.set_num_threads(threads)
        taken = take_samples(product.call, product.call_s, probe, deadline_s)
    return MeasuredRate.of(2 * product.edge**3, taken, size=product.edge)


def product_maker(device: Device, dtype: torch.dtype) -> Callable[[int], Call]:
    """Function from an edge length n to a call that multiplies two n x n matrices of random normal numbers."""
    # A separate generator, so that the run's random state does not change.
    generator = torch.Generator(device.value).manual_seed(0)

    def make(edge: int) -> Call:
        left, right = (torch.randn(edge, edge, generator=generator, device=device.value).to(dtype) for _ in range(2))
        out = torch.empty_like(left)
        return lambda: torch.mm(left, right, out=out)

    return make


def grow(make: Callable[[int], Call], probe: Probe, deadline_s: float, *, largest_edge: int) -> _Product:
    """Double the edge of the matrices until a product takes long enough, or the next size exceeds time or memory."""
    smaller, product = None, _timed(make, SMALLEST_EDGE, probe)

    def is_enough() -> bool:
        """Whether the product takes long enough and mostly computes, or there is no time for a larger one."""
        is_work = smaller is not None and product.call_s >= WORK_GROWTH * smaller.call_s
        is_long = product.call_s >= LONG_CALL_S and is_work
        return is_long or probe.now_s() + CALLS_AHEAD * GROWTH * product.call_s > deadline_s

    while 2 * product.edge <= largest_edge:
        if is_enough():
            # Time it twice more, if the samples would still meet the deadline: the shortest time counts.
            for _ in range(TIMINGS - 1):
                if probe.now_s() + CALLS_AHEAD * product.call_s <= deadline_s:
                    product = replace(product, call_s=min(product.call_s, probe.alone_s(product.call)))
            if is_enough():
                break
        try:
            smaller, product = product, _timed(make, 2 * product.edge, probe)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            break
    return product


def _timed(make: Callable[[int], Call], edge: int, probe: Probe) -> _Product:
    call = make(edge)
    probe.warm_up(call)
    return _Product(edge=edge, call=call, call_s=probe.alone_s(call))


def take_samples(call: Call, call_s: float, probe: Probe, deadline_s: float) -> Samples:
    """Load the device, then take 1 to 30 samples of at least 10 ms each.

    `call_s`: expected seconds of a call. Sensors are read under load: at the start, at half time and at the last
    sample.
    """
    calls = ceil(SAMPLE_S / call_s) if call_s < SAMPLE_S else 1
    readings: dict[str, Mapping[str, float | None]] = {}

    def sample(moment: str | None = None) -> float:
        sensors = probe.sensors if moment else None
        meanwhile = (lambda: readings.update({str(moment): sensors()})) if sensors else None
        return probe.call_s(call, calls=calls, meanwhile=meanwhile)

    load: list[float] = []
    began_s = probe.now_s()
    while probe.now_s() - began_s < probe.load_s:
        load.append(sample(None if load else "start"))
    load_s = probe.now_s() - began_s if load else 0.0
    deadline_s += load_s
    samples: list[float] = []
    meter = CpuMeter() if probe.cpus_wanted else None
    while not samples or (len(samples) < SAMPLES and probe.now_s() + calls * samples[-1] <= deadline_s):
        has_time = not samples or probe.now_s() + 2 * calls * samples[-1] <= deadline_s
        is_last = len(samples) == SAMPLES - 1 or not has_time
        moments = {0: None if load else "start", SAMPLES // 2: "half"}
        samples.append(sample("end" if is_last else moments.get(len(samples))))
    use = meter.use() if meter else None
    return Samples(
        call_s=samples,
        load_call_s=load,
        load_s=load_s,
        # The reading at the start, if the time was too short for a reading at half time.
        conditions=readings.get("half", readings.get("start")),
        conditions_at_start=readings.get("start"),
        conditions_at_end=readings.get("end"),
        cpus=use.used_cpus if use else None,
        cpus_waited=use.waited_cpus if use else None,
        cpus_wanted=probe.cpus_wanted,
    )


@contextmanager
def matmul_precision(precision: Precision) -> Iterator[None]:
    """Turn TF32 on for `tf32` and off for every other precision; restore the settings afterwards."""
    backends: Any = torch.backends
    newer = backends.cuda.matmul, backends.mkldnn.matmul
    before, older = [setting.fp32_precision for setting in newer], None
    # In a script that has used the newer settings, torch may refuse to read the older one, which has no effect then.
    with suppress(RuntimeError):
        older = torch.get_float32_matmul_precision()
    # This sets the older and the newer settings alike.
    torch.set_float32_matmul_precision("high" if precision is Precision.TF32 else "highest")
    try:
        yield
    finally:
        if older:
            torch.set_float32_matmul_precision(older)
        for setting, value in zip(newer, before, strict=True):
            setting.fp32_precision = value


# --- copy and triad


def _byte_rates(device: Device, probe: Probe, attempts: Attempts) -> tuple[dict[str, MeasuredRate], str]:
    """Rates of copy and triad, and a sentence on the size of the arrays."""
    attempts.report("measuring this machine's ceiling: memory bandwidth")
    cache_bytes, free_bytes = last_level_cache_bytes(device), free_memory_bytes(device)
    array_bytes = choose_array_bytes(device, cache_bytes=cache_bytes, free_bytes=free_bytes)
    rates: dict[str, MeasuredRate] = {}
    unavailable, footprint, is_in_l2 = attempts.unavailable, "", False
    with _released(device), _refusals(COPY, unavailable), _refusals(TRIAD, unavailable):
        arrays = _allocate(device, array_bytes)
        array_bytes = arrays[0].nbytes
        footprint = _footprint(array_bytes, cache_bytes=cache_bytes)
        is_in_l2 = device is Device.CUDA and not _exceeds(cache_bytes or 0, array_bytes)
        for name in (COPY, TRIAD):
            if is_in_l2:
                # The L2 of a GPU is several times faster than its memory.
                unavailable[name] = f"other work has the GPU's memory: {footprint}"
            elif attempts.gave_up:
                unavailable[name] = attempts.gave_up
            elif rate := attempts.first_clean(name, partial(_byte_rate, name, arrays, probe)):
                rates[name] = rate
    return rates, "" if is_in_l2 else footprint


def choose_array_bytes(device: Device, *, cache_bytes: int | None, free_bytes: int) -> int:
    """Bytes of each of three arrays.

    Together the arrays have four times the cache's size; on a GPU, or if that size is unknown, at least 1 GB. They have
    at most 2 GB, and at most a quarter of the free memory.
    """
    wanted = CACHE_MULTIPLE * (cache_bytes or 0)
    if device is not Device.CPU or cache_bytes is None:
        wanted = max(wanted, USUAL_FOOTPRINT_BYTES)
    footprint = min(wanted, LARGEST_FOOTPRINT_BYTES, free_bytes // FREE_MEMORY_DIVISOR)
    return max(footprint // ARRAYS, SMALLEST_ARRAY_BYTES)


def _allocate(device: Device, array_bytes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Allocate three arrays and touch their memory; if they do not fit, halve their size."""
    count = array_bytes // torch.float32.itemsize
    try:
        first, second, third = (torch.full((count,), float(n), device=device.value) for n in range(ARRAYS))
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error) or array_bytes // 2 < SMALLEST_ARRAY_BYTES:
            raise
    else:
        return first, second, third
    return _allocate(device, array_bytes // 2)


def _byte_rate(name: str, arrays: tuple[Tensor, Tensor, Tensor], probe: Probe) -> MeasuredRate:
    """Rate of copy (a = b), which moves two arrays, or triad (a = b + q c), which moves three.

    Cache lines that a CPU reads before it writes them do not count. Source:
    https://www.cs.virginia.edu/stream/ref.html#counting.
    """
    a, b, c = arrays
    # Each copy writes to the least recently used array, so that all three pass through the cache.
    pairs = cycle(((a, b), (c, a), (b, c)))

    def copy() -> Tensor:
        target, source = next(pairs)
        return target.copy_(source)

    calls: dict[str, Call] = {COPY: copy, TRIAD: lambda: torch.add(b, c, alpha=TRIAD_FACTOR, out=a)}
    call = calls[name]
    deadline_s = probe.deadline()
    probe.warm_up(call)
    return MeasuredRate.of(
        MOVED[name] * a.nbytes, take_samples(call, probe.call_s(call), probe, deadline_s), size=a.nbytes
    )


def _footprint(array_bytes: int, *, cache_bytes: int | None) -> str:
    arrays = f"{ARRAYS} arrays of {array_bytes / 1e6:.0f} MB"
    if cache_bytes is None:
        return f"{arrays}, last-level cache unknown"
    few = f"only {ARRAYS * array_bytes / cache_bytes:.3g}x, for lack of memory or time,"
    verdict = f"at least {CACHE_MULTIPLE}x" if _exceeds(cache_bytes, array_bytes) else few
    return f"{arrays}, together {verdict} the last-level cache of {cache_bytes / 1e6:.0f} MB"


def _exceeds(cache_bytes: int, array_bytes: int) -> bool:
    """Whether all arrays together have four times the cache's size, but for the rounding to whole elements."""
    return ARRAYS * array_bytes > (CACHE_MULTIPLE - 0.01) * cache_bytes


def last_level_cache_bytes(device: Device, machine: HostSystem | None = None) -> int | None:
    """Bytes of a GPU's L2 cache, or of all last-level caches of the CPUs that this process may use, added up.

    None if unknown.
    """
    if device is Device.CUDA:
        return int(torch.cuda.get_device_properties().L2_cache_size)
    machine = machine or HostSystem()
    known = [cache for cache in host.caches(machine) or [] if cache["size_bytes"]]
    if device is Device.MPS or not known:
        return None
    last = max(known, key=lambda cache: int(str(cache["level"])))
    sharing, cpus = last["shared_by_cpus"], len(host.allowed_cpus(machine) or [0])
    return int(str(last["size_bytes"])) * (ceil(cpus / int(str(sharing))) if sharing else 1)


def free_memory_bytes(device: Device, machine: HostSystem | None = None) -> int:
    """Bytes that the device's allocator could provide; on a CPU, the container's memory limit counts too."""
    if device is Device.CUDA:
        return int(torch.cuda.mem_get_info()[0])
    machine = machine or HostSystem()
    available = host.memory_available_bytes(machine) or 0
    limit = host.cgroup_limits(machine).memory_bytes
    return available if limit is None else min(available, max(0, limit - psutil.Process().memory_info().rss))


# --- context managers around a probe


@contextmanager
def _refusals(name: str, unavailable: dict[str, str]) -> Iterator[None]:
    """Context manager: record the device's error in `unavailable`, as the reason why the rate `name` is missing."""
    try:
        yield
    except (RuntimeError, MemoryError, TypeError) as error:
        unavailable[name] = str(error).strip().split("\n", 1)[0] or type(error).__name__


@contextmanager
def _released(device: Device) -> Iterator[None]:
    """Context manager: afterwards return the probe's memory to the GPU, so that the run has as much as before."""
    try:
        yield
    finally:
        if device is Device.CUDA:
            torch.cuda.empty_cache()


def identity(device: Device) -> dict[str, Any]:
    """Facts that ceilings depend on, such as the device and the number of threads, by field name of `Ceilings`."""
    machine = HostSystem()
    # Containers have their own host names; the kernel's boot id is the same in all containers of a machine.
    ids = [machine.text("/proc/sys/kernel/random/boot_id") or platform.node()]
    if device is Device.CUDA:
        properties = torch.cuda.get_device_properties()
        name, ids = properties.name, [*ids, str(getattr(properties, "uuid", ""))]
    else:
        name = host.cpu_model(machine) or platform.machine()
    limits = [f"{variable}={os.environ[variable]}" for variable in ISA_VARIABLES if variable in os.environ]
    return {
        "device": name if device is not Device.MPS else f"{name} (MPS)",
        "machine_id": "/".join(ids),
        "software": " ".join([f"torch {torch.__version__}", *limits]),
        "threads": torch.get_num_threads(),
    }


# --- ceilings kept beside the bundles

CACHE_NAME = ".ceilings.json"
# Schema 2 added the number of CPUs used to each rate; since schema 3, GPUs are loaded before they are measured. Files
# of older schemas are ignored.
CACHE_SCHEMA = 3
MAX_AGE_S = 3600.0


def cached_or_measure(
    folder: Path,
    *,
    device: Device,
    precisions: Collection[str] | None = None,
    sample: Sampler | None = None,
    progress: Report | None = None,
    kept: KeptCeilings = KeptCeilings.HOUR,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> tuple[Ceilings, float]:
    """Ceilings and their age in seconds, 0 if all were measured now; stored in `folder` for later runs.

    A stored file is replaced if it is damaged, too old, from the future, or of another machine, device, torch or number
    of threads, or if `kept` allows none. Rates that a usable file lacks are measured. A folder that cannot be written
    is no error.
    """
    path = folder / CACHE_NAME
    stored = None if kept is KeptCeilings.NONE else _read(path, identity(device))
    age_s = stored.age_s(now()) if stored else 0.0
    if stored is None or not 0 <= age_s <= (inf if kept is KeptCeilings.BLOCK else MAX_AGE_S):
        measured = measure(device, precisions=precisions, sample=sample, progress=progress, now=now)
        _write(path, measured)
        return measured, 0.0
    missing = [precision for precision in wanted(precisions) if precision not in stored.flop_per_s]
    bandwidth = not {COPY, TRIAD} <= set(stored.bytes_per_s)
    if missing or bandwidth:
        more = measure(device, precisions=missing, bandwidth=bandwidth, sample=sample, progress=progress, now=now)
        is_any_used = len(missing) < len(wanted(precisions)) or not bandwidth
        stored = _joined(stored, more)
        _write(path, stored)
        return (stored, age_s) if is_any_used else (more, 0.0)
    return stored, age_s


def _joined(kept: Ceilings, more: Ceilings) -> Ceilings:
    """Add the rates of `more` to `kept`, which keeps its time of measurement."""
    measured_now = {*more.flop_per_s, *more.bytes_per_s}
    unavailable = {key: why for key, why in kept.unavailable.items() if key not in measured_now}
    return replace(
        kept,
        flop_per_s={**kept.flop_per_s, **more.flop_per_s},
        bytes_per_s={**kept.bytes_per_s, **more.bytes_per_s},
        unavailable={**unavailable, **more.unavailable},
        elapsed_s=kept.elapsed_s + more.elapsed_s,
    )


def _read(path: Path, machine: Mapping[str, Any]) -> Ceilings | None:
    """Ceilings in the file; None unless it is complete, clean and of this `machine`, see `identity`."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        kept = Ceilings.from_json(content["ceilings"])
        kept.age_s(datetime.now(UTC))
    except (OSError, KeyError, TypeError, ValueError, AttributeError):
        return None
    is_ours = all(getattr(kept, name) == value for name, value in machine.items())
    is_clean = all(rate.doubt is None for rate in (*kept.flop_per_s.values(), *kept.bytes_per_s.values()))
    return kept if is_ours and is_clean and content.get("schema") == CACHE_SCHEMA else None


def _write(path: Path, measured: Ceilings) -> None:
    """Write the file, without rates by CPU time; atomically, because another run may read the file at any moment."""
    measured = replace(
        measured,
        flop_per_s={name: rate for name, rate in measured.flop_per_s.items() if not rate.is_by_cpu_time},
        bytes_per_s={name: rate for name, rate in measured.bytes_per_s.items() if not rate.is_by_cpu_time},
    )
    content = {"schema": CACHE_SCHEMA, "ceilings": measured.to_json()}
    with suppress(OSError):
        replace_text(path, json.dumps(content, indent=1), shared=True, durable=False)

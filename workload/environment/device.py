"""Chooses a device, and sets it up so that a precision means what its name says."""

import os

import torch

from workload.contract.errors import UsageError
from workload.contract.record import Memory
from workload.contract.spec import Device, Precision, RunSpec
from workload.environment import cgroup, cuda, instructions
from workload.environment.machine import HostSystem
from workload.environment.resource_errors import is_of_memory, is_of_workspace

TF32_CAPABILITY = (8, 0)
AUTOCAST_DTYPES = {Precision.AMP: torch.float16, Precision.BF16: torch.bfloat16}
# cuDNN's workspaces for large batches take up to some hundred MB.
LITTLE_FREE_BYTES = 1 << 30


def choose(wanted: Device) -> Device:
    """Device to use: `wanted`, or for `auto` the best one found. Raises `UsageError` if the device is absent."""
    match wanted:
        case Device.AUTO:
            usable = {Device.CUDA: cuda.obstacle() is None, Device.MPS: torch.backends.mps.is_available()}
            return next((device for device, is_usable in usable.items() if is_usable), Device.CPU)
        case Device.CUDA if obstacle := cuda.obstacle():
            raise UsageError(f"no CUDA device: {obstacle.reason}", hint=obstacle.hint)
        case Device.MPS if not torch.backends.mps.is_available():
            built = "finds no Apple GPU" if torch.backends.mps.is_built() else "is built without MPS"
            raise UsageError(f"no MPS device: torch {torch.__version__} {built}", hint="--cpu")
        case _:
            return wanted


def passed_over(wanted: Device, chosen: Device) -> list[str]:
    """Note if `auto` does not use an NVIDIA GPU of this machine, with the reason."""
    obstacle = cuda.obstacle() if wanted is Device.AUTO and chosen is not Device.CUDA else None
    if obstacle is None or not obstacle.gpu_is_there:
        return []
    return [f"the NVIDIA GPU is not used: {obstacle.reason}; {obstacle.hint}"]


def usable_cpus() -> float:
    """CPUs that this process may use: its affinity, or a lower limit of the control group, which may be a fraction."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = cgroup.limits(HostSystem()).cpus
    return allowed if limit is None else min(allowed, limit)


def prepare(spec: RunSpec, *, cpus: float) -> list[str]:
    """Set the seed, threads, precision and determinism of the whole process.

    Returns notes for the bundle on effects that the user might not expect. `cpus`: CPUs that this process may use.
    """
    torch.manual_seed(spec.seed)
    _limit_threads(cpus)
    _set_precision(spec)
    if spec.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(mode=True)
    # Shapes are fixed, so autotuning settles in the warm-up.
    torch.backends.cudnn.benchmark = not spec.deterministic
    return _notes(spec)


def _limit_threads(cpus: float) -> None:
    """Limit threads to the usable CPUs. torch counts the machine's cores; more threads would throttle each other."""
    if "OMP_NUM_THREADS" not in os.environ and torch.get_num_threads() > cpus:
        torch.set_num_threads(max(1, int(cpus)))


def _set_precision(spec: RunSpec) -> None:
    tf32 = spec.precision is Precision.TF32
    if tf32 and torch.cuda.get_device_capability() < TF32_CAPABILITY:
        major, minor = torch.cuda.get_device_capability()
        raise UsageError(
            f"precision tf32 needs compute capability 8.0 or newer; {torch.cuda.get_device_name()} has {major}.{minor}",
            hint="--precision fp32, or --precision amp",
        )
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32


def _notes(spec: RunSpec) -> list[str]:
    dtype = AUTOCAST_DTYPES.get(spec.precision)
    if dtype is None:
        return []
    if spec.device is Device.CPU:
        note = instructions.hold_back(dtype)
        return [note] if note else []
    on_cuda = spec.device is Device.CUDA and dtype is torch.bfloat16
    if on_cuda and not torch.cuda.is_bf16_supported(including_emulation=False):
        return [f"{torch.cuda.get_device_name()} has no bf16 units: bf16 is emulated and slow"]
    return []


def autocast(spec: RunSpec) -> torch.autocast:
    """Context manager for the forward pass: fp16 for amp, bf16 for bf16, off otherwise."""
    dtype = AUTOCAST_DTYPES.get(spec.precision)
    return torch.autocast(spec.device.value, dtype=dtype, enabled=dtype is not None)


def reset_peak_memory(device: Device) -> None:
    """Reset the peak memory, which the ceilings have raised."""
    if device is Device.CUDA:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def memory(device: Device) -> Memory:
    """Peak device memory and the allocator's retries and failures; empty on a CPU, whose peak is in `usage`."""
    match device:
        case Device.CUDA:
            stats = torch.cuda.memory_stats()
            return Memory(
                peak_allocated_bytes=torch.cuda.max_memory_allocated(),
                peak_reserved_bytes=torch.cuda.max_memory_reserved(),
                total_bytes=torch.cuda.get_device_properties().total_memory,
                allocator_retries=stats.get("num_alloc_retries"),
                allocator_out_of_memory=stats.get("num_ooms"),
            )
        case Device.MPS:
            return Memory(driver_allocated_bytes=torch.mps.driver_allocated_memory())
        case _:
            return Memory()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` is a refused allocation on any device, or cuDNN's lack of room for a workspace."""
    if isinstance(error, torch.OutOfMemoryError) or is_of_memory(error):
        return True
    return is_of_workspace(error) and torch.cuda.mem_get_info()[0] < LITTLE_FREE_BYTES

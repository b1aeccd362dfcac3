"""Chooses a device, sets it up so that a precision means what its name says, and reads its facts and sensors."""

import faulthandler
import importlib
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from workload.contract.errors import UsageError, is_memory_shortage, is_workspace_shortage
from workload.contract.record import Memory
from workload.contract.spec import TF32_CAPABILITY, Device, Precision, RunSpec
from workload.environment import gpu_code
from workload.environment.host import apple_gpu_facts, cpu_model
from workload.environment.machine import HostSystem, hosting_service

AUTOCAST_DTYPES = {Precision.AMP: torch.float16, Precision.BF16: torch.bfloat16}
# cuDNN's workspaces for large batches take up to some hundred MB.
LITTLE_FREE_BYTES = 1 << 30
# Oldest driver branch for each major version of CUDA: docs.nvidia.com/cuda/cuda-toolkit-release-notes, "Minimum
# Required Driver Version for CUDA Minor Version Compatibility", read 2026-11.
OLDEST_DRIVER = {11: 450, 12: 525, 13: 580}
DRIVER_VERSION, WSL_DEVICE = "/proc/driver/nvidia/version", "/dev/dxg"
DRIVER_QUERY = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
# Compute capabilities of Pascal (the major one) and Volta, which torch for CUDA 13 does not support, and the last build
# with code for them: pytorch/pytorch#190355. A test compares it with flavour volta in docker/images.toml.
PASCAL, VOLTA = 6, (7, 0)
LAST_BUILD = "torch==2.14.0 torchvision==0.29.0 --index-url https://download.pytorch.org/whl/cu126"
VOLTA_CURE = f"pip install {LAST_BUILD}; or launch build --flavour volta, then --flavour volta"
CPU_HINT = "--cpu runs without a GPU"


def choose(wanted: Device) -> Device:
    """Device to use: `wanted`, or for `auto` the best one found. Raises `UsageError` if the device is absent."""
    match wanted:
        case Device.AUTO:
            usable = {Device.CUDA: cuda_obstacle() is None, Device.MPS: torch.backends.mps.is_available()}
            return next((device for device, is_usable in usable.items() if is_usable), Device.CPU)
        case Device.CUDA if obstacle := cuda_obstacle():
            raise UsageError(f"no CUDA device: {obstacle.reason}", hint=obstacle.hint)
        case Device.MPS if not torch.backends.mps.is_available():
            built = "finds no Apple GPU" if torch.backends.mps.is_built() else "is built without MPS"
            raise UsageError(f"no MPS device: torch {torch.__version__} {built}", hint="--cpu")
        case _:
            return wanted


def unused_gpu_note(wanted: Device, chosen: Device) -> list[str]:
    """Note with the reason why `auto` did not choose this machine's NVIDIA GPU; empty if there is nothing to note."""
    obstacle = cuda_obstacle() if wanted is Device.AUTO and chosen is not Device.CUDA else None
    if obstacle is None or not obstacle.gpu_is_there:
        return []
    return [f"the NVIDIA GPU is not used: {obstacle.reason}; {obstacle.hint}"]


@dataclass(frozen=True, kw_only=True)
class Obstacle:
    """Reason why the GPU cannot be used, and the cure.

    `gpu_is_there`: there is a GPU, and only the software is wrong.
    """

    reason: str
    hint: str
    gpu_is_there: bool = True


def cuda_obstacle(machine: HostSystem | None = None) -> Obstacle | None:
    """First reason why torch cannot compute on the GPU; None if it can."""
    if torch.cuda.is_available():
        return _missing_code()
    machine = machine or HostSystem()
    # Version of the driver, `580.65.06`; None if no driver is loaded. Under WSL nvidia-smi reports Windows' driver.
    text = machine.text(DRIVER_VERSION) or (machine.tool(*DRIVER_QUERY) if machine.exists(WSL_DEVICE) else None)
    version = re.search(r"\b\d{3}\.\d{2,3}(?:\.\d{2,3})?\b", text or "")
    torch_build, driver = f"torch {torch.__version__}", (version[0] if version else None)
    hidden = machine.environ.get("CUDA_VISIBLE_DEVICES")
    is_there = driver is not None or machine.exists(WSL_DEVICE)
    service = hosting_service(machine.environ) if driver is None else None
    # Before the driver, which is not found here on Windows.
    if torch.version.cuda is None:
        loaded = f", although NVIDIA driver {driver} is loaded" if driver else ""
        cure = "install a torch built for CUDA" + ("" if is_there else ", if there is an NVIDIA GPU")
        reason = f"{torch_build} is a build without CUDA{loaded}"
        return Obstacle(reason=reason, hint=f"{service.gpu if service else cure}; {CPU_HINT}", gpu_is_there=is_there)
    if driver is None:
        place = "on Windows, not inside WSL" if is_there else "here"
        driver_cure = f"install NVIDIA's driver {place}, if there is a GPU (`nvidia-smi` shows it)"
        return Obstacle(
            reason=f"{torch_build} finds no NVIDIA driver",
            hint=f"{service.gpu if service else driver_cure}; {CPU_HINT}",
            gpu_is_there=is_there,
        )
    oldest = OLDEST_DRIVER.get(int(torch.version.cuda.partition(".")[0]))
    if oldest and int(driver.partition(".")[0]) < oldest:
        return Obstacle(
            reason=f"{torch_build} for CUDA {torch.version.cuda} needs NVIDIA driver {oldest} or newer, but this "
            f"machine has {driver}",
            hint=f"upgrade the driver, or install a torch built for an older CUDA; {CPU_HINT}",
        )
    if hidden is not None:
        return Obstacle(
            reason=f"{torch_build} sees no GPU: CUDA_VISIBLE_DEVICES is '{hidden}'", hint="unset CUDA_VISIBLE_DEVICES"
        )
    return Obstacle(
        reason=f"{torch_build} for CUDA {torch.version.cuda} sees no GPU, although NVIDIA driver {driver} is loaded",
        hint=f"`nvidia-smi` shows the GPUs of the driver; in a container use --gpus all; {CPU_HINT}",
    )


def _missing_code() -> Obstacle | None:
    """Obstacle if torch has no code for the GPU, because the GPU is too old or too new: every kernel would fail."""
    major, minor = torch.cuda.get_device_capability()
    capability, built = f"{major}.{minor}", torch.cuda.get_arch_list()
    # PTX of an older capability is compiled for the newer one at the first start.
    # Code for an architecture's own features (`compute_90a`) runs on this architecture alone, also as PTX.
    portable = re.findall(r"\bcompute_(\d+)\b", " ".join(built))
    has_ptx = any(int(target) <= 10 * major + minor for target in portable)
    if has_ptx or not gpu_code.missing([capability], built):
        return None
    cure = VOLTA_CURE if major == PASCAL or (major, minor) == VOLTA else "install a torch that was built for this GPU"
    return Obstacle(
        reason=f"torch {torch.__version__} has no code for {torch.cuda.get_device_name()}, compute capability "
        f"{capability}: it was built for {' '.join(built)}",
        hint=f"{cure}; {CPU_HINT}",
    )


def prepare(spec: RunSpec, *, cpus: float) -> list[str]:
    """Set the seed, threads, precision and determinism of the whole process.

    Returns notes for the bundle on effects that the user might not expect. `cpus`: CPUs that this process may use.
    """
    torch.manual_seed(spec.seed)
    # By default torch starts a thread for each core of the machine.
    if "OMP_NUM_THREADS" not in os.environ and torch.get_num_threads() > cpus:
        torch.set_num_threads(max(1, int(cpus)))
    tf32 = spec.precision is Precision.TF32
    if tf32 and (why := why_no_tf32()):
        raise UsageError(why, hint="--precision fp32, or --precision amp")
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32
    if spec.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(mode=True)
    # Shapes are fixed, so autotuning settles in the warm-up.
    torch.backends.cudnn.benchmark = not spec.deterministic
    return _notes(spec)


def why_no_tf32(gpu: torch.device | None = None) -> str | None:
    """Why a GPU (None: the current one) computes nothing in TF32, whatever PyTorch's settings are; None if it can."""
    major, minor = torch.cuda.get_device_capability(gpu)
    if (major, minor) < TF32_CAPABILITY:
        name = torch.cuda.get_device_name(gpu)
        return f"precision tf32 needs compute capability 8.0 or newer; {name} has {major}.{minor}"
    # NVIDIA's libraries read this variable: docs.nvidia.com/deeplearning/cudnn, "TF32".
    is_off = os.environ.get("NVIDIA_TF32_OVERRIDE") == "0"
    return "the variable NVIDIA_TF32_OVERRIDE=0 turns TF32 off" if is_off else None


def precision_of_fp32(kind: str, gpu: torch.device | None = None) -> Precision:
    """Precision in which a GPU computes products of fp32 values now: TF32, or fp32 itself.

    `kind`: of `workload.model.flop.Formula`. PyTorch has one setting for convolutions, one for recurrent layers and one
    for all other products. By default the first two are TF32 and the last is fp32.
    """
    # `torch.get_float32_matmul_precision()` and `allow_tf32` raise once a script has used the settings read here.
    cudnn: Any = torch.backends.cudnn
    setting = torch.backends.cuda.matmul
    if cudnn.enabled:
        setting = {"convolution": cudnn.conv, "recurrent": cudnn.rnn}.get(kind.removesuffix("_backward"), setting)
    return Precision.TF32 if setting.fp32_precision == "tf32" and why_no_tf32(gpu) is None else Precision.FP32


def _notes(spec: RunSpec) -> list[str]:
    dtype = AUTOCAST_DTYPES.get(spec.precision)
    if dtype is None:
        return []
    if spec.device is Device.CPU:
        note = hold_back(dtype)
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
    """Reset the peak memory, which measuring the ceilings has raised. On a CPU only Linux can do this."""
    if device is Device.CUDA:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    elif device is Device.CPU and sys.platform == "linux":
        # "5" resets the peak resident set of this process (Linux, Documentation/filesystems/proc.rst).
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")


def memory(device: Device, index: int | None = None) -> Memory:
    """Peak device memory and the allocator's retries; empty on a CPU, whose peak is in `usage`.

    `index`: torch's number of the GPU, by default the current one.
    """
    match device:
        case Device.CUDA:
            stats = torch.cuda.memory_stats(index)
            return Memory(
                peak_allocated_bytes=torch.cuda.max_memory_allocated(index),
                peak_reserved_bytes=torch.cuda.max_memory_reserved(index),
                allocator_retries=stats.get("num_alloc_retries"),
            )
        case Device.MPS:
            return Memory(driver_allocated_bytes=torch.mps.driver_allocated_memory())
        case _:
            return Memory()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` is a refused allocation on any device, or cuDNN's lack of room for a workspace."""
    if isinstance(error, torch.OutOfMemoryError) or is_memory_shortage(error):
        return True
    return is_workspace_shortage(error) and torch.cuda.mem_get_info()[0] < LITTLE_FREE_BYTES


# --- instructions that a CPU reports, for example AMX in a virtual machine, and then faults on
# PyTorch's oneDNN uses what the CPU reports, and the process dies of SIGILL. Therefore a child process tries a small
# step first. If the child dies, oneDNN is limited to an older instruction set,
# https://uxlfoundation.github.io/oneDNN/dev_guide_cpu_dispatcher_control.html.

if sys.platform == "win32":
    resource: Any = None
else:
    import resource

ISA_VARIABLE = "ONEDNN_MAX_CPU_ISA"
# oneDNN's names of instruction sets without AMX, newest first.
OLDER_INSTRUCTIONS = ("AVX512_CORE_FP16", "AVX512_CORE_BF16", "AVX512_CORE", "AVX2")


def hold_back(dtype: torch.dtype) -> str | None:
    """Make `dtype` usable on this CPU; return a note if instructions had to be disabled, else None.

    Must be called before the first use of oneDNN, which reads the variable ONEDNN_MAX_CPU_ISA only once. Raises
    `UsageError` if no older instruction set helps.
    """
    if not faults(dtype):
        return None
    for name in () if ISA_VARIABLE in os.environ else OLDER_INSTRUCTIONS:
        os.environ[ISA_VARIABLE] = name
        if not faults(dtype):
            return f"programs crash on instructions that this CPU reports: {ISA_VARIABLE}={name} was set"
        del os.environ[ISA_VARIABLE]
    raise UsageError(f"torch's kernels for {dtype} crash on this CPU (SIGILL)", hint="--precision fp32")


def faults(dtype: torch.dtype) -> bool:
    """Whether a small step kills a child process by an illegal instruction.

    Linux only, False elsewhere: another system's libraries do not survive a fork.
    """
    if sys.platform != "linux":
        return False
    child = os.fork()
    if child == 0:
        # No exception may leave the child, because it shares the parent's open files. An exception means that torch
        # refuses the type: the CPU does not fault.
        try:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            faulthandler.disable()
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            _small_step(dtype)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGILL


def _small_step(dtype: torch.dtype) -> None:
    """Run a convolution and a matrix product, forward and backward, on one thread: forks have no thread pool."""
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Conv2d(16, 32, 3), nn.Flatten(), nn.Linear(32 * 36, 64)).to(dtype)
    model(torch.randn(4, 16, 8, 8, dtype=dtype)).sum().backward()
    torch.mm(*(torch.randn(128, 128, dtype=dtype) for _ in range(2)))


# --- sensors of NVIDIA's GPUs, through `pynvml` of nvidia-ml-py if it is installed
# Functions, units and error codes: docs.nvidia.com/deploy/nvml-api. Each field is read on its own: a query that a GPU,
# a driver or a virtual GPU does not support loses only its own field.

MW_PER_W, MJ_PER_J = 1000, 1000

VIRTUALIZATION_MODES = {0: "none", 1: "passthrough", 2: "vgpu", 3: "host_vgpu", 4: "host_vsga"}


@dataclass(frozen=True, kw_only=True)
class GpuSensors:
    """A GPU, open for queries."""

    library: ModuleType
    handle: object

    @classmethod
    def open(cls, index: int, *, library: ModuleType | None = None, properties: object = None) -> "GpuSensors | None":
        """Open the GPU that torch calls `cuda:index`; None without NVML, or if it is uncertain which GPU that is.

        `properties`: torch's properties of that device. CUDA numbers the devices in CUDA_VISIBLE_DEVICES, the fastest
        first; NVML numbers all devices by bus address. Only UUID and bus address identify a GPU in both.
        """
        library = library or _load()
        if library is None:
            return None
        if properties is None:
            properties = torch.cuda.get_device_properties(index)
        for find in _handles(library, properties):
            handle = _guarded(library, find)
            if handle is not None:
                return cls(library=library, handle=handle)
        return None

    def identity(self) -> dict[str, object]:
        """Facts that do not change during a run and that torch does not tell; None for a fact that the GPU hides."""
        ask, sm, memory = self._ask, self.library.NVML_CLOCK_SM, self.library.NVML_CLOCK_MEM
        return {
            "uuid": _text(ask("nvmlDeviceGetUUID")),
            "gpu_index": ask("nvmlDeviceGetIndex"),
            "serial": _text(ask("nvmlDeviceGetSerial")),
            "driver_version": _text(_query(self.library, "nvmlSystemGetDriverVersion")),
            "vbios_version": _text(ask("nvmlDeviceGetVbiosVersion")),
            "memory_total_bytes": getattr(ask("nvmlDeviceGetMemoryInfo"), "total", None),
            "memory_bus_width_bits": ask("nvmlDeviceGetMemoryBusWidth"),
            # The queries for ECC and MIG return two modes: the current mode, and the mode after the next reset.
            "ecc_enabled": _current(ask("nvmlDeviceGetEccMode")),
            "mig_enabled": _current(ask("nvmlDeviceGetMigMode")),
            "virtualization_mode": VIRTUALIZATION_MODES.get(ask("nvmlDeviceGetVirtualizationMode")),
            "power_limit_default_w": _watts(ask("nvmlDeviceGetPowerManagementDefaultLimit")),
            "power_limit_enforced_w": _watts(ask("nvmlDeviceGetEnforcedPowerLimit")),
            "sm_clock_max_mhz": ask("nvmlDeviceGetMaxClockInfo", sm),
            "memory_clock_max_mhz": ask("nvmlDeviceGetMaxClockInfo", memory),
            "sm_clock_application_mhz": ask("nvmlDeviceGetApplicationsClock", sm),
            "memory_clock_application_mhz": ask("nvmlDeviceGetApplicationsClock", memory),
            # An idle GPU lowers the speed of its PCIe link: these current values are the values of an idle GPU.
            "pcie_generation": ask("nvmlDeviceGetCurrPcieLinkGeneration"),
            "pcie_generation_max": ask("nvmlDeviceGetMaxPcieLinkGeneration"),
            "pcie_width": ask("nvmlDeviceGetCurrPcieLinkWidth"),
            "pcie_width_max": ask("nvmlDeviceGetMaxPcieLinkWidth"),
        }

    def sample(self) -> dict[str, float | None]:
        """Readings that change during a run; `clock_event_reasons`: NVML's bit mask of reasons for low clocks."""
        ask = self._ask
        return {
            "sm_clock_mhz": ask("nvmlDeviceGetClockInfo", self.library.NVML_CLOCK_SM),
            "memory_clock_mhz": ask("nvmlDeviceGetClockInfo", self.library.NVML_CLOCK_MEM),
            "temperature_c": ask("nvmlDeviceGetTemperature", self.library.NVML_TEMPERATURE_GPU),
            "power_w": self._power_w(),
            "clock_event_reasons": self._clock_event_reasons(),
            "gpu_utilization_percent": getattr(ask("nvmlDeviceGetUtilizationRates"), "gpu", None),
            "memory_used_bytes": getattr(ask("nvmlDeviceGetMemoryInfo"), "used", None),
        }

    def energy_j(self) -> float | None:
        """Energy in joules since the driver was loaded; GPUs before Volta do not count it.

        None for a part of a GPU (MIG): all parts share one counter.
        """
        if _current(self._ask("nvmlDeviceGetMigMode")):
            return None
        millijoules = self._ask("nvmlDeviceGetTotalEnergyConsumption")
        return None if millijoules is None else millijoules / MJ_PER_J

    def _power_w(self) -> float | None:
        """Present power in watts or, on a driver without a query for it, the result of `nvmlDeviceGetPowerUsage`.

        On Ampere (except A100) and later GPUs `nvmlDeviceGetPowerUsage` returns a mean over 1 s.
        """
        field = getattr(self.library, "NVML_FI_DEV_POWER_INSTANT", None)
        values = None if field is None else self._ask("nvmlDeviceGetFieldValues", (field,))
        if values and values[0].nvmlReturn == self.library.NVML_SUCCESS:
            return _watts(values[0].value.uiVal)
        return _watts(self._ask("nvmlDeviceGetPowerUsage"))

    def _clock_event_reasons(self) -> int | None:
        """Bit mask of the reasons for reduced clocks; drivers before 535 know the query only under its old name."""
        reasons: int | None = self._ask("nvmlDeviceGetCurrentClocksEventReasons")
        return self._ask("nvmlDeviceGetCurrentClocksThrottleReasons") if reasons is None else reasons

    def _ask(self, name: str, *arguments: object) -> Any:
        return _query(self.library, name, self.handle, *arguments)


def _load() -> ModuleType | None:
    try:
        library = importlib.import_module("pynvml")
    except ImportError:
        return None
    # The library counts initialisations; the end of the process is the matching shutdown.
    return library if _guarded(library, lambda: library.nvmlInit() or True) else None


def _query(library: ModuleType, name: str, *arguments: object) -> Any:
    """Answer of NVML; None if the GPU refuses the query, or if the installed nvidia-ml-py does not have it."""
    function = getattr(library, name, None)
    return None if function is None else _guarded(library, function, *arguments)


def _guarded(library: ModuleType, function: Callable[..., Any], *arguments: object) -> Any:
    try:
        return function(*arguments)
    except library.NVMLError:
        return None


def _handles(library: ModuleType, properties: object) -> Iterator[Callable[[], object]]:
    """Ways to find the GPU of torch's `properties`, the surest first."""
    if (uuid := getattr(properties, "uuid", None)) is not None:
        yield lambda: library.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    names = ("pci_domain_id", "pci_bus_id", "pci_device_id")
    domain, bus, device = (getattr(properties, name, None) for name in names)
    if domain is not None and bus is not None and device is not None:
        # The bus address also finds the GPU of a MIG slice: a slice's UUID is not its GPU's.
        yield lambda: library.nvmlDeviceGetHandleByPciBusId(f"{domain:08X}:{bus:02X}:{device:02X}.0")
    yield lambda: library.nvmlDeviceGetHandleByIndex(0) if library.nvmlDeviceGetCount() == 1 else None


def _text(value: str | bytes | None) -> str | None:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / MW_PER_W


def _current(modes: tuple[int, int] | list[int] | None) -> bool | None:
    return None if modes is None else bool(modes[0])


def device_facts(machine: HostSystem, name: str) -> dict[str, object]:
    """Facts of a device in torch's form, `cuda:0`: `type` and `name` always, the other keys depend on the type."""
    device = torch.device(name)
    match device.type:
        case "cpu":
            return {"type": "cpu", "name": cpu_model(machine), "threads": torch.get_num_threads()}
        case "cuda":
            # Facts of a GPU from NVML and torch.
            if not torch.cuda.is_available():
                return {"type": "cuda", "name": None}
            index = torch.cuda.current_device() if device.index is None else device.index
            gpu, properties = GpuSensors.open(index), torch.cuda.get_device_properties(index)
            major = getattr(properties, "major", None)
            return {
                "type": "cuda",
                "index": index,
                **(gpu.identity() if gpu else {}),
                "name": getattr(properties, "name", None),
                "sm_count": getattr(properties, "multi_processor_count", None),
                "compute_capability": None if major is None else f"{major}.{getattr(properties, 'minor', None)}",
            }
        case "mps":
            return {"type": "mps", **apple_gpu_facts(machine)}
        case other:
            return {"type": other, "name": None}

"""Interface to NVML, NVIDIA's management library, through `pynvml` of nvidia-ml-py if it is installed.

Functions, units and error codes: docs.nvidia.com/deploy/nvml-api. Each field is read on its own: a query that a GPU, a
driver or a virtual GPU does not support loses only its own field.
"""

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

MW_PER_W = 1000

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
    """Decode text, which old bindings return as bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / MW_PER_W


def _current(modes: tuple[int, int] | list[int] | None) -> bool | None:
    return None if modes is None else bool(modes[0])

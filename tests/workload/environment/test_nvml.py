import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from workload.environment.device import GpuSensors


class FakeNvml(ModuleType):
    """A machine's NVML: knows the queries in `answers`, and no other; `unsupported` fail as on a GPU without them."""

    NVML_CLOCK_SM = 1
    NVML_CLOCK_MEM = 2
    NVML_TEMPERATURE_GPU = 0
    NVML_FI_DEV_POWER_INSTANT = 186
    NVML_SUCCESS = 0

    class NVMLError(Exception):
        pass

    def __init__(self, *gpus: dict[str, Any], unsupported: set[str] | None = None, old: set[str] | None = None) -> None:
        super().__init__("pynvml")
        self._gpus = gpus
        self._unsupported = unsupported or set()
        self._old = old or set()
        self.initialised = 0

    def __getattr__(self, name: str) -> Any:
        if name in self._old:
            raise AttributeError(name)
        own = {
            "nvmlInit": self._init,
            "nvmlSystemGetDriverVersion": lambda: self._checked(name, "580.65.06"),
            "nvmlDeviceGetCount": lambda: self._checked(name, len(self._gpus)),
            "nvmlDeviceGetHandleByIndex": lambda index: self._checked(name, range(len(self._gpus))[index]),
            "nvmlDeviceGetHandleByUUID": lambda uuid: self._find("nvmlDeviceGetUUID", uuid),
            "nvmlDeviceGetHandleByPciBusId": lambda bus: self._find("bus", bus),
        }
        if name in own:
            return own[name]
        assert name in ANSWERS, f"not a query of the fake: {name}"
        return lambda handle, *arguments: self._answer(handle, name, *arguments)

    def _answer(self, handle: int, name: str, *arguments: object) -> Any:
        answer = self._checked(name, {**ANSWERS, **self._gpus[handle]}[name])
        return answer[arguments] if isinstance(answer, dict) else answer

    def _checked(self, name: str, answer: Any) -> Any:
        assert self.initialised, "asked before nvmlInit"
        if name in self._unsupported:
            raise self.NVMLError(name)
        return answer

    def _init(self) -> None:
        if "nvmlInit" in self._unsupported:
            raise self.NVMLError("driver not loaded")
        self.initialised += 1

    def _find(self, key: str, value: str) -> int:
        found = [index for index, gpu in enumerate(self._gpus) if gpu.get(key) == value]
        if not found:
            raise self.NVMLError("not found")
        return found[0]


ANSWERS: dict[str, Any] = {
    "nvmlDeviceGetUUID": "GPU-aaaa",
    "nvmlDeviceGetIndex": 0,
    "nvmlDeviceGetSerial": "0323420012345",
    "nvmlDeviceGetVbiosVersion": "90.04.96.00.01",
    "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=16_106_127_360, used=500_000_000, free=1),
    "nvmlDeviceGetMemoryBusWidth": 256,
    "nvmlDeviceGetEccMode": [1, 0],
    "nvmlDeviceGetMigMode": [0, 1],
    "nvmlDeviceGetTotalEnergyConsumption": 7_000_250,
    "nvmlDeviceGetVirtualizationMode": 1,
    "nvmlDeviceGetPowerManagementDefaultLimit": 70_000,
    "nvmlDeviceGetEnforcedPowerLimit": 65_500,
    "nvmlDeviceGetMaxClockInfo": {(1,): 1590, (2,): 5001},
    "nvmlDeviceGetApplicationsClock": {(1,): 585, (2,): 5000},
    "nvmlDeviceGetCurrPcieLinkGeneration": 1,
    "nvmlDeviceGetMaxPcieLinkGeneration": 3,
    "nvmlDeviceGetCurrPcieLinkWidth": 8,
    "nvmlDeviceGetMaxPcieLinkWidth": 16,
    "nvmlDeviceGetClockInfo": {(1,): 1350, (2,): 5000},
    "nvmlDeviceGetTemperature": {(0,): 61},
    "nvmlDeviceGetPowerUsage": 69_250,
    # A T4 has no such field.
    "nvmlDeviceGetFieldValues": {((186,),): [SimpleNamespace(nvmlReturn=3, value=SimpleNamespace(uiVal=0))]},
    "nvmlDeviceGetCurrentClocksEventReasons": 4,
    "nvmlDeviceGetCurrentClocksThrottleReasons": 8,
    "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=97, memory=40),
}


def initialised(*gpus: dict[str, Any], **options: set[str]) -> FakeNvml:
    library = FakeNvml(*gpus, **options)
    library.nvmlInit()
    return library


def opened(*gpus: dict[str, Any], **options: set[str]) -> GpuSensors:
    return GpuSensors(library=initialised(*(gpus or ({},)), **options), handle=0)


def facts_of(gpu: GpuSensors) -> dict[str, Any]:
    return {**gpu.identity(), **gpu.sample()}


def test_facts_and_those_that_are_lost_with_a_query(golden: Callable[[str, str], None]) -> None:
    whole = facts_of(opened())
    text = "\n".join(f"{name}: {value!r}" for name, value in whole.items())
    for query in ("nvmlSystemGetDriverVersion", *ANSWERS):
        left = facts_of(opened(unsupported={query}))
        lost = [name for name in whole if left[name] is None]
        assert left == whole | dict.fromkeys(lost) | {"clock_event_reasons": left["clock_event_reasons"]}
        text += f"\n\nwithout {query}\n{', '.join(lost) or 'nothing is lost'}"
    golden("nvml.txt", f"{text}\n")


def test_a_query_newer_than_the_installed_package_loses_its_fields_alone() -> None:
    whole = opened().identity()
    assert opened(old={"nvmlDeviceGetMigMode"}).identity() == {**whole, "mig_enabled": None}


INSTANT = {
    "nvmlDeviceGetFieldValues": {((186,),): [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=71_500))]}
}
OLD_NAME, NEW_NAME = "nvmlDeviceGetCurrentClocksThrottleReasons", "nvmlDeviceGetCurrentClocksEventReasons"
# Answers of another GPU, and queries that it does not support.
VARIANTS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "clock reasons by the old name": ({}, {NEW_NAME}),
    "clock reasons by the new name": ({}, {OLD_NAME}),
    "no clock reasons": ({}, {OLD_NAME, NEW_NAME}),
    "power of now": (INSTANT, set()),
    "power of now, old driver": (INSTANT, {"nvmlDeviceGetFieldValues"}),
    "a serial number in bytes": ({"nvmlDeviceGetSerial": b"0323"}, set()),
    "ECC off": ({"nvmlDeviceGetEccMode": (0, 1)}, set()),
    **{f"virtualization mode {mode}": ({"nvmlDeviceGetVirtualizationMode": mode}, set()) for mode in (0, 2, 99)},
}


def test_facts_of_other_gpus(golden: Callable[[str, str], None]) -> None:
    whole, text = facts_of(opened()), ""
    for name, (answers, unsupported) in VARIANTS.items():
        facts = facts_of(opened(answers, unsupported=unsupported))
        other = {field: value for field, value in facts.items() if value != whole[field]}
        text += f"{name}: {other or 'nothing is other'}\n"
    golden("nvml_variants.txt", text)


TWO = (
    {"nvmlDeviceGetUUID": "GPU-aaaa", "bus": "00000000:05:00.0"},
    {"nvmlDeviceGetUUID": "GPU-bbbb", "bus": "00000001:AF:1C.0"},
)
ON_BUS = {"pci_domain_id": 1, "pci_bus_id": 0xAF, "pci_device_id": 0x1C}


DEVICES = {
    "UUID": (TWO, {"uuid": "bbbb"}, 1),
    "UUID before bus": (TWO, {"uuid": "aaaa", **ON_BUS}, 0),
    "MIG: by the bus": (TWO, {"uuid": "a slice's", **ON_BUS}, 1),
    "bus": (TWO, ON_BUS, 1),
    "half a bus address": (TWO, {**ON_BUS, "pci_device_id": None}, None),
    "another machine's UUID": (TWO, {"uuid": "cccc"}, None),
    "two and no sign": (TWO, {}, None),
    "the only one": (TWO[1:], {}, 0),
    "none": ((), {}, None),
}


@pytest.mark.parametrize(("gpus", "properties", "handle"), DEVICES.values(), ids=DEVICES.keys())
def test_open_finds_torchs_device(
    gpus: tuple[dict[str, Any], ...], properties: dict[str, object], handle: int | None
) -> None:
    gpu = GpuSensors.open(0, library=initialised(*gpus), properties=SimpleNamespace(**properties))
    assert (gpu and gpu.handle) == handle


def test_open_asks_torch_for_that_device(monkeypatch: pytest.MonkeyPatch) -> None:
    uuids = {3: SimpleNamespace(uuid="bbbb")}
    monkeypatch.setattr("torch.cuda.get_device_properties", uuids.__getitem__)
    gpu = GpuSensors.open(3, library=initialised(*TWO))
    assert gpu.identity()["uuid"] == "GPU-bbbb"


def test_open_loads_and_initialises_the_installed_library(monkeypatch: pytest.MonkeyPatch) -> None:
    library = FakeNvml(*TWO)
    monkeypatch.setitem(sys.modules, "pynvml", library)
    gpu = GpuSensors.open(0, properties=SimpleNamespace(uuid="aaaa"))
    assert gpu is not None
    assert library.initialised == 1


@pytest.mark.parametrize("library", [FakeNvml(unsupported={"nvmlInit"}), None], ids=["no driver", "no package"])
def test_open_without_nvml(monkeypatch: pytest.MonkeyPatch, library: FakeNvml | None) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", library)
    assert GpuSensors.open(0, properties=SimpleNamespace(uuid="aaaa")) is None


def test_every_query_exists_in_nvidia_ml_py() -> None:
    """The names in the fake's table are those of the real library."""
    library = pytest.importorskip("pynvml")
    names = {*ANSWERS, "nvmlInit", "nvmlDeviceGetHandleByUUID", "nvmlDeviceGetHandleByPciBusId"}
    assert [name for name in sorted(names) if not callable(getattr(library, name, None))] == []
    constants = ("NVML_CLOCK_SM", "NVML_CLOCK_MEM", "NVML_TEMPERATURE_GPU")
    assert [getattr(library, name) for name in constants] == [getattr(FakeNvml, name) for name in constants]
    assert issubclass(library.NVMLError, Exception)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_this_gpu() -> None:
    gpu = GpuSensors.open(0)
    assert gpu.identity()["driver_version"]
    assert (gpu.sample()["memory_used_bytes"] or 0) > 0

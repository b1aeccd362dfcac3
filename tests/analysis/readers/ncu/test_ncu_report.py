"""Reports through NVIDIA's module: a fake of it with the calls that are used, and the real one where it is there."""

import importlib
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from analysis.readers import ncu
from analysis.readers.ncu import NcuFileError
from tests.analysis.readers.ncu.ncu_files import FADD, FFMA, FMUL, TIME, save
from workload.contract.errors import ExitCode, ToolError


class Action:
    NameBase_DEMANGLED = 1

    def __init__(
        self, name: str | None, metrics: dict[str, tuple[float | str | None, str]], state: SimpleNamespace | None
    ) -> None:
        self._name, self._state = name, state
        self._metrics = {
            metric: SimpleNamespace(value=lambda value=value: value, unit=lambda unit=unit: unit)
            for metric, (value, unit) in metrics.items()
        }

    def name(self, base: int = 0) -> str | None:
        return f"void {self._name}<float>(int)" if base == self.NameBase_DEMANGLED and self._name else self._name

    def metric_names(self) -> tuple[str, ...]:
        return tuple(self._metrics)

    def metric_by_name(self, name: str) -> SimpleNamespace | None:
        return self._metrics.get(name)

    def nvtx_state(self) -> SimpleNamespace | None:
        return self._state


METRICS = {
    TIME: (31872.0, "ns"),
    "dram__bytes.sum": (4195712, "byte"),
    FADD: (1.0, "inst"),
    FMUL: (2.0, "inst"),
    FFMA: (3.0, "inst"),
    "device__attribute_display_name": ("NVIDIA L4", ""),
    "device__attribute_multiprocessor_count": (58.0, ""),
    "device__attribute_compute_capability_major": (8.0, ""),
    "device__attribute_compute_capability_minor": (9.0, ""),
    **{f"launch__{what}_dim_{axis}": (size, "") for what, size in (("block", 256.0), ("grid", 7.0)) for axis in "xyz"},
}
DOMAIN = SimpleNamespace(start_end_ranges=lambda: ("step 0 forward",), push_pop_ranges=lambda: ("inner",))
STATE = SimpleNamespace(domains=lambda: (0,), domain_by_id=[DOMAIN].__getitem__)


@pytest.fixture
def actions(monkeypatch: pytest.MonkeyPatch) -> list[list[Action]]:
    """What the report holds, by range."""
    content: list[list[Action]] = [[]]
    module = ModuleType("ncu_report")
    module.load_report = lambda _: content  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ncu_report", module)
    return content


@pytest.fixture
def report(tmp_path: Path) -> Path:
    return save(tmp_path, b"NVR\x00rest", "a report.ncu-rep")


def test_report(actions: list[list[Action]], report: Path) -> None:
    actions[0].append(Action("k", METRICS, STATE))
    actions.append([Action("l", {TIME: (1e3, "usecond"), "dram__bytes.sum": (None, "byte")}, None)])
    found = ncu.read(report)
    first, second = found.kernels.to_dict("records")
    assert first["name"] == "void k<float>(int)"
    assert first["range"] == "step 0 forward/inner"
    assert (first["block"], first["grid"]) == ("(256, 256, 256)", "(7, 7, 7)")
    assert (first["device"], first["compute_capability"]) == ("NVIDIA L4", "8.9")
    assert first["duration_s"] == pytest.approx(31.872e-6)
    assert (first["dram_bytes"], first["flop"]) == (4195712, 9)
    assert second["duration_s"] == pytest.approx(1e-3)
    assert second["dram_bytes"] != second["dram_bytes"], "no value is not 0"
    assert found.attributes["device__attribute_multiprocessor_count"] == "58"


@pytest.mark.parametrize("content", [[], [Action(None, {}, None)]], ids=["nothing", "cut off"])
def test_report_without_kernels(content: list[Action], actions: list[list[Action]], report: Path) -> None:
    actions[0].extend(content)
    with pytest.raises(NcuFileError) as caught:
        ncu.read(report)
    assert caught.value.reason == "ncu_report cannot read it: it contains no kernel"
    assert caught.value.hint == f"ncu --import '{report}' shows what ncu itself reads in it"


@pytest.mark.usefixtures("actions")
def test_report_that_the_module_refuses(report: Path) -> None:
    def refuse(_: str) -> None:
        raise RuntimeError("unsupported version")

    sys.modules["ncu_report"].load_report = refuse  # type: ignore[attr-defined]
    with pytest.raises(NcuFileError, match="ncu_report cannot read it: unsupported version"):
        ncu.read(report)


def test_what_is_no_report(tmp_path: Path) -> None:
    path = save(tmp_path, "ID,Kernel Name\n", "a.ncu-rep")
    with pytest.raises(NcuFileError) as caught:
        ncu.read(path)
    assert caught.value.reason == "its name ends in .ncu-rep, but it is no report"


def test_without_the_module(report: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> ModuleType:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(ToolError) as caught:
        ncu.read(report)
    export = f"LC_ALL=C ncu --import '{report}' --csv --page raw --print-units base > kernels.csv"
    assert str(caught.value) == f"'{report}' is a report of Nsight Compute, and there is no ncu_report to read it with"
    assert caught.value.hint == f"pip install ncu-report, or {export}"
    assert caught.value.exit_code is ExitCode.TOOL


def test_the_real_module_refuses_what_is_cut_off(report: Path) -> None:
    pytest.importorskip("ncu_report")
    with pytest.raises(NcuFileError):
        ncu.read(report)

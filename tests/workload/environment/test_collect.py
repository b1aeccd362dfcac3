import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.workload.conftest import SILENT, LayOut
from workload.environment.cloud import outside_facts
from workload.environment.collect import collect
from workload.environment.device import device_facts

SECTIONS = ["host", "device", "software", "cloud", "container", "slurm"]


def test_an_unknown_machine_still_has_every_section(lay_out: LayOut) -> None:
    facts = collect(device="cpu", machine=lay_out(tools=SILENT))
    assert list(facts) == SECTIONS
    assert [facts[name] for name in ("cloud", "container", "slurm")] == [None] * 3
    assert facts["device"] == {"type": "cpu", "name": None, "threads": torch.get_num_threads()}


def test_sections_that_apply(lay_out: LayOut, tmp_path: Path) -> None:
    machine = lay_out(
        {"/.dockerenv": "", "/proc/cpuinfo": "model name\t: Xeon\nflags\t: fpu\n"},
        environ={"SLURM_JOB_ID": "7", "GCE_METADATA_HOST": ":"},
        tools=SILENT,
    )
    facts: dict[str, Any] = collect(device="cpu", dataset_path=tmp_path, machine=machine)
    assert facts["container"]["runtime"] == "docker"
    assert facts["slurm"]["job_id"] == "7"
    assert facts["device"]["name"] == "Xeon"
    assert facts["host"]["dataset_storage"]["free_bytes"] > 0


def test_what_a_launcher_read_on_the_host_wins_where_it_knows(lay_out: LayOut) -> None:
    machine = lay_out({"/proc/sys/kernel/hostname": "3f2a\n", "/.dockerenv": ""}, tools=SILENT)
    outside = {
        "host": {"hostname": "lab7", "os": None},
        "cloud": {"zone": "us-central1-a"},
        "container": {"image": "rooflaunch:cpu"},
    }
    facts: dict[str, Any] = collect(device="cpu", machine=machine, outside=outside)
    assert facts["host"]["hostname"] == "lab7"
    assert "memory_total_bytes" in facts["host"], "what only the container knows stays"
    assert facts["cloud"] == {"zone": "us-central1-a"}
    assert (facts["container"]["runtime"], facts["container"]["image"]) == ("docker", "rooflaunch:cpu")
    assert facts["slurm"] is None


def test_outside_facts_are_the_sections_that_apply(lay_out: LayOut) -> None:
    machine = lay_out({"/proc/sys/kernel/hostname": "lab7\n"}, environ={"SLURM_JOB_ID": "7"}, tools=SILENT)
    facts = outside_facts(machine)
    assert list(facts) == ["host", "slurm"]
    assert facts["host"]["hostname"] == "lab7"


@pytest.mark.world
def test_this_machine_fits_into_json_and_holds_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "do-not-record")
    text = json.dumps(collect(device="cpu", dataset_path=Path("/")))
    assert list(json.loads(text)) == SECTIONS
    assert "do-not-record" not in text


PROPERTIES = SimpleNamespace(
    name="Tesla T4",
    major=7,
    minor=5,
    multi_processor_count=40,
)


class Torch:
    """A torch with two GPUs, of which the second is current."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, available: bool = True) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
        monkeypatch.setattr(torch.cuda, "get_device_properties", {0: PROPERTIES, 1: PROPERTIES}.__getitem__)


class Opened:
    """Stand-in for GpuSensors that records which index was opened."""

    def __init__(self, identity: dict[str, object] | None) -> None:
        self.opened: list[int] = []
        self._identity = identity

    def open(self, index: int) -> "Opened | None":
        self.opened.append(index)
        return None if self._identity is None else self

    def identity(self) -> dict[str, object]:
        return self._identity


TORCH_FACTS = {
    "type": "cuda",
    "name": "Tesla T4",
    "compute_capability": "7.5",
    "sm_count": 40,
}


@pytest.mark.parametrize(
    ("device", "index", "identity"),
    [
        ("cuda:0", 0, {"driver_version": "580.65.06", "memory_total_bytes": 16_000_000_000}),
        ("cuda", 1, None),
    ],
    ids=["with NVML", "current device, no NVML"],
)
def test_cuda_device(
    lay_out: LayOut,
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    index: int,
    identity: dict[str, object] | None,
) -> None:
    Torch(monkeypatch)
    gpu = Opened(identity)
    monkeypatch.setattr("workload.environment.device.GpuSensors", gpu)
    assert device_facts(lay_out(), device) == {**(identity or {}), **TORCH_FACTS, "index": index}
    assert gpu.opened == [index]


def test_cuda_that_is_not_there(lay_out: LayOut, monkeypatch: pytest.MonkeyPatch) -> None:
    Torch(monkeypatch, available=False)
    assert device_facts(lay_out(), "cuda") == {"type": "cuda", "name": None}


def test_other_devices(lay_out: LayOut) -> None:
    files = {"/proc/cpuinfo": "model name\t: Apple M3\n", "/proc/meminfo": "MemTotal: 8 kB\n"}
    machine = lay_out(files, tools={"ioreg": '"gpu-core-count" = 10'})
    apple = {"type": "mps", "name": "Apple M3 (10-core GPU)", "sm_count": 10, "memory_total_bytes": 8192}
    assert device_facts(machine, "mps") == apple
    assert device_facts(machine, "xpu") == {"type": "xpu", "name": None}

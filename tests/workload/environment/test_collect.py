"""All sections together, from this machine and from the one around a container."""

import json
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.workload.conftest import SILENT, LayOut
from workload.environment.cloud import outside_facts, slurm_facts
from workload.environment.collect import SectionsBeside, collect, host_sections
from workload.environment.device import device_facts
from workload.environment.machine import HostSystem

SECTIONS = ["host", "device", "software", "cloud", "container", "slurm"]


def test_an_unknown_machine_still_has_every_section(lay_out: LayOut) -> None:
    machine = lay_out(tools=SILENT)
    facts = collect(device=device_facts(machine, "cpu"), machine=machine)
    assert list(facts) == SECTIONS
    assert [facts[name] for name in ("cloud", "container", "slurm")] == [None] * 3
    assert facts["device"] == {"type": "cpu", "name": None, "threads": torch.get_num_threads()}


def test_sections_that_apply(lay_out: LayOut, tmp_path: Path) -> None:
    machine = lay_out(
        {"/.dockerenv": "", "/proc/cpuinfo": "model name\t: Xeon\nflags\t: fpu\n"},
        environ={"SLURM_JOB_ID": "7", "GCE_METADATA_HOST": ":"},
        tools=SILENT,
    )
    facts: dict[str, Any] = collect(device=device_facts(machine, "cpu"), dataset_path=tmp_path, machine=machine)
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
    facts: dict[str, Any] = collect(device={}, machine=machine, outside=outside)
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
    text = json.dumps(collect(device=device_facts(HostSystem(), "cpu"), dataset_path=Path("/")))
    assert list(json.loads(text)) == SECTIONS
    assert "do-not-record" not in text


PROPERTIES = SimpleNamespace(name="Tesla T4", major=7, minor=5, multi_processor_count=40)


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


TORCH_FACTS = {"type": "cuda", "name": "Tesla T4", "compute_capability": "7.5", "sm_count": 40}


@pytest.mark.parametrize(
    ("device", "index", "identity"),
    [("cuda:0", 0, {"driver_version": "580.65.06", "memory_total_bytes": 16_000_000_000}), ("cuda", 1, None)],
    ids=["with NVML", "current device, no NVML"],
)
def test_cuda_device(
    lay_out: LayOut, monkeypatch: pytest.MonkeyPatch, device: str, index: int, identity: dict[str, object] | None
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
    assert device_facts(machine, torch.device("mps")) == apple
    assert device_facts(machine, torch.device("xpu")) == {"type": "xpu", "name": None}


FILES = {"/proc/sys/kernel/hostname": "lab7\n", "/.dockerenv": ""}


def test_a_thread_collects_the_same(lay_out: LayOut) -> None:
    machine = lay_out(FILES, environ={"SLURM_JOB_ID": "7"}, tools=SILENT)
    sections = SectionsBeside(machine).wait()
    assert sections == host_sections(machine)
    assert sections["host"] is not None
    assert sections["host"]["hostname"] == "lab7"
    assert "environment" not in {thread.name for thread in threading.enumerate()}


def test_what_is_known_is_not_collected_again(lay_out: LayOut) -> None:
    known = SectionsBeside(lay_out(FILES, tools=SILENT)).wait()
    # Without `known`, this machine's tools would be asked, which is an error.
    facts = collect(device={}, machine=lay_out(), known=known)
    assert facts["host"] == {**(known["host"] or {}), "dataset_storage": None}
    assert facts["container"] == known["container"]
    assert facts["software"]["commit"] == known["software"]["commit"]  # type: ignore[index]


@pytest.mark.parametrize("failures", [1, 2])
def test_a_thread_that_failed_is_replaced_by_its_caller(lay_out: LayOut, failures: int) -> None:
    machine, asked = lay_out(FILES, tools=SILENT), list[str]()

    def tool(*argv: str) -> str | None:
        asked.append(argv[0])
        if len(asked) <= failures:
            raise RuntimeError("no memory for a process")
        return None

    beside = SectionsBeside(replace(machine, tool=tool))
    if failures == 1:
        assert beside.wait() == host_sections(machine)
    else:
        with pytest.raises(RuntimeError, match="no memory for a process"):
            beside.wait()


def test_outside_a_job(lay_out: LayOut) -> None:
    assert slurm_facts(lay_out(environ={"SLURM_CLUSTER_NAME": "c", "SLURM_CONF": "/etc/slurm.conf"})) is None


def test_inside_a_job(lay_out: LayOut) -> None:
    environ = {
        "SLURM_JOB_ID": "4242",
        "SLURM_JOB_PARTITION": "gpu",
        "SLURMD_NODENAME": "n01",
        "SLURM_CPUS_PER_TASK": "8",
        "SLURM_GPUS_ON_NODE": "1",
        "SLURM_RESTART_COUNT": "1",
        "SLURM_JWT": "a credential",
    }
    facts = slurm_facts(lay_out(environ=environ)) or {}
    assert {name: value for name, value in facts.items() if value is not None} == {
        "job_id": "4242",
        "partition": "gpu",
        "node_name": "n01",
        "cpus_per_task": 8,
        "gpus_on_node": "1",
        "restart_count": 1,
    }
    assert facts["cluster"] is None

"""Collects all facts of a run's hardware and software that could explain a difference between runs."""

from collections.abc import Mapping
from pathlib import Path

import torch

from workload.environment.container import storage_facts
from workload.environment.host import apple_gpu_facts, cpu_model
from workload.environment.host_sections import Sections, host_sections
from workload.environment.machine import HostSystem
from workload.environment.nvml import GpuSensors
from workload.environment.software import software_facts


def collect(
    *,
    device: str,
    dataset_path: Path | None = None,
    machine: HostSystem | None = None,
    outside: Mapping[str, Mapping[str, object]] | None = None,
    known: Sections | None = None,
) -> dict[str, object]:
    """Sections of run.json's `environment`; `device` in torch's form: `cuda:0`.

    None stands for a fact that cannot be read, and for a section that does not apply: `cloud` off a cloud's VMs,
    `container` outside of containers, `slurm` outside of a job. `outside`: facts that a launcher read on the host,
    with priority over facts read here. `known`: sections of `host_sections`, if they are collected already.
    """
    machine = machine or HostSystem()
    known = known or host_sections(machine)
    storage = None if dataset_path is None else storage_facts(machine, dataset_path)
    sections = {
        "host": {**(known["host"] or {}), "dataset_storage": storage},
        "device": device_facts(machine, torch.device(device)),
        "software": software_facts(machine, known["software"]),
        "cloud": known["cloud"],
        "container": known["container"],
        "slurm": known["slurm"],
    }
    merged: dict[str, dict[str, object] | None] = {}
    for name, section in sections.items():
        seen = {fact: value for fact, value in (outside or {}).get(name, {}).items() if value is not None}
        merged[name] = {**(section or {}), **seen} if section is not None or seen else None
    cloud, device_found = merged["cloud"], merged["device"] or {}
    if cloud and cloud.get("provider") == "ec2":
        # EC2 does not tell the host, so the GPU in it stands for the host.
        host = cloud.get("physical_host") or device_found.get("serial") or device_found.get("uuid")
        merged["cloud"] = {**cloud, "physical_host": host}
    return {**merged}


def device_facts(machine: HostSystem, device: torch.device) -> dict[str, object]:
    """Facts of a device: `type` and `name` always, the other keys depend on the type."""
    match device.type:
        case "cpu":
            return {"type": "cpu", "name": cpu_model(machine), "threads": torch.get_num_threads()}
        case "cuda":
            return _cuda_facts(device)
        case "mps":
            return {"type": "mps", **apple_gpu_facts(machine)}
        case other:
            return {"type": other, "name": None}


def _cuda_facts(device: torch.device) -> dict[str, object]:
    """Facts of a GPU from NVML and torch."""
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

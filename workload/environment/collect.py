"""Collects all facts of a run's hardware and software that could explain a difference between runs.

Only `collect` needs torch: a thread collects the other sections while torch is imported.
"""

import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from workload.environment.cloud import cloud_facts, slurm_facts
from workload.environment.container import container_facts, storage_facts
from workload.environment.host import host_facts
from workload.environment.machine import HostSystem
from workload.environment.software import facts_without_torch, software_facts

# Facts by section. The section `software` has only what needs no torch; None: the section does not apply.
Sections = Mapping[str, Mapping[str, object] | None]


def host_sections(machine: HostSystem) -> Sections:
    """Collect the sections. Child processes and a request to a metadata server may take up to four seconds together."""
    return {
        "host": host_facts(machine),
        "software": facts_without_torch(machine),
        "cloud": cloud_facts(machine),
        "container": container_facts(machine),
        "slurm": slurm_facts(machine),
    }


class SectionsBeside:
    """Sections that a thread collects from now on."""

    def __init__(self, machine: HostSystem | None = None) -> None:
        self._machine = machine or HostSystem()
        self._sections: Sections | None = None
        self._thread = threading.Thread(target=self._collect, name="environment", daemon=True)
        self._thread.start()

    def wait(self) -> Sections:
        """Sections, once the thread has ended. If it failed, they are collected again here, and its error is raised."""
        self._thread.join()
        return self._sections or host_sections(self._machine)

    def _collect(self) -> None:
        with suppress(Exception):
            self._sections = host_sections(self._machine)


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
    from workload.environment import device as device_module  # noqa: PLC0415 - imports torch

    machine = machine or HostSystem()
    known = known or host_sections(machine)
    storage = None if dataset_path is None else storage_facts(machine, dataset_path)
    sections = {
        "host": {**(known["host"] or {}), "dataset_storage": storage},
        "device": device_module.device_facts(machine, device),
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

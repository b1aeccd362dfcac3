"""Sections of run.json's `environment` that need no torch, and a thread that collects them while torch is imported."""

import threading
from collections.abc import Mapping
from contextlib import suppress

from workload.environment.cloud import cloud_facts
from workload.environment.container import container_facts
from workload.environment.host import host_facts
from workload.environment.machine import HostSystem
from workload.environment.outside import slurm_facts
from workload.environment.software import facts_without_torch

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

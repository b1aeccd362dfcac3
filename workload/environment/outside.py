"""Facts of the machine that a container cannot see. Standard library only: a launcher collects them on the host."""

from workload.environment.gce import gce_facts
from workload.environment.machine import HostSystem
from workload.environment.slurm_job import slurm_facts
from workload.environment.system import system_facts


def outside_facts(machine: HostSystem | None = None) -> dict[str, dict[str, object]]:
    """Facts by section of run.json's `environment`; a section that does not apply is absent."""
    machine = machine or HostSystem()
    sections = {"host": system_facts(machine), "cloud": gce_facts(machine), "slurm": slurm_facts(machine)}
    return {name: section for name, section in sections.items() if section is not None}

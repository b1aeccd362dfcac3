"""Facts of the machine that a container cannot see. Standard library only: a launcher collects them on the host."""

from workload.environment.cloud import cloud_facts
from workload.environment.machine import HostSystem, as_integer
from workload.environment.system import system_facts

# Our name -> Slurm's variable (sbatch(1), OUTPUT ENVIRONMENT VARIABLES).
SLURM = {
    "job_id": "SLURM_JOB_ID",
    "cluster": "SLURM_CLUSTER_NAME",
    "partition": "SLURM_JOB_PARTITION",
    "constraint": "SLURM_JOB_CONSTRAINTS",
    "node_name": "SLURMD_NODENAME",
    "gpus_on_node": "SLURM_GPUS_ON_NODE",
}
SLURM_COUNTS = {"cpus_per_task": "SLURM_CPUS_PER_TASK", "restart_count": "SLURM_RESTART_COUNT"}


def outside_facts(machine: HostSystem | None = None) -> dict[str, dict[str, object]]:
    """Facts by section of run.json's `environment`; a section that does not apply is absent."""
    machine = machine or HostSystem()
    sections = {"host": system_facts(machine), "cloud": cloud_facts(machine), "slurm": slurm_facts(machine)}
    return {name: section for name, section in sections.items() if section is not None}


def slurm_facts(machine: HostSystem) -> dict[str, object] | None:
    """Facts of the Slurm job; None outside a job."""
    if "SLURM_JOB_ID" not in machine.environ:
        return None
    facts: dict[str, object] = {name: machine.environ.get(variable) for name, variable in SLURM.items()}
    counts = {name: as_integer(machine.environ.get(variable)) for name, variable in SLURM_COUNTS.items()}
    return {**facts, **counts}

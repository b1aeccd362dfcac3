"""Facts of the machine that a container cannot see. Standard library only: a launcher collects them on the host."""

from workload.environment.cloud import cloud_facts
from workload.environment.machine import HostSystem, as_integer
from workload.environment.system import system_facts

# Our name -> Slurm's variable (sbatch(1), OUTPUT ENVIRONMENT VARIABLES).
SLURM_TEXTS = {
    "job_id": "SLURM_JOB_ID",
    "job_name": "SLURM_JOB_NAME",
    "step_id": "SLURM_STEP_ID",
    "array_job_id": "SLURM_ARRAY_JOB_ID",
    "array_task_id": "SLURM_ARRAY_TASK_ID",
    "cluster": "SLURM_CLUSTER_NAME",
    "partition": "SLURM_JOB_PARTITION",
    "qos": "SLURM_JOB_QOS",
    "constraint": "SLURM_JOB_CONSTRAINTS",
    "node_list": "SLURM_JOB_NODELIST",
    "node_name": "SLURMD_NODENAME",
    "tasks_per_node": "SLURM_TASKS_PER_NODE",
    "gpus": "SLURM_GPUS",
    "gpus_on_node": "SLURM_GPUS_ON_NODE",
    "job_gpus": "SLURM_JOB_GPUS",
    "step_gpus": "SLURM_STEP_GPUS",
    "cpu_binding": "SLURM_CPU_BIND",
}
SLURM_COUNTS = {
    "nodes": "SLURM_JOB_NUM_NODES",
    "tasks": "SLURM_NTASKS",
    "task_rank": "SLURM_PROCID",
    "cpus_per_task": "SLURM_CPUS_PER_TASK",
    "cpus_on_node": "SLURM_CPUS_ON_NODE",
    "memory_per_node_mib": "SLURM_MEM_PER_NODE",
    "memory_per_cpu_mib": "SLURM_MEM_PER_CPU",
    "restart_count": "SLURM_RESTART_COUNT",
}


def outside_facts(machine: HostSystem | None = None) -> dict[str, dict[str, object]]:
    """Facts by section of run.json's `environment`; a section that does not apply is absent."""
    machine = machine or HostSystem()
    sections = {"host": system_facts(machine), "cloud": cloud_facts(machine), "slurm": slurm_facts(machine)}
    return {name: section for name, section in sections.items() if section is not None}


def slurm_facts(machine: HostSystem) -> dict[str, object] | None:
    """Facts of the Slurm job; None outside a job."""
    if "SLURM_JOB_ID" not in machine.environ:
        return None
    return {
        **{name: machine.environ.get(variable) for name, variable in SLURM_TEXTS.items()},
        **{name: as_integer(machine.environ.get(variable)) for name, variable in SLURM_COUNTS.items()},
    }

from tests.workload.conftest import LayOut
from workload.environment.outside import slurm_facts


def test_outside_a_job(lay_out: LayOut) -> None:
    assert slurm_facts(lay_out(environ={"SLURM_CLUSTER_NAME": "c", "SLURM_CONF": "/etc/slurm.conf"})) is None


def test_inside_an_array_job(lay_out: LayOut) -> None:
    environ = {
        "SLURM_JOB_ID": "4242",
        "SLURM_ARRAY_JOB_ID": "4240",
        "SLURM_ARRAY_TASK_ID": "2",
        "SLURM_JOB_PARTITION": "gpu",
        "SLURM_JOB_NODELIST": "n[01-02]",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_CPUS_PER_TASK": "8",
        "SLURM_GPUS_ON_NODE": "1",
        "SLURM_RESTART_COUNT": "1",
        "SLURM_JWT": "a credential",
    }
    facts = slurm_facts(lay_out(environ=environ)) or {}
    assert {name: value for name, value in facts.items() if value is not None} == {
        "job_id": "4242",
        "array_job_id": "4240",
        "array_task_id": "2",
        "partition": "gpu",
        "node_list": "n[01-02]",
        "nodes": 2,
        "cpus_per_task": 8,
        "gpus_on_node": "1",
        "restart_count": 1,
    }
    assert facts["job_name"] is None


def test_a_count_that_is_none(lay_out: LayOut) -> None:
    facts = slurm_facts(lay_out(environ={"SLURM_JOB_ID": "1", "SLURM_CPUS_ON_NODE": "many"})) or {}
    assert facts["cpus_on_node"] is None

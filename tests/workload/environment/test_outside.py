from tests.workload.conftest import LayOut
from workload.environment.cloud import slurm_facts


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

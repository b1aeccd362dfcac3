"""A sweep of twelve runs as one array on a real Slurm, to which everything happens: each is measured in the end."""

import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.slurm import SlurmCluster
from tests.waiting import until
from workload.contract import bundle
from workload.contract.record import Status

pytestmark = [
    pytest.mark.world,
    pytest.mark.timeout(1500),
]
ROOT = Path(__file__).parents[4]
BLOCKS = 12
LONG_S = 900.0
MATRIX = f"""
name = "twelve"
repeats = {BLOCKS}
[defaults]
model = "squeezenet1_1"
warmup = 1
iterations = 3
image_size = 64
ceilings = false
[matrix]
batch_size = [1]
[[on]]
backend = "slurm"
device = "cpu"
python = "{sys.executable}"
time = "20:00"
at_a_time = 3
sbatch = ["--mem=1900"]
"""


def started(cluster: SlurmCluster, folder: Path) -> subprocess.Popen[str]:
    with (folder / "log").open("a") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "launcher", "sweep", "twelve.toml", "--format", "json"],
            cwd=folder,
            env={**cluster.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )


def training(cluster: SlurmCluster) -> list[str]:
    """Slurm's names of the elements whose trainer has begun."""
    begun = [path for path in cluster.ours.glob("launches/*/startup.log") if "phase run_started" in path.read_text()]
    running = set(cluster.queue("RUNNING"))
    elements = [(cluster.ours / "jobs" / path.parent.name / "element").read_text().split() for path in begun]
    numbers = {array: (cluster.ours / "arrays" / array / "job").read_text() for array, _ in elements}
    return [name for array, index in elements if (name := f"{numbers[array]}_{index}") in running]


@pytest.mark.parametrize(
    "cluster",
    [
        pytest.param("accounting", marks=pytest.mark.night(part="kills")),
        pytest.param("plain", marks=pytest.mark.night(part="kills")),
    ],
    indirect=True,
)
def test_whatever_happens_every_run_is_measured_once(cluster: SlurmCluster) -> None:
    """One element cancelled, one sent back in its middle, the controller started again, the launcher killed."""
    (cluster.home / "twelve.toml").write_text(MATRIX)
    launcher = started(cluster, cluster.home)
    until(lambda: len(training(cluster)) >= 2, "no run begins", LONG_S)
    assert len(cluster.queue()) == BLOCKS, "one array with an element for each block"
    again, waits = training(cluster)[0], cluster.queue("PENDING")[-1]
    cluster.run("scontrol", "requeue", again)
    cluster.run("scancel", waits)
    launcher.send_signal(signal.SIGKILL)
    launcher.wait()
    cluster.end("slurmctld")
    cluster.start("slurmctld")
    until(lambda: again in cluster.queue("PENDING"), "it does not wait for another start")
    cluster.run("scontrol", "update", f"jobid={again}", "StartTime=now")
    followed = started(cluster, cluster.home)
    out, _ = followed.communicate(timeout=LONG_S)
    assert followed.returncode == 0, (cluster.home / "log").read_text()
    records = [bundle.read(path.parent).record for path in cluster.home.glob(f"results/*/{bundle.MANIFEST}")]
    completed = Counter(record.run_key for record in records if record.status == Status.COMPLETED)
    assert len(completed) == BLOCKS
    assert set(completed.values()) == {1}
    restarted = [record for record in records if record.environment.slurm and record.environment.slurm.restart_count]
    assert [record.status for record in restarted] == [Status.COMPLETED]
    assert cluster.queue() == []
    assert json.loads(out)["places"][0]["calls"]["slurm.look"] < 10 * BLOCKS

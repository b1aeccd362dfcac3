"""One run on two nodes of a real Slurm: its one bundle, and what is kept when a rank, a node or a process is killed.

Both nodes are this machine: what differs between machines is shown by tests/workload/run/test_machines.py.
"""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.slurm import SlurmCluster
from tests.waiting import until
from tests.workload.run.test_script_ranks import TRAIN
from workload.contract import bundle
from workload.contract.errors import ExitCode
from workload.contract.record import Record, Status

pytestmark = [
    pytest.mark.world,
    pytest.mark.timeout(900),
    pytest.mark.parametrize("cluster", ["plain"], indirect=True),
]
NIGHT = pytest.mark.night(part="places")
ROOT = Path(__file__).parents[4]
TINY = ("--model", "squeezenet1_1", "--batch-size", "2", "--image-size", "64")
LONG = "--iterations=100000"


class Launch:
    """`launch slurm --machines 2` in a folder of the user's."""

    def __init__(self, cluster: SlurmCluster, *words: str) -> None:
        self.folder = cluster.home
        self.log = self.folder / "launch.log"
        own = [word for word in words if word != "--"] if "--" not in words else list(words[: words.index("--")])
        script = list(words[words.index("--") :]) if "--" in words else []
        command = [
            *(sys.executable, "-m", "launcher", "slurm", "--cpu", "--machines", "2", "--python", sys.executable),
            *("--sbatch=--mem=1900", "--warmup", "1", "--no-ceilings", *own, *script),
        ]
        with self.log.open("w") as log:
            environ = {**cluster.environ, "PYTHONPATH": str(ROOT)}
            self.process = subprocess.Popen(command, cwd=self.folder, env=environ, stdout=log, stderr=log)

    def ends(self, code: int = 0) -> Record:
        """Wait for the command's end; return the record of its only bundle, which is complete and sealed."""
        assert self.process.wait(600) == code, self.log.read_text()
        until(lambda: not list(ranks()), lambda: f"processes are left: {list(ranks())}", within_s=30)
        [path] = (self.folder / "results").glob(f"*/{bundle.MANIFEST}")
        self.bundle = path.parent
        return bundle.read(self.bundle).record


def variables(process: str) -> dict[str, str]:
    with suppress(OSError, ValueError):
        content = Path("/proc", process, "environ").read_bytes().decode(errors="replace")
        return dict(word.partition("=")[::2] for word in content.split("\0"))
    return {}


def line_of(path: Path) -> str:
    with suppress(OSError):
        return (path / "cmdline").read_text()
    return ""


def ranks(number: str = "") -> Iterator[int]:
    """Processes of ranks, and what they have started; with a number, those of this rank."""
    for path in Path("/proc").glob("[0-9]*"):
        found = variables(path.name)
        line = line_of(path)
        is_rank = "ROOFLAUNCH_STARTER" in found and "--rank-notes" in line and not line.startswith("srun")
        if is_rank and number in ("", found.get("SLURM_PROCID")):
            yield int(path.name)


def parent_of(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def srun() -> int:
    """The process srun that has started the ranks; it has a child of the same name."""
    found = {int(path.name) for path in Path("/proc").glob("[0-9]*") if line_of(path).startswith("srun\0")}
    [process] = [each for each in found if parent_of(each) not in found]
    return process


def steps(cluster: SlurmCluster) -> int:
    return sum(path.read_bytes().count(b"\n") for path in cluster.home.glob(".rooflaunch/**/ranks/1/steps.csv"))


def measuring(cluster: SlurmCluster) -> None:
    until(lambda: steps(cluster) > 20, (cluster.home / "launch.log").read_text)


def assert_two_machines(record: Record, iterations: int) -> None:
    found, spec = record.ranks, record.spec
    assert found is not None
    assert (record.status, spec.machines, spec.devices, spec.ranks) == (Status.COMPLETED, 2, 1, 2)
    assert (found.number, list(found.steps or ()), list(found.hosts or ())) == (2, [iterations] * 2, ["n1", "n2"])
    assert found.images_per_s == pytest.approx(2 * (record.timing.images_per_s or 0))
    assert all(seconds > 0 for seconds in found.exposed_s or ())
    for ahead_s, other_s, error_s in zip(
        found.clock_start_s or (), found.clock_end_s or (), found.clock_error_s or (), strict=True
    ):
        assert max(abs(ahead_s), abs(other_s)) <= error_s < 0.01, "both nodes have this machine's clock"
    assert record.energy is None, "nobody reads the counters of the other machine"


def test_trainer_on_two_machines_writes_one_bundle(cluster: SlurmCluster) -> None:
    launch = Launch(cluster, *TINY, "--iterations", "6", "--usd-per-h", "0.5")
    record = launch.ends()
    assert_two_machines(record, 6)
    names = {file.name for file in bundle.read(launch.bundle).files}
    assert {"steps.csv", "ranks/1/steps.csv", "ranks/1/collectives.csv", "ranks/1/log.txt", "ranks/hosts.csv"} <= names
    assert record.cost is not None
    assert record.cost.usd_per_h == 1, "of both nodes"


def test_unchanged_script_on_two_machines_is_measured(cluster: SlurmCluster) -> None:
    (cluster.home / "train.py").write_text(TRAIN)
    launch = Launch(cluster, "--iterations", "6", "--include", "*.py", "--", "train.py", "40", "0.01")
    record = launch.ends()
    assert_two_machines(record, 6)
    assert record.spec.script is not None


@NIGHT
def test_duel_of_one_machine_against_two_inside_a_job(cluster: SlurmCluster) -> None:
    short = ("--iterations", "4", "--warmup", "1", "--min-seconds", "0.1", "--max-time", "1m")
    sides = ("--", "--machines", "1", "---", "--machines", "2")
    line = shlex.join([sys.executable, "-m", "launcher", "duel", "--cpu", *TINY, *short, "-o", "duel", *sides])
    job = ["sbatch", "--wait", "--nodes=2", "--mem=1900", "--output=duel.txt", "--wrap", line]
    environ = {**cluster.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(job, cwd=cluster.home, env=environ, capture_output=True, text=True, check=False)
    told = (cluster.home / "duel.txt").read_text()
    assert done.returncode == ExitCode.NOT_DECIDABLE, told + done.stderr
    records = [bundle.read(path.parent).record for path in cluster.home.glob(f"duel/*/{bundle.MANIFEST}")]
    assert {record.spec.machines or 1 for record in records if record.status is Status.COMPLETED} == {1, 2}


ALONE = """
import torch
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(100):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""
# Scripts that cannot be measured, their arguments, and the error.
WRONG = {
    "never joins": (ALONE, (), "train.py runs in 2 ranks, but has joined 1 of them by init_process_group"),
    "uneven": (TRAIN, ("4000", "0.001", "1", "20"), "rank 1 ended after 20 optimizer steps"),
    "raises": (
        "import torch, os\nif os.environ['RANK'] == '1': raise OSError('gone')\n" + TRAIN,
        ("9", "0"),
        "OSError",
    ),
}


@NIGHT
@pytest.mark.parametrize("case", WRONG)
def test_wrong_scripts_on_two_machines_are_explained(case: str, cluster: SlurmCluster) -> None:
    source, arguments, message = WRONG[case]
    (cluster.home / "train.py").write_text(source)
    launch = Launch(cluster, LONG, "--include", "*.py", "--", "train.py", *arguments)
    assert launch.process.wait(300) != 0
    log = launch.log.read_text()
    assert message in log
    assert "on n2)" in log or "on n1)" in log
    until(lambda: not list(ranks()), "processes are left", within_s=30)


def kill(find: Callable[[], int]) -> None:
    os.kill(find(), signal.SIGKILL)


KILLS: dict[str, tuple[Callable[[], int], str]] = {
    "rank 0": (lambda: next(ranks("0")), "rank 0 on n1 was killed, or its machine or the network was lost"),
    "rank 1": (lambda: next(ranks("1")), "rank 1 on n2 was killed, or its machine or the network was lost"),
    "daemon of the step on n2": (lambda: parent_of(next(ranks("1"))), "rank 1 on n2"),
    "srun": (srun, "srun was killed by SIGKILL"),
    "starting process": (lambda: parent_of(srun()), "the trainer was killed by SIGKILL"),
}


@NIGHT
@pytest.mark.parametrize("what", KILLS)
def test_killed_process_ends_the_run_and_its_steps_are_kept(what: str, cluster: SlurmCluster) -> None:
    find, message = KILLS[what]
    launch = Launch(cluster, *TINY, LONG)
    measuring(cluster)
    kill(find)
    record = launch.ends(ExitCode.RUN_FAILED)
    assert record.status is Status.FAILED
    assert message in str(record.error)
    assert record.ranks is not None
    assert list(record.ranks.hosts or ()) == ["n1", "n2"]
    assert min(record.ranks.steps or ()) >= 15
    assert not cluster.queue()


@NIGHT
def test_killed_launcher_leaves_a_run_that_completes(cluster: SlurmCluster) -> None:
    launch = Launch(cluster, *TINY, "--iterations", "60")
    measuring(cluster)
    launch.process.kill()
    until(lambda: not cluster.queue(), "the job does not end", within_s=300)
    [path] = cluster.ours.glob(f"runs/*/{bundle.MANIFEST}")
    assert_two_machines(bundle.read(path.parent).record, 60)


@NIGHT
def test_requeued_job_runs_on_two_machines_again(cluster: SlurmCluster) -> None:
    launch = Launch(cluster, *TINY, "--iterations", "60")
    measuring(cluster)
    [number] = cluster.queue()
    cluster.run("scontrol", "requeue", number)
    until(lambda: not list(ranks()), "ranks are left", within_s=60)
    cluster.run("scontrol", "update", f"jobid={number.partition('_')[0]}", "StartTime=now+1")
    assert launch.process.wait(600) == 0, launch.log.read_text()
    records = [bundle.read(path.parent).record for path in cluster.ours.glob(f"runs/*/{bundle.MANIFEST}")]
    [completed] = [record for record in records if record.status is Status.COMPLETED]
    assert_two_machines(completed, 60)

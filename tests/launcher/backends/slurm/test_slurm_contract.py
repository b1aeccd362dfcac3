"""The contract of every backend on a real Slurm, with accounting and without."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.backends.slurm import remote
from launcher.backends.slurm.backend import backend
from launcher.backends.slurm.machines import SlurmMachines
from launcher.backends.slurm.options import Options, Where
from launcher.protocol.backend import Condition, Machine, Plan
from tests.launcher.backends.contract import CHECKS, Check, Place, launcher_of, name_of, silent
from tests.launcher.backends.slurm.conftest import doing, machines_of, plan_of
from tests.slurm import SlurmCluster
from tests.waiting import until
from workload.contract.errors import ToolError

pytestmark = [
    pytest.mark.world,
    pytest.mark.timeout(1500),
]

# Of a partition where preempted jobs are not started again: there a preemption is an end.
SCAVENGE = Options(partition="scavenge", sbatch=("--mem=100",))


class TheCluster(Place):
    """Elements of arrays of one on two nodes."""

    def __init__(self, cluster: SlurmCluster, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._cluster, self._folder, self._monkeypatch = cluster, folder, monkeypatch
        self._plans = 0

    def machines(self) -> SlurmMachines:
        return machines_of()

    def plan(self) -> Plan:
        self._plans += 1
        draft = plan_of(token=f"{self._plans:06x}", options=SCAVENGE)
        return doing(draft, self._cluster.home, "exec sleep 600")

    def started(self, machine: Machine) -> Machine:
        until(lambda: self._cluster.queue("RUNNING"), "the job does not start")
        [seen] = machines_of().look({machine.name: ()})
        return seen

    def count(self) -> int:
        return len(self._cluster.queue("PENDING", "RUNNING"))

    def launcher(self, plan: Plan) -> Sequence[str]:
        return launcher_of("launcher.backends.slurm.backend", plan, backend.settings(Where()), self._folder)

    def print(self, machine: Machine, text: str) -> None:
        with (self._cluster.ours / "launches" / machine.name / "startup.log").open("a") as log:
            log.write(text)

    def lose(self, machine: Machine) -> None:
        self._cluster.run("scancel", "--quiet", f"--name={machine.name}")
        until(lambda: not self._cluster.queue(), "the job does not end")

    def preempt(self, machine: Machine) -> None:
        del machine
        words = ("--partition=urgent", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=sleep 1")
        self._cluster.run("sbatch", *words)
        until(lambda: not self._cluster.queue(), "the job that preempts does not end")

    def fill(self) -> None:
        self._refuse("sbatch", "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)")

    def refuse_ends(self) -> None:
        self._refuse("scancel", "Job/step already completing or completed")
        self._monkeypatch.setattr("launcher.backends.slurm.machines.STOP_LIMIT_S", 1.0)

    def hide(self, machine: Machine) -> None:
        del machine
        for program in ("squeue", "sacct", "scancel"):
            self._refuse(program, "Unable to contact slurm controller (connect failure)")

    def add_stranger(self) -> str:
        self._cluster.run("sbatch", "--job-name=rooflaunch-of-somebody", "--output=/dev/null", "--wrap=sleep 600")
        until(lambda: len(self._cluster.queue("RUNNING")) == 2, "the other job does not start")
        return "rooflaunch-of-somebody"

    def _refuse(self, program: str, words: str) -> None:
        """From now on our programs meet one that refuses; the test's own go on."""
        folder = self._folder / "bin"
        folder.mkdir(exist_ok=True)
        (folder / program).write_text(f'#!/bin/sh\necho "{program}: error: {words}" >&2\nexit 1\n')
        (folder / program).chmod(0o755)
        tool = remote.tool
        self._monkeypatch.setattr(
            remote, "tool", lambda word, *more, **given: tool(_shim(folder, word), *more, **given)
        )


def _shim(folder: Path, program: str) -> str:
    return str(folder / program) if (folder / program).exists() else program


@pytest.fixture
def place(cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TheCluster:
    return TheCluster(cluster, tmp_path, monkeypatch)


@pytest.mark.parametrize("check", CHECKS, ids=name_of)
def test_contract(check: Check, place: Place) -> None:
    check(place)


def test_submitted_together_they_are_one_array(cluster: SlurmCluster) -> None:
    plans = [doing(plan_of(token=f"{number:06x}"), cluster.home, "exec sleep 600") for number in range(3)]
    plans = [replace(plan, most_elements=3) for plan in plans]
    machines = machines_of()
    submitted = machines.submit_together(plans, lambda _: None)
    assert [machine.name for machine in submitted.machines] == [plan.request.name for plan in plans]
    arrays = {row.partition("_")[0] for row in cluster.queue()}
    assert len(arrays) == 2, "two elements are the most of an array there"
    assert dict(machines.calls) == {"slurm.submit": 2, "slurm.look": 1}
    again = machines_of().submit_together(plans, lambda _: None)
    assert [machine.name for machine in again.machines] == [plan.request.name for plan in plans]
    assert len(cluster.queue()) == 3


@pytest.mark.parametrize("is_accepted", [True, False])
def test_job_that_slurm_accepted_counts_as_submitted_although_the_answer_of_sbatch_was_lost(
    is_accepted: bool, cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = shutil.which("sbatch") if is_accepted else "true"
    (tmp_path / "sbatch").write_text(f'#!/bin/sh\n{real} "$@"\nexec sleep 60\n')
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(remote, "TOOL_LIMIT_S", 2)
    monkeypatch.setattr(remote, "SEARCH_S", 1)
    plan = doing(plan_of(), cluster.home, "exec sleep 600")
    if is_accepted:
        [machine] = machines_of().submit(plan, silent).machines
        assert machine.condition is not Condition.GONE
        [array] = {row.partition("_")[0] for row in cluster.queue()}
        assert (cluster.ours / "arrays" / plan.request.name / "job").read_text() == array
    else:
        with pytest.raises(ToolError, match=r"Slurm's controller does not answer .sbatch gave no answer within 2 s"):
            machines_of().submit(plan, silent)
        assert not cluster.queue()


def test_held_job_is_not_queued_and_starts_when_it_is_released(cluster: SlurmCluster) -> None:
    plan = doing(plan_of(options=Options(sbatch=("--hold",))), cluster.home, "exec sleep 600")
    [machine] = machines_of().submit(plan, silent).machines
    assert (machine.queued, machine.why_not_starting) == (False, "Slurm holds the job (JobHeldUser)")
    cluster.run("scontrol", "release", machine.status.partition("scontrol release ")[2].split()[0])
    until(lambda: cluster.queue("RUNNING"), "the job does not start")

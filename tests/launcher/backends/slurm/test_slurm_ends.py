"""How elements of a real Slurm come to their end, or to another start; and what keeps one from being submitted."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.backends.slurm import backend as prepare_module
from launcher.backends.slurm.backend import prepare
from launcher.backends.slurm.options import Options, Software
from launcher.backends.slurm.plan import SlurmPlan
from launcher.protocol.backend import Condition, Machine
from launcher.protocol.records import Result
from tests.launcher.backends.slurm.conftest import doing, machines_of, plan_of
from tests.slurm import SlurmCluster
from tests.waiting import until
from workload.contract import bundle
from workload.contract.errors import RooflaunchError, ToolError, UsageError
from workload.contract.spec import Device

pytestmark = [
    pytest.mark.world,
    pytest.mark.timeout(1500),
    pytest.mark.night(part="places"),
]

SMALL = Options(sbatch=("--mem=100",))
ROOT = Path(__file__).parents[4]
# Six times what the job may have; task/cgroup of the test's Slurm ends it.
GREEDY = f"exec {sys.executable} -c 'held = bytearray(600 << 20)'"


def submitted(plan: SlurmPlan) -> Machine:
    [machine] = machines_of().submit(plan, lambda _: None).machines
    return machine


def seen(name: str) -> Machine:
    [machine] = machines_of().look({name: ()})
    return machine


def ends(name: str) -> Machine:
    until(lambda: seen(name).condition is Condition.GONE, lambda: f"it does not end: {seen(name)}", within_s=150)
    return seen(name)


def runs(name: str) -> None:
    until(lambda: seen(name).condition is Condition.RUNNING, lambda: f"it is not running: {seen(name)}")


def test_ends_that_slurm_makes(cluster: SlurmCluster) -> None:
    """Its own words for them reach the user; `doing` has no agent, which would foresee the time limit."""
    deaf = "trap '' TERM; while true; do sleep 1; done"
    lines = {"TIMEOUT": deaf, "OUT_OF_MEMORY": GREEDY, "FAILED": "exit 3", "COMPLETED": "true", "CANCELLED": deaf}
    names = {}
    for index, (state, line) in enumerate(lines.items()):
        home = cluster.home / state
        home.mkdir()
        plan = doing(plan_of(token=f"{index:06x}", options=replace(SMALL, time_s=60)), home, line)
        doing(plan, cluster.home, line)
        names[state] = submitted(plan).name
    runs(names["CANCELLED"])
    cluster.run("scancel", "--quiet", f"--name={names['CANCELLED']}")
    for state, name in names.items():
        ended = ends(name)
        assert ended.status.startswith(state.lower()), ended
        assert ended.why.startswith(f"Slurm says {state}: ") or (state == "COMPLETED" and not ended.why)


def test_a_run_that_lives_on_on_a_lost_node_is_measured_once(cluster: SlurmCluster) -> None:
    """Slurm declares the node down and starts the job on another one, whose agent waits for the first."""
    name = submitted(prepare(plan_of(iterations=300), machines_of())).name
    records = cluster.ours / "launches" / name
    until((records / "lease-1.json").exists, "no agent begins")
    node, number = cluster.run("squeue", "-h", f"--name={name}", "-o", "%N %A").split()
    os.kill(cluster.daemon(f"slurmd-{node}"), signal.SIGKILL)
    try:
        cluster.run("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
        until(lambda: seen(name).queued, "it does not wait for another start")
        cluster.run("scontrol", "update", f"jobid={number}", "StartTime=now+1")
        until((records / "result.json").exists, "there is no result", within_s=300)
        assert ends(name).status == "completed"
    finally:
        cluster.start(f"slurmd-{node}")
    result = Result.from_bytes((records / "result.json").read_bytes())
    assert (result.exit_code, result.error) == (0, "")
    [run] = (cluster.ours / "runs").glob("[!.]*")
    assert ([run.name], bundle.read(run).record.status) == (result.runs, "completed")
    assert "waiting until it ends" in (records / "startup.log").read_text()


def test_a_gpu_is_asked_for_where_the_partition_has_one(cluster: SlurmCluster) -> None:
    draft = plan_of(options=Options(partition="gpu", constraint="turing"), device=Device.AUTO)
    plan = prepare(draft, machines_of())
    assert (plan.gres, plan.node.with_gpu) == ("gpu:1", True)
    mark = cluster.home / "mark"
    told = doing(plan, cluster.home, f'echo "$CUDA_VISIBLE_DEVICES $SLURM_JOB_CONSTRAINTS" >{mark}')
    ends(submitted(told).name)
    assert mark.read_text() == "0 turing\n"
    assert prepare(plan_of(token="123456", device=Device.AUTO), machines_of()).gres == ""


REFUSED = {
    "no such partition": (Options(partition="gpus"), "has no partition 'gpus'"),
    "no GPU": (Options(gres="gpu:1"), "partition cpu of .* has no GPU; --gres gpu:1 was asked for"),
    "another GPU": (Options(partition="gpu", gres="gpu:l4:1"), "partition gpu of .* has gpu:t4:2; got --gres gpu:l4:1"),
    "too long": (Options(time_s=3660), "a job of partition cpu may take 1:00:00; got 3660 s"),
    "no such feature": (Options(constraint="blackwell"), "no node has the feature that --constraint asks for"),
    "too much memory": (Options(sbatch=("--mem=900G",)), "no node of the partition has the requested resources"),
    "an option that is none": (Options(sbatch=("--nonsense",)), "sbatch does not know an option"),
}


@pytest.mark.parametrize(("options", "message"), REFUSED.values(), ids=REFUSED)
def test_what_the_cluster_cannot_do_is_refused_before_the_job(
    options: Options, message: str, cluster: SlurmCluster
) -> None:
    """By what the cluster has, by the check of a node, or, with options that only the job has, by sbatch."""
    draft, machines = plan_of(options=options, device=Device.AUTO), machines_of()
    with pytest.raises(UsageError, match=message) as raised:
        machines.submit(prepare(replace(draft, gres=options.gres or ""), machines), str)
    assert raised.value.hint
    assert cluster.queue() == []


@pytest.mark.parametrize("cluster", ["accounting"], indirect=True)
def test_an_account_that_may_not(cluster: SlurmCluster) -> None:
    with pytest.raises(UsageError, match="the account is missing, unknown, or may not use this partition") as raised:
        prepare(plan_of(options=Options(account="nobodys")), machines_of())
    assert raised.value.hint.startswith("--account NAME; on the login node: sacctmgr show assoc ")
    assert cluster.queue() == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"python": "/usr/bin/no-such-python"}, "/usr/bin/no-such-python on .* cannot run the trainer: "),
        ({"python": "/usr/bin/python3"}, "/usr/bin/python3 on .* cannot run the trainer: (lacks|is Python)"),
        ({"image": "/nowhere/it.sif"}, "the image /nowhere/it.sif cannot be read on "),
        ({"container": Software.APPTAINER}, "has no Apptainer"),
    ],
    ids=["no python", "no torch", "no image", "no Apptainer"],
)
def test_what_a_node_lacks_is_told_by_a_check(
    change: dict[str, object], message: str, cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = plan_of(options=SMALL)
    node = replace(draft.node, **change)  # type: ignore[arg-type] # by name
    monkeypatch.setattr(prepare_module, "_chosen_software", lambda *_: (node.container, "as the test says"))
    with pytest.raises(ToolError, match=message):
        prepare(replace(draft, node=node), machines_of())
    assert not list((cluster.ours / "checks").glob("*.good"))


def test_a_good_check_is_remembered(cluster: SlurmCluster) -> None:
    one = machines_of()
    prepare(plan_of(options=SMALL), one)
    assert one.calls["slurm.check"] == 1
    other = machines_of()
    prepare(plan_of(token="123456", options=SMALL), other)
    assert "slurm.check" not in other.calls
    assert len(list((cluster.ours / "checks").glob("*.good"))) == 1


def test_a_check_is_not_held_by_what_the_job_is_held_by(cluster: SlurmCluster) -> None:
    plan = prepare(plan_of(options=replace(SMALL, sbatch=("--hold",))), machines_of())
    assert (plan.after, cluster.queue("PENDING")) == ("", [])
    assert len(list((cluster.ours / "checks").glob("*.good"))) == 1


@pytest.mark.parametrize("is_refused", [False, True], ids=["with its job", "as its job is refused"])
def test_a_check_that_nobody_waits_for_is_cancelled(
    is_refused: bool, cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare_module, "CHECK_S", 1.0)
    for node in ("n1", "n2"):
        cluster.run("scontrol", "update", f"nodename={node}", "state=drain", "reason=test")
    machines = machines_of()
    plan = prepare(plan_of(options=SMALL), machines)
    assert plan.after
    assert len(cluster.queue("PENDING")) == 1
    if is_refused:
        with pytest.raises(RooflaunchError):
            machines.submit(replace(plan, options=replace(plan.options, sbatch=("--nodelist=none",))), str)
    else:
        [machine] = machines.submit(plan, lambda _: None).machines
        assert len(cluster.queue("PENDING")) == 2
        assert [removed.gone for removed in machines.stop([machine])] == [True]
    until(lambda: not cluster.queue("PENDING"), lambda: f"still there: {cluster.queue()}")


@pytest.mark.skipif(os.getuid() != 0, reason="only root makes a file system that the nodes do not see")
def test_a_folder_that_the_nodes_do_not_see(cluster: SlurmCluster) -> None:
    """The launcher has a file system of its own there, as a login node's local disk is."""
    words = [sys.executable, "-m", "launcher", "slurm", "--cpu", "--python", sys.executable]
    command = f"mount -t tmpfs none {cluster.ours} && exec {' '.join(words)}"
    cluster.ours.mkdir()
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", command],
        capture_output=True, text=True, check=False, cwd=cluster.home, env={**cluster.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 4, done.stderr
    assert (
        f"error: the compute nodes do not see {cluster.ours} of this login node, or may not write there" in done.stderr
    )
    assert "hint: --folder FOLDER, which login node and nodes share under the same path" in done.stderr


def test_where_no_node_is_free_the_job_waits_behind_its_check(
    cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare_module, "CHECK_S", 1.0)
    for node in ("n1", "n2"):
        cluster.run("scontrol", "update", f"nodename={node}", "state=drain", "reason=test")
    plan = prepare(plan_of(options=SMALL), machines_of())
    assert plan.after
    assert f"the job waits until check {plan.after}" in plan.text()
    name = submitted(doing(plan, cluster.home, "true")).name
    # Of several reasons Slurm names the one that it looked at last.
    assert seen(name).status in ("pending (Dependency)", "pending (ReqNodeNotAvail, UnavailableNodes:n[1-2])")
    cluster.resume("n1", "n2")
    assert ends(name).status == "completed"

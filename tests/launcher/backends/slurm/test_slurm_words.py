"""What Slurm says, and what that means: states, refusals, GPUs, the log of a job. No Slurm is asked."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from launcher.backends.slurm import remote
from launcher.backends.slurm.backend import Gpus, Partition, Site, checks, look_at, parse_gres, require_room
from launcher.backends.slurm.guest import Element
from launcher.backends.slurm.machines import ENDED, HELD, WAITING, _machine, explained
from launcher.protocol.backend import Condition, Health
from launcher.protocol.records import Request
from tests.launcher.backends.slurm.conftest import machines_of
from tests.launcher.told import Golden, told
from workload.contract.errors import ToolError
from workload.storage.store import UnreachableError

ROW = {
    "name": "rooflaunch-slurm-20261121-120000-abcdef",
    "array_job": "12",
    "index": "1",
    "state": "RUNNING",
    "partition": "gpu,cpu",
    "started": "1795302000",
    "ends": "1795305600",
    "reason": "None",
}


@pytest.mark.parametrize("state", [*sorted(WAITING), "RUNNING", "COMPLETING", "SOMETHING_NEW", *ENDED])
def test_states(state: str) -> None:
    machine = _machine({**ROW, "state": state})
    condition = Condition.STARTING if state in WAITING else Condition.GONE if state in ENDED else Condition.RUNNING
    assert (machine.condition, machine.queued, machine.preempted) == (
        condition,
        state in WAITING - HELD,
        state == "PREEMPTED",
    )
    ended = f"Slurm says {state}: {ENDED[state]}" if ENDED.get(state) else ""
    assert machine.why == (f"Slurm holds the job ({state})" if state in HELD else ended)
    assert machine.zone == "gpu+cpu"
    assert (machine.deadline_s is not None) is (condition is Condition.RUNNING)
    assert (machine.created_s is None) is (condition is Condition.STARTING)


@pytest.mark.parametrize(
    "reason", ["JobHeldUser", "JobHeldAdmin", "launch failed requeued held", "job requeued in held state"]
)
def test_held_job_is_not_queued_and_names_the_command_that_releases_it(reason: str) -> None:
    machine = _machine({**ROW, "state": "PENDING", "started": "N/A", "reason": reason})
    assert (machine.queued, machine.why) == (False, f"Slurm holds the job ({reason})")
    assert machine.status == f"pending ({reason}; scontrol release 12_1 lets it start)"


def test_a_cancelled_job_says_by_whom() -> None:
    assert _machine({**ROW, "state": "CANCELLED by 1000"}).why == "Slurm says CANCELLED: the job was cancelled by 1000"


def test_what_a_job_waits_for_is_told() -> None:
    assert _machine({**ROW, "state": "PENDING", "reason": "Resources"}).status == "pending (Resources)"
    assert _machine({**ROW, "state": "PENDING", "started": "N/A"}).status == "pending"


FAILED = "sbatch: error: Batch job submission failed: "


RULE = "sbatch: error: You are not permitted to submit without --comment; see https://wiki\n"
TOO_LONG = "Requested time limit is invalid (missing or exceeds some limit)"
VIOLATES = "Job violates accounting/QOS policy"
REFUSED = {
    "account": f"{FAILED}Invalid account or account/partition combination specified",
    "partition": f"sbatch: error: invalid partition specified: gpus\n{FAILED}Invalid partition name specified",
    "time": f"{FAILED}{TOO_LONG}",
    "resources": f"{FAILED}Requested node configuration is not available",
    "feature": f"{FAILED}Invalid feature specification",
    "too many jobs": "sbatch: error: AssocMaxSubmitJobLimit",
    "no controller": f"{FAILED}Unable to contact slurm controller (connect failure)",
    # As Slurm 22.05 prints what the site's job_submit.lua says by `slurm.log_user`.
    "rule of the site": f"{RULE}{FAILED}Unspecified error",
    "rule of the site with a reason": f"{RULE}{FAILED}{TOO_LONG}",
    # What Slurm itself says is no rule of the site.
    "limit of the QOS": f"sbatch: error: QOSMaxSubmitJobPerUserLimit\n{FAILED}{VIOLATES}",
    "memory": f"sbatch: error: Memory specification can not be satisfied\n{FAILED}{VIOLATES}",
    "too many jobs of an account": f"sbatch: error: AssocMaxSubmitJobLimit\n{FAILED}{VIOLATES}",
    "unknown": "sbatch: error: \x1b[2J",
    "nothing": "",
}


def test_refusals(golden: Golden) -> None:
    def refused(said: str) -> None:
        raise explained(said, "me@box")

    golden("refusals.txt", told({name: partial(refused, said) for name, said in REFUSED.items()}))


def test_gpus_of_a_node() -> None:
    for text, gpus in {
        "(null)": [],
        "gpu:2": [("", 2)],
        "gpu:t4:2(S:0-1)": [("t4", 2)],
        "gpu:a100:4,gpu:v100:1,shard:8": [("a100", 4), ("v100", 1)],
        "gpu": [("", 1)],
        "craynetwork:4": [],
    }.items():
        assert [(one.kind, one.count) for one in parse_gres(text)] == gpus


def partition(name: str, *gpus: Gpus, limit: str = "1:00:00", limit_s: float = 3600, nodes: int = 1) -> Partition:
    return Partition(
        name=name, is_default=name == "cpu", is_up=True, limit_s=limit_s, limit=limit, nodes=nodes, gpus=gpus,
        features=(), preempted="",
    )  # fmt: skip


SITE = Site(
    version="slurm 22.05.8", root="/r", user="me", cluster="hopper", has_accounting=True, array_size=1001,
    partitions=(partition("cpu"), partition("gpu", Gpus(kind="t4", count=2)), partition("many", nodes=3)),
    accounts=(), pyxis=False, apptainer="", apptainer_path="", counters="",
)  # fmt: skip


# Partitions, GPUs, seconds and nodes that a job is asked for.
ROOM: list[tuple[Any, ...]] = [
    *((None, "", 3600), ("gpu", "gpu:t4:2", 3600), ("cpu,gpu", "gpu:1", 3600), ("gpu", "gpu", 3600)),
    *((None, "", 60, 2), ("many", "", 60, 3), ("cpu,many", "", 60, 4)),
    *((None, "gpu:1", 60), ("gpu", "gpu:l4:1", 60), ("gpu", "gpu:3", 60), ("gpu", "", 3601), ("gpus", "", 60)),
]


def test_what_no_node_can_do_is_refused(golden: Golden) -> None:
    def required(names: str | None, gres: str, limit_s: int, nodes: int = 1) -> None:
        require_room(SITE, SITE.partitions_named(names), gres=gres, limit_s=limit_s, nodes=nodes)

    golden("room.txt", told({f"{case}": partial(required, *case) for case in ROOM}))


END = "slurmstepd-n1: error: *** JOB 4 ON n1 CANCELLED AT 2026-11-21T23:04:53{why} ***\n"


@pytest.mark.parametrize(
    ("why", "mode", "is_preempted", "comes_back"),
    [
        (" DUE TO PREEMPTION", "REQUEUE", True, True),
        (" DUE TO PREEMPTION", "CANCEL", True, False),
        (" DUE TO JOB REQUEUE", "CANCEL", True, True),
        (" DUE TO NODE FAILURE", "", True, True),
        (" DUE TO TIME LIMIT", "REQUEUE", False, True),
        ("", "REQUEUE", False, True),
    ],
)
def test_why_a_job_is_ended_stands_in_its_log(
    why: str, mode: str, is_preempted: bool, comes_back: bool, tmp_path: Path
) -> None:
    request = Request(
        name=ROW["name"], backend="slurm", launched_at="2026-11-21T12:00:00Z", store="/r", place="slurm",
        runtime="process", limit_s=60, spec={}, options={"requeue": True, "preempted": mode},
    )  # fmt: skip
    (tmp_path / "request.json").write_bytes(request.to_bytes())
    before = END.format(why=" DUE TO PREEMPTION")
    log = tmp_path / "startup.log"
    log.write_text(before + "rooflaunch: phase run_started\n" + END.format(why=why))
    variables = {"SLURM_JOB_PARTITION": "gpu", "ROOFLAUNCH_END_S": "1795305600"}
    element = Element(home=tmp_path, variables=variables, log=log, log_start=len(before))
    assert (element.is_preempted(), element.comes_back()) == (is_preempted, comes_back)
    assert (element.zone, element.deleted_s()) == ("gpu", 1795305600.0)
    assert Element(home=tmp_path, variables={}, log=tmp_path / "none").deleted_s() is None


@pytest.mark.world
def test_slow_sbatch_is_not_taken_for_a_missing_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sbatch").write_text("#!/bin/sh\nexec sleep 9\n")
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(remote, "TOOL_LIMIT_S", 0.1)
    with pytest.raises(UnreachableError, match="this login node: sbatch gave no answer within"):
        look_at(machines_of())


def test_a_machine_without_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolError) as raised:
        look_at(machines_of())
    assert str(raised.value) == "sbatch is not installed on this login node"
    hint = "use a login node of the cluster: launch slurm there, or --host USER@LOGIN-NODE from here"
    assert raised.value.hint == hint
    [check] = checks(machines_of())
    assert (check.state, check.found, check.cure) == (Health.PROBLEM, str(raised.value), hint)

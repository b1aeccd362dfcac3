"""What Slurm says, and what that means: states, refusals, GPUs, the log of a job. No Slurm is asked."""

from pathlib import Path

import pytest

from launcher.backends.slurm import remote
from launcher.backends.slurm.backend import Gpus, Partition, Site, checks, look_at, parse_gres, require_room
from launcher.backends.slurm.guest import Element
from launcher.backends.slurm.machines import ENDED, HELD, REFUSALS, WAITING, _machine, explained
from launcher.protocol.backend import Condition, Health
from launcher.protocol.records import Request
from tests.launcher.backends.slurm.conftest import machines_of
from workload.contract.errors import NoCapacityError, RooflaunchError, ToolError, UsageError
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


@pytest.mark.parametrize(
    ("said", "meaning", "kind"),
    [
        (f"{FAILED}Invalid account or account/partition combination specified", "the account is missing", UsageError),
        (
            f"sbatch: error: invalid partition specified: gpus\n{FAILED}Invalid partition name specified",
            "there is no such partition",
            UsageError,
        ),
        (
            f"{FAILED}Requested time limit is invalid (missing or exceeds some limit)",
            "the requested time is above",
            UsageError,
        ),
        (f"{FAILED}Requested node configuration is not available", "no node of the partition has", UsageError),
        (f"{FAILED}Invalid feature specification", "no node has the feature", UsageError),
        ("sbatch: error: AssocMaxSubmitJobLimit", "you have reached your limit of jobs", NoCapacityError),
        (f"{FAILED}Unable to contact slurm controller (connect failure)", "Slurm's controller", ToolError),
    ],
)
def test_refusals(said: str, meaning: str, kind: type[RooflaunchError]) -> None:
    [refusal] = [each for each in REFUSALS if each.meaning.startswith(meaning)]
    error = explained(said, "this login node")
    quoted = "; ".join(line.removeprefix("sbatch: error: ") for line in said.splitlines())
    assert type(error) is kind
    assert str(error) == f"sbatch on this login node refused the job: {refusal.meaning} ({quoted})"
    assert error.hint == refusal.hint


RULE = "You are not permitted to submit without --comment; see https://wiki"


@pytest.mark.parametrize(
    "reason", ["Unspecified error", "Requested time limit is invalid (missing or exceeds some limit)"]
)
def test_a_refusal_by_a_plugin_of_the_site_is_told_in_its_words(reason: str) -> None:
    """As Slurm 22.05 prints what the site's job_submit.lua says by `slurm.log_user`."""
    error = explained(f"sbatch: error: {RULE}\n{FAILED}{reason}", "me@box")
    assert type(error) is UsageError
    assert str(error) == f"sbatch on me@box refused the job by a rule of this cluster: {RULE} ({reason})"
    assert (
        error.hint
        == "use an option of launch slurm, or --sbatch OPTION, that fulfils the rule; or ask the administrator"
    )


@pytest.mark.parametrize(
    "own", ["QOSMaxSubmitJobPerUserLimit", "Memory specification can not be satisfied", "AssocMaxSubmitJobLimit"]
)
def test_what_slurm_itself_says_is_no_rule_of_the_site(own: str) -> None:
    error = explained(f"sbatch: error: {own}\n{FAILED}Job violates accounting/QOS policy", "me@box")
    assert "a rule of this cluster" not in str(error)
    assert own in str(error)


@pytest.mark.parametrize(("said", "quoted"), [("sbatch: error: \x1b[2J", "\\x1b[2J"), ("", "no message")])
def test_a_refusal_that_nobody_knows_is_quoted(said: str, quoted: str) -> None:
    error = explained(said, "me@box")
    assert type(error) is ToolError
    assert str(error) == f"sbatch on me@box refused the job: {quoted}"


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("(null)", ()),
        ("gpu:2", (Gpus(kind="", count=2),)),
        ("gpu:t4:2(S:0-1)", (Gpus(kind="t4", count=2),)),
        ("gpu:a100:4,gpu:v100:1,shard:8", (Gpus(kind="a100", count=4), Gpus(kind="v100", count=1))),
        ("gpu", (Gpus(kind="", count=1),)),
        ("craynetwork:4", ()),
    ],
)
def test_gpus_of_a_node(text: str, gpus: tuple[Gpus, ...]) -> None:
    assert parse_gres(text) == gpus


def partition(name: str, *gpus: Gpus, limit: str = "1:00:00", limit_s: float = 3600) -> Partition:
    return Partition(
        name=name, is_default=name == "cpu", is_up=True, limit_s=limit_s, limit=limit, nodes=1, gpus=gpus, features=(),
        preempted="",
    )  # fmt: skip


SITE = Site(
    version="slurm 22.05.8", root="/r", user="me", cluster="hopper", has_accounting=True, array_size=1001,
    partitions=(partition("cpu"), partition("gpu", Gpus(kind="t4", count=2))), accounts=(), pyxis=False, apptainer="",
    apptainer_path="", counters="",
)  # fmt: skip


@pytest.mark.parametrize(
    ("names", "gres", "limit_s", "message", "hint"),
    [
        (None, "gpu:1", 60, "partition cpu of hopper has no GPU; --gres gpu:1 was asked for", "--partition gpu"),
        ("gpu", "gpu:l4:1", 60, "partition gpu of hopper has gpu:t4:2; got --gres gpu:l4:1", "--gres gpu:t4:2"),
        ("gpu", "gpu:3", 60, "partition gpu of hopper has gpu:t4:2; got --gres gpu:3", "--gres gpu:t4:2"),
        ("gpu", "", 3601, "a job of partition gpu may take 1:00:00; got 3601 s", "--time 1:00:00"),
        ("gpus", "", 60, "hopper has no partition 'gpus'", "one of cpu, gpu"),
    ],
)
def test_what_no_node_can_do_is_refused(names: str | None, gres: str, limit_s: int, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as raised:
        require_room(SITE, SITE.partitions_named(names), gres=gres, limit_s=limit_s)
    assert (str(raised.value), raised.value.hint) == (message, hint)


@pytest.mark.parametrize(("names", "gres"), [(None, ""), ("gpu", "gpu:t4:2"), ("cpu,gpu", "gpu:1"), ("gpu", "gpu")])
def test_what_a_node_can_do_is_let_pass(names: str | None, gres: str) -> None:
    require_room(SITE, SITE.partitions_named(names), gres=gres, limit_s=3600)


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

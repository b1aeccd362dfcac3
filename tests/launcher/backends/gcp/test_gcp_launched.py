"""`status`, `logs`, `down` and `reap` of a launch as they are typed, in outages too, and on a clock that is off."""

import json
import re
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from launcher.jobs.launches import LaunchState
from launcher.protocol.records import LaunchPhase, log_object
from tests.launcher.backends.gcp.canned_cloud import ZONE, Clouds
from tests.launcher.backends.gcp.canned_vm import Fault
from tests.launcher.backends.gcp.command_world import AT_HOME, GCP, NAME, Launch, world_of
from workload.contract.errors import ToolError

pytestmark = pytest.mark.world

NOTHING_LEFT = "no machine or disk of a launch is stopped or past its limit in my-project\n"


def test_detached_then_status_logs_and_down(launch: Launch, clouds: Clouds) -> None:
    with clouds(fault=Fault.STOPS_BEATING) as cloud:
        world = world_of(cloud)
        name = NAME.findall(launch(world, *GCP, "--detach").output())[0]
        assert cloud.vm.started.wait(60)

        line = next(each for each in launch(world, "status", *AT_HOME).output().splitlines() if each.startswith(name))
        assert line.split()[:4] == [name, "t4", ZONE, "running"]
        assert f"next       launch down {name}" in launch(world, "status", name[-6:], *AT_HOME).output()
        told = launch(world, "status", name, "--format", "json", *AT_HOME).json()
        assert (told["name"], told["state"], told["vm"], told["zone"]) == (name, "running", "RUNNING", ZONE)

        assert "rooflaunch: phase booted" in launch(world, "logs", name, *AT_HOME).output()
        piece = json.loads(launch(world, "logs", name, "--format", "json", *AT_HOME).output().splitlines()[0])
        assert (piece["launch"], piece["source"]) == (name, "serial port")

        assert launch(world, "down", name[-6:], *AT_HOME).output() == f"VM {name} in {ZONE} is gone\n"
        assert cloud.fake.instances == []
        assert launch(world, "down", name, *AT_HOME).error(0) == f"'{name}' has no VM: it is gone already\n"
        unknown = launch(world, "down", "ffffff", *AT_HOME).error(3)
        assert "no launch is named 'ffffff'" in unknown
        told = launch(world, "status", name, "--format", "json", *AT_HOME).json()
        assert (told["state"], told["why"]) == ("failed", "the VM was removed by `launch down`")


def test_logs_follow_to_the_end(launch: Launch, clouds: Clouds) -> None:
    with clouds() as cloud:
        world = world_of(cloud)
        name = NAME.findall(launch(world, *GCP, "--detach").output())[0]
        lines = launch(world, "logs", name, "-f", *AT_HOME).output().splitlines()
        assert [line.split()[2] for line in lines if line.startswith("rooflaunch: phase")] == [
            phase for phase in LaunchPhase if phase is not LaunchPhase.REQUESTED and not phase.startswith("profile")
        ]
        assert lines[-1] == "uploaded", "what only the log has comes last, and nothing twice"
        assert launch(world, "logs", name, "--format", "json", *AT_HOME).json()["source"] == "startup.log"


def test_a_log_cannot_drive_the_terminal(launch: Launch, clouds: Clouds) -> None:
    with clouds() as cloud:
        plan = cloud.plan()
        cloud.run(plan)
        cloud.bucket.write(log_object(plan.name), b"one\r\n\x1b[2J\x1b]0;title\x07two\tthree\n\xff\n")
        assert launch(world_of(cloud), "logs", plan.name, *AT_HOME).output() == "one\n[2J]0;titletwo\tthree\n\ufffd\n"


def test_down_all_asks_on_a_terminal_and_refuses_without(launch: Launch, clouds: Clouds) -> None:
    with clouds(fault=Fault.SILENT) as cloud:
        names = sorted(plan.name for plan in (cloud.plan(), cloud.plan()) if cloud.run(plan, detach=True))
        refused = launch(world_of(cloud), "down", "--all", *AT_HOME).error(2)
        assert refused.endswith("error: --all deletes 2 VMs, but there is no terminal to ask\nhint: --all --yes\n")
        asked: list[tuple[str, bool]] = []

        def answer(question: str, default: bool) -> bool:
            asked.append((question, default))
            return len(asked) > 1

        world = world_of(cloud, confirm=answer)
        assert launch(world, "down", "--all", *AT_HOME).code == 130
        assert len(cloud.fake.instances) == 2
        gone = "".join(f"VM {name} in {ZONE} is gone\n" for name in names)
        assert launch(world, "down", "--all", *AT_HOME).output() == gone
        assert asked == [("Delete these 2 VMs in my-project?", False)] * 2
        assert cloud.fake.instances == []
        assert launch(world_of(cloud), "down", "--all", "--yes", "--format", "json", *AT_HOME).json() == []


def test_down_works_without_the_bucket(launch: Launch, clouds: Clouds) -> None:
    with clouds(fault=Fault.SILENT) as cloud:
        plan = cloud.plan()
        cloud.run(plan, detach=True)

        def no_bucket(_: str) -> NoReturn:
            raise ToolError("bucket 'b' cannot be reached", hint="")

        world = world_of(cloud, bucket=no_bucket)
        assert launch(world, "down", plan.name, *AT_HOME).error(0) == "warning: bucket 'b' cannot be reached\n"
        assert cloud.fake.instances == []


@pytest.mark.parametrize("off_s", [-7200, 7200], ids=["two hours slow", "two hours fast"])
def test_reap_goes_by_the_clouds_clock(off_s: float, launch: Launch, clouds: Clouds) -> None:
    with clouds(fault=Fault.NO_HEARTBEAT) as cloud:
        world = world_of(cloud, now=lambda: cloud.clock.now() + off_s)
        healthy = launch(world, *GCP, "--detach", "--max-run-time", "90m", "--format", "json").json()["name"]
        assert launch(world, "reap", *AT_HOME).output() == NOTHING_LEFT
        shown = launch(world, "status", healthy, *AT_HOME, "--format", "json").json()
        assert (shown["state"], shown["vm"]) == ("starting", "RUNNING")
        assert 0 <= shown["usd"] < 0.3
        name = "rooflaunch-l4-20260101-000000-abcdef"
        cloud.fake.add_vm(name, project="my-project", labels={"rooflaunch": "launch"}, age_s=3600 + 7300)
        told = launch(world, "reap", "--dry-run", *AT_HOME).output()
        # Two hours and a little, by a clock that runs fast.
        assert re.fullmatch(rf"VM {name} in {ZONE}: its time limit ended 2 h \d\d min ago\n", told)
        assert launch(world, "reap", "--dry-run", "--format", "json", *AT_HOME).json()[0]["name"] == name
        assert launch(world, "reap", *AT_HOME).output() == f"VM {name} in {ZONE} is gone\n"
        assert [each.name for each in cloud.fake.instances] == [healthy]


@pytest.mark.slow
@pytest.mark.parametrize("fails", [False, True], ids=["one zone", "the list"])
def test_in_an_outage_nothing_is_said_to_be_gone(fails: bool, launch: Launch, clouds: Clouds) -> None:
    with clouds(fault=Fault.SILENT) as cloud:
        world, plan = world_of(cloud), cloud.plan()
        cloud.run(plan, detach=True)
        cloud.fake.outage(ZONE, fails=fails)
        somewhere = "some zone" if fails else ZONE
        unlisted = f"error: not known to be gone: anything in {somewhere}, which does not answer\n"
        hint = "hint: run the same command again; launch status shows what is left\n"
        error = f"error: not known to be gone: VM {plan.name} in {ZONE}: the zone does not answer\n"
        assert launch(world, "down", plan.name, *AT_HOME) == (4, "", error + hint)
        for words in (("down", "--all"), ("reap",), ("reap", "--dry-run")):
            assert launch(world, *words, *AT_HOME) == (4, "", unlisted + hint)
        assert launch(world, "down", "--all", "--format", "json", *AT_HOME) == (4, "[]\n", unlisted + hint)
        unknown = launch(world, "down", "f00ba2", *AT_HOME).error(4)
        assert unknown.startswith(f"error: it is unknown whether 'f00ba2' has a VM: {somewhere} does")
        assert launch(world, "status", plan.name, "--format", "json", *AT_HOME).json()["state"] == LaunchState.UNKNOWN
        shown = launch(world, "status", *AT_HOME)
        assert shown.code == 0
        missing = "a VM there without a record in the bucket is not shown"
        assert shown.err == f"warning: no answer from {somewhere}: {missing}\n"
        (line,) = (each for each in shown.out.splitlines() if each.startswith(plan.name))
        assert f" {LaunchState.UNKNOWN} " in line
        assert "it is unknown whether the VM exists: no answer from " in line
        assert [vm.name for vm in cloud.fake.instances] == [plan.name]
        cloud.fake.outage_ends()
        assert launch(world, "down", plan.name, *AT_HOME).output() == f"VM {plan.name} in {ZONE} is gone\n"


def test_a_stopped_vm_is_reaped_once_the_cloud_does_not_start_it_again(launch: Launch, clouds: Clouds) -> None:
    with clouds(fault=Fault.SILENT) as cloud:
        world, plan = world_of(cloud), cloud.plan()
        cloud.run(plan, detach=True)
        cloud.fake.stop(plan.name, age_s=60)
        told = launch(world, "status", plan.name, *AT_HOME)
        assert "the VM is TERMINATED; the cloud may start the VM again, to save the results" in told.output()
        assert told.err == ""
        assert launch(world, "reap", *AT_HOME).output() == NOTHING_LEFT
        cloud.fake.stop(plan.name)
        for words in (("status",), ("status", plan.name)):
            told = launch(world, *words, *AT_HOME)
            warning = f"warning: a VM is stopped, and the cloud does not delete stopped VMs: {plan.name}\n"
            assert told.error(0) == f"{warning}hint: launch reap\n"
            assert "stale" in told.out
        why = f"VM {plan.name} in {ZONE}: the VM is TERMINATED, and the cloud never deletes a stopped VM\n"
        assert launch(world, "reap", "--dry-run", *AT_HOME).output() == why
        assert launch(world, "reap", *AT_HOME).output() == f"VM {plan.name} in {ZONE} is gone\n"
        assert (cloud.fake.instances, cloud.fake.disks) == ([], [])
        assert launch(world, "status", plan.name, *AT_HOME).error(0) == ""


def test_status_without_any_launch(launch: Launch, clouds: Clouds) -> None:
    with clouds() as cloud:
        empty: Any = SimpleNamespace(
            kind="bucket", folders=lambda _: [], locate=lambda name: f"gs://empty-bucket/{name}"
        )
        world = world_of(cloud, bucket=lambda _: empty)
        none = "no launch in gs://empty-bucket, and no VM of a launch in my-project\n"
        assert launch(world, "status", *AT_HOME).error(0) == none
        cloud.fake.outage(ZONE)
        warning = f"warning: no answer from {ZONE}: a VM there without a record in the bucket is not shown\n"
        assert launch(world, "status", *AT_HOME) == (0, "", warning)

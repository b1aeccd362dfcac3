"""Ending launches: what is removed, what is left alone, and what counts as gone."""

from dataclasses import replace
from typing import Any

import pytest

from launcher.gcp import cleanup
from launcher.gcp.cleanup import Leftover, Removed, require_gone
from launcher.gcp.launches import State
from launcher.gcp.records import Result, request_object, result_object
from tests.launcher.gcp.canned_cloud import ZONE, Cloud, Clouds
from tests.launcher.gcp.canned_vm import Fault
from workload.errors import ExitCode, ToolError

pytestmark = pytest.mark.world

VM = "rooflaunch-t4-20260101-120000-aaaaaa"


def down(cloud: Cloud, **changes: Any) -> list[Removed]:
    plain: dict[str, Any] = {"instances": cleanup.running(cloud.compute), "bucket": cloud.bucket} | changes
    return cleanup.down(
        plain["instances"], cloud.compute, plain["bucket"], now=cloud.clock.now, sleep=cloud.clock.sleep
    )


def labels(deadline_s: float | None, **changes: str) -> dict[str, str]:
    deadline = {} if deadline_s is None else {"rooflaunch-deadline": str(int(deadline_s))}
    return {"rooflaunch": "launch", **deadline, **changes}


def test_down_ends_a_launch_and_says_so_in_the_bucket(clouds: Clouds) -> None:
    with clouds(fault=Fault.NO_HEARTBEAT) as cloud:
        plans = [cloud.plan() for _ in range(3)]
        for plan in plans:
            cloud.run(plan, detach=True)
        cloud.fake.delete_fails(2)
        removed = down(cloud)
        assert [(each.kind, each.name, each.zone, each.gone, each.reason) for each in removed] == [
            ("VM", name, ZONE, True, "") for name in sorted(plan.name for plan in plans)
        ]
        assert cloud.fake.instances == []
        assert cloud.fake.count("DELETE") == 5, "two deletions failed and were repeated"
        for plan in plans:
            result = cloud.result(plan.name)
            assert (result.exit_code, result.error) == (ExitCode.INTERRUPTED, "its VM was removed by `launch down`")
            assert cloud.state(plan.name).state is State.FAILED


def test_what_is_not_confirmed_is_an_error(clouds: Clouds) -> None:
    with clouds(fault=Fault.SILENT, scale=500) as cloud:
        plan = cloud.plan()
        cloud.run(plan, detach=True)
        cloud.fake.delete_fails(1000)
        removed = down(cloud)
        assert [(each.gone, each.reason) for each in removed] == [(False, "it is still there")]
        assert cloud.bucket.read(result_object(plan.name)) is None, "it may yet end well"
        with pytest.raises(ToolError) as raised:
            require_gone(removed)
        assert raised.value.report() == (
            f"error: not confirmed to be gone: VM {plan.name} in {ZONE}: it is still there\n"
            "hint: the same command again; launch status"
        )


def test_a_refused_deletion_does_not_keep_the_others(clouds: Clouds) -> None:
    with clouds(fault=Fault.SILENT) as cloud:
        first, second = sorted((cloud.plan(), cloud.plan()), key=lambda plan: plan.name)
        for plan in (first, second):
            cloud.run(plan, detach=True)
        cloud.fake.refuse(403, "not yours", match=f"DELETE .*{first.name}", times=100)
        removed = {each.name: each for each in down(cloud, bucket=None)}
        assert removed[second.name].gone
        assert not removed[first.name].gone
        assert removed[first.name].reason == "no permission in project 'my-project': not yours"


def test_a_result_of_the_vm_is_never_replaced(clouds: Clouds) -> None:
    with clouds() as cloud:
        plan = cloud.plan()
        cloud.run(plan)
        before = cloud.bucket.read(result_object(plan.name))
        cleanup.settle(cloud.bucket, plan.name, ZONE, 6, "late", now=cloud.clock.now)
        assert cloud.bucket.read(result_object(plan.name)) == before
        cleanup.settle(cloud.bucket, VM, ZONE, 6, "no such launch", now=cloud.clock.now)
        assert cloud.bucket.read(result_object(VM)) is None


def test_a_result_that_is_settled_keeps_what_the_vm_told(clouds: Clouds) -> None:
    with clouds(fault=Fault.STOPS_BEATING) as cloud:
        plan = cloud.plan()
        cloud.run(plan, detach=True)
        assert cloud.vm.started.wait(20)
        down(cloud)
        result = cloud.result(plan.name)
        assert list(result.phases)[:3] == ["requested", "booted", "driver_ready"]
        assert Result.from_bytes(cloud.bucket.read(result_object(plan.name)) or b"").zone == ZONE
        assert cloud.bucket.read(request_object(plan.name)) is not None


def test_reap_takes_only_what_is_ours_and_past_its_limit(clouds: Clouds) -> None:
    with clouds() as cloud:
        now_s = cloud.clock.now()
        old, new = now_s - 3600, now_s + 3600
        cloud.fake.add_vm(VM, project="my-project", labels=labels(old))
        cloud.fake.add_vm(VM.replace("aaaaaa", "bbbbbb"), project="my-project", labels=labels(new))
        cloud.fake.add_vm(VM.replace("aaaaaa", "cccccc"), project="my-project", labels=labels(now_s - 60))
        cloud.fake.add_vm(VM.replace("aaaaaa", "dddddd"), project="my-project", labels=labels(None))
        cloud.fake.add_vm("database", project="my-project", labels=labels(old))
        cloud.fake.add_vm(
            VM.replace("aaaaaa", "eeeeee"), project="my-project", labels={"rooflaunch-deadline": str(int(old))}
        )
        cloud.fake.add_disk(VM.replace("aaaaaa", "ffffff"), labels=labels(old))
        cloud.fake.add_disk(VM.replace("aaaaaa", "000000"), labels=labels(new))
        cloud.fake.add_disk("precious", labels=labels(old))
        left = cleanup.leftovers(cloud.compute, now_s)
        orphan = VM.replace("aaaaaa", "ffffff")
        assert left == [
            Leftover(kind="VM", name=VM, zone=ZONE, why="its limit was 60 min ago"),
            Leftover(kind="disk", name=orphan, zone=ZONE, why="its limit was 60 min ago"),
        ]
        removed = cleanup.reap(left, cloud.compute, now=cloud.clock.now, sleep=cloud.clock.sleep)
        assert [(each.kind, each.name, each.gone) for each in removed] == [("VM", VM, True), ("disk", orphan, True)]
        assert len(cloud.fake.instances) == 5
        assert orphan not in cloud.fake.disks
        assert "precious" in cloud.fake.disks
        assert cleanup.leftovers(cloud.compute, now_s) == []


def test_a_disk_that_cannot_be_deleted_is_told(clouds: Clouds) -> None:
    with clouds() as cloud:
        disk = Leftover(kind="disk", name=VM, zone=ZONE, why="old")
        cloud.fake.add_disk(VM, labels=labels(1))
        cloud.fake.refuse(403, "not yours", match="DELETE .*/disks/")
        (removed,) = cleanup.reap([disk], cloud.compute, now=cloud.clock.now, sleep=cloud.clock.sleep)
        assert (removed.gone, removed.reason) == (False, "no permission in project 'my-project': not yours")
        assert cleanup.reap([], cloud.compute, now=cloud.clock.now, sleep=cloud.clock.sleep) == []
        gone = replace(disk, name=VM.replace("aaaaaa", "bbbbbb"))
        (removed,) = cleanup.reap([gone], cloud.compute, now=cloud.clock.now, sleep=cloud.clock.sleep)
        assert removed.gone, "what is gone already is gone"

"""Ending launches: what is removed, what is left alone, and what counts as gone."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from launcher.jobs import cleanup
from launcher.jobs.cleanup import require_gone
from launcher.jobs.launches import LaunchState
from launcher.protocol.backend import Leftover, Listing, Removed
from launcher.protocol.records import Result, request_object, result_object
from tests.launcher.backends.gcp.canned_cloud import ZONE, Cloud, Clouds
from tests.launcher.backends.gcp.canned_vm import Fault
from workload.contract.errors import ExitCode, ToolError

pytestmark = pytest.mark.world

VM = "rooflaunch-t4-20260101-120000-aaaaaa"


def down(cloud: Cloud, **changes: Any) -> list[Removed]:
    machines = cloud.session().machines
    plain: dict[str, Any] = {"chosen": machines.look().there, "store": cloud.bucket} | changes
    with cloud.clock.busy():
        return cleanup.down(plain["chosen"], machines, plain["store"])


OURS = {"rooflaunch": "launch", "rooflaunch-limit": "3600"}
# Ages of VMs and disks with a limit of an hour: its end is 60.5 minutes ago, or still to come.
OLD_S, NEW_S = 7230, 0


def another(token: str) -> str:
    return VM.replace("aaaaaa", token)


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
            assert (result.exit_code, result.error) == (ExitCode.INTERRUPTED, "the VM was removed by `launch down`")
            assert cloud.state(plan.name).state is LaunchState.FAILED


def test_what_is_not_confirmed_is_an_error(clouds: Clouds) -> None:
    with clouds(fault=Fault.SILENT, scale=500) as cloud:
        plan = cloud.plan()
        cloud.run(plan, detach=True)
        cloud.fake.delete_fails(1000)
        removed = down(cloud)
        assert [(each.gone, each.reason) for each in removed] == [(False, "the VM still exists")]
        assert cloud.bucket.read(result_object(plan.name)) is None, "it may yet end well"
        with pytest.raises(ToolError) as raised:
            require_gone(removed)
        assert raised.value.report() == (
            f"error: not confirmed to be gone: VM {plan.name} in {ZONE}: the VM still exists\nhint: run the "
            "same command again; launch status shows what is left"
        )


def test_a_refused_deletion_does_not_keep_the_others(clouds: Clouds) -> None:
    with clouds(fault=Fault.SILENT) as cloud:
        first, second = sorted((cloud.plan(), cloud.plan()), key=lambda plan: plan.name)
        for plan in (first, second):
            cloud.run(plan, detach=True)
        cloud.fake.refuse(403, "not yours", match=f"DELETE .*{first.name}", times=100)
        removed = {each.name: each for each in down(cloud, store=None)}
        assert removed[second.name].gone
        assert not removed[first.name].gone
        assert removed[first.name].reason == "no permission in project 'my-project': not yours"


def test_a_result_of_the_vm_is_never_replaced(clouds: Clouds) -> None:
    with clouds() as cloud:
        plan = cloud.plan()
        cloud.run(plan)
        before = cloud.bucket.read(result_object(plan.name))
        cleanup.settle(cloud.bucket, plan.name, ZONE, 6, "late", now_s=cloud.clock.now())
        assert cloud.bucket.read(result_object(plan.name)) == before
        cleanup.settle(cloud.bucket, VM, ZONE, 6, "no such launch", now_s=cloud.clock.now())
        assert cloud.bucket.read(result_object(VM)) is None


def test_a_result_that_is_settled_keeps_what_the_vm_told(clouds: Clouds) -> None:
    with clouds(fault=Fault.STOPS_BEATING) as cloud:
        plan = cloud.plan()
        cloud.run(plan, detach=True)
        assert cloud.vm.started.wait(60)
        down(cloud)
        result = cloud.result(plan.name)
        assert list(result.phases)[:3] == ["requested", "booted", "driver_ready"]
        assert Result.from_bytes(cloud.bucket.read(result_object(plan.name)) or b"").zone == ZONE
        assert cloud.bucket.read(request_object(plan.name)) is not None


def test_reap_takes_only_what_is_ours_and_past_its_limit(clouds: Clouds) -> None:
    with clouds() as cloud, cloud.clock.busy():
        add_vm, add_disk = partial(cloud.fake.add_vm, project="my-project"), cloud.fake.add_disk
        add_vm(VM, labels=OURS, age_s=OLD_S)
        add_vm(another("bbbbbb"), labels=OURS, age_s=NEW_S)
        add_vm(another("cccccc"), labels=OURS, age_s=3660)
        add_vm(another("dddddd"), labels=OURS, age_s=OLD_S, limit_s=0)
        add_vm("database", labels=OURS, age_s=OLD_S)
        add_vm(another("eeeeee"), labels={"rooflaunch-limit": "3600"}, age_s=OLD_S)
        orphan = another("ffffff")
        add_disk(orphan, labels=OURS, age_s=OLD_S)
        add_disk(another("000000"), labels=OURS, age_s=NEW_S)
        add_disk(another("111111"), labels={"rooflaunch": "launch"}, age_s=OLD_S)
        add_disk("precious", labels=OURS, age_s=OLD_S)
        left = cloud.session().machines.leftovers()
        assert left.there == (
            Leftover(kind="VM", name=VM, zone=ZONE, why="its time limit ended 60 min ago"),
            Leftover(kind="disk", name=orphan, zone=ZONE, why="its time limit ended 60 min ago"),
        )
        removed = cloud.session().machines.stop(left.there)
        assert [(each.kind, each.name, each.gone) for each in removed] == [("VM", VM, True), ("disk", orphan, True)]
        assert len(cloud.fake.instances) == 5
        assert orphan not in cloud.fake.disks
        assert "precious" in cloud.fake.disks
        assert cloud.session().machines.leftovers() == Listing()


def test_a_disk_that_cannot_be_deleted_is_told(clouds: Clouds) -> None:
    with clouds() as cloud:
        disk = Leftover(kind="disk", name=VM, zone=ZONE, why="old")
        cloud.fake.add_disk(VM, labels=OURS)
        cloud.fake.refuse(403, "not yours", match="DELETE .*/disks/")
        (removed,) = cloud.session().machines.stop([disk])
        assert (removed.gone, removed.reason) == (False, "no permission in project 'my-project': not yours")
        assert cloud.session().machines.stop([]) == []
        cloud.fake.add_disk(VM, "europe-west4-b", labels=OURS)
        cloud.fake.outage("europe-west4-b", direct=False)
        elsewhere = replace(disk, zone="europe-west4-b")
        cloud.fake.burst(503, 100, match="GET .*/zones/europe-west4-b/disks")
        (removed,) = cloud.session().machines.stop([elsewhere])
        assert removed == Removed.unanswered("disk", VM, ["europe-west4-b"])
        gone = replace(disk, name=VM.replace("aaaaaa", "bbbbbb"))
        (removed,) = cloud.session().machines.stop([gone])
        assert removed.gone, "what is gone already is gone"

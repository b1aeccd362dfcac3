"""Ending VMs: requests and time for many of them, what is left alone, and what counts as gone."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from launcher.backends.gcp.compute import Compute
from launcher.backends.gcp.machines import PAUSE_S, REMOVE_S, ComputeMachines
from launcher.jobs import watch
from launcher.jobs.launches import LaunchState
from launcher.jobs.watch import require_gone
from launcher.protocol.backend import Condition, Leftover, Listing, Machine, Removed
from launcher.protocol.records import result_object
from tests.launcher.backends.gcp.canned_cloud import ZONE, Clouds
from tests.launcher.backends.gcp.canned_vm import Fault
from tests.launcher.backends.gcp.fake_compute import Clock, FakeCompute
from workload.contract.errors import ExitCode, ToolError
from workload.storage.store import UnreachableError

pytestmark = pytest.mark.world

VM = "rooflaunch-t4-20260101-120000-aaaaaa"
OURS = {"rooflaunch": "launch", "rooflaunch-limit": "3600"}
# Ages of VMs and disks with a limit of an hour: its end is 60.5 minutes ago, or still to come.
OLD_S, NEW_S = 7230, 0
Stop = Callable[..., list[Removed]]


def another(token: str) -> str:
    return VM.replace("aaaaaa", token)


@pytest.fixture
def stop(fake: FakeCompute, compute: Compute, clock: Clock) -> Stop:
    """Make so many VMs, and end them together."""

    def end(count: int, *, prepare: Callable[[], object] = lambda: None) -> list[Removed]:
        for number in range(count):
            fake.add_vm(another(f"{number:06x}"), labels=OURS)
        prepare()
        vms = [Machine(name=vm.name, zone=vm.zone, condition=Condition.RUNNING) for vm in fake.instances]
        return list(ComputeMachines(compute, sleep=clock.sleep).stop(vms))

    return end


def test_many_vms_take_as_long_as_one(fake: FakeCompute, clock: Clock, stop: Stop) -> None:
    removed = stop(30, prepare=lambda: fake.delete_fails(30))
    assert [(each.name, each.gone) for each in removed] == [(another(f"{number:06x}"), True) for number in range(30)]
    assert (fake.count("DELETE"), fake.instances, fake.disks) == (60, [], []), "each was lost once, and asked again"
    assert clock.slept_s <= 2 * PAUSE_S


@pytest.mark.parametrize("status", [0, 503, 400], ids=["operation fails", "503", "400"])
def test_deletion_that_fails_twice_is_repeated(status: int, fake: FakeCompute, stop: Stop) -> None:
    [removed] = stop(1, prepare=lambda: fake.delete_fails(2, status=status))
    assert removed.gone
    assert (fake.instances, fake.disks, fake.count("DELETE")) == ([], [], 3)


def test_denied_deletion_is_told_at_once_and_keeps_no_other(fake: FakeCompute, stop: Stop) -> None:
    removed = stop(3, prepare=lambda: fake.refuse(403, "not yours", match="DELETE .*000001", times=1000))
    told = "no permission in project 'test-project': not yours"
    assert [(each.gone, each.reason) for each in removed] == [(True, ""), (False, told), (True, "")]
    assert fake.count("DELETE") == 3


def test_incomplete_list_is_no_proof_that_a_vm_is_gone(
    monkeypatch: pytest.MonkeyPatch, fake: FakeCompute, compute: Compute, clock: Clock, stop: Stop
) -> None:
    monkeypatch.setattr(compute, "instances", Listing)
    removed = stop(2, prepare=lambda: fake.delete_fails(10**4))
    assert [(each.gone, each.reason) for each in removed] == [(False, "the VM still exists")] * 2
    assert clock.slept_s >= REMOVE_S
    with pytest.raises(ToolError) as raised:
        require_gone(removed[:1])
    assert raised.value.report() == (
        f"error: not confirmed to be gone: VM {another('000000')} in {ZONE}: the VM still exists\nhint: run the "
        "same command again; launch status shows what is left"
    )


def test_without_a_list_each_vm_is_asked_for_by_itself(
    monkeypatch: pytest.MonkeyPatch, compute: Compute, clock: Clock, stop: Stop
) -> None:
    def no_answer(*_: str) -> Any:
        raise UnreachableError("no answer", hint="again")

    monkeypatch.setattr(compute, "instances", no_answer)
    assert all(each.gone for each in stop(2))
    monkeypatch.setattr(compute, "get", no_answer)
    [removed] = stop(1)
    assert (removed.gone, removed.unknown, removed.reason) == (False, True, "the zone does not answer")
    assert clock.slept_s >= REMOVE_S, "it is asked again until then"


def test_down_ends_launches_and_says_so_in_the_bucket(clouds: Clouds) -> None:
    with clouds(fault=Fault.STOPS_BEATING) as cloud:
        plans = [cloud.plan() for _ in range(2)]
        for plan in plans:
            cloud.run(plan, detach=True)
        assert cloud.vm.started.wait(60)
        machines = cloud.session().machines
        with cloud.clock.busy():
            removed = watch.down(machines.look().there, machines, cloud.bucket)
        assert [(each.kind, each.name, each.zone, each.gone, each.reason) for each in removed] == [
            ("VM", name, ZONE, True, "") for name in sorted(plan.name for plan in plans)
        ]
        assert cloud.fake.instances == []
        for plan in plans:
            result = cloud.result(plan.name)
            assert (result.exit_code, result.error) == (ExitCode.INTERRUPTED, "the VM was removed by `launch down`")
            assert cloud.state(plan.name).state is LaunchState.FAILED
        # A result is written once, with what the VM told, and for no other launch.
        settled = cloud.bucket.read(result_object(plans[0].name))
        for name in (plans[0].name, VM):
            watch.settle(cloud.bucket, name, ZONE, 6, "late", now_s=cloud.clock.now())
        assert list(cloud.result(plans[0].name).phases)[:3] == ["requested", "booted", "driver_ready"]
        assert cloud.bucket.read(result_object(plans[0].name)) == settled
        assert cloud.bucket.read(result_object(VM)) is None


def test_leftovers_are_what_is_ours_and_past_its_limit(clouds: Clouds) -> None:
    with clouds() as cloud, cloud.clock.busy():
        add_vm, add_disk = partial(cloud.fake.add_vm, project="my-project"), cloud.fake.add_disk
        add_vm(VM, labels=OURS, age_s=OLD_S)
        cloud.fake._disks[ZONE, VM]["labels"] = OURS  # which goes with its VM
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
        machines = cloud.session().machines
        left = machines.leftovers()
        assert left.there == (
            Leftover(kind="VM", name=VM, zone=ZONE, why="its time limit ended 60 min ago"),
            Leftover(kind="disk", name=orphan, zone=ZONE, why="its time limit ended 60 min ago"),
        )
        cloud.fake.calls.clear()
        removed = machines.stop(left.there[::-1])
        assert [(each.kind, each.name, each.gone) for each in removed] == [("disk", orphan, True), ("VM", VM, True)]
        deleted = [call.split("/")[-2] for call in cloud.fake.calls if call.startswith("DELETE")]
        assert deleted == ["instances", "disks"], "a VM takes its disk with it"
        assert len(cloud.fake.instances) == 5
        assert orphan not in cloud.fake.disks
        assert "precious" in cloud.fake.disks
        assert machines.leftovers() == Listing()


def test_disk_that_cannot_be_deleted_is_told(clouds: Clouds) -> None:
    def removed(name: str, zone: str = ZONE) -> Removed:
        [each] = cloud.session().machines.stop([Leftover(kind="disk", name=name, zone=zone, why="old")])
        return each

    with clouds() as cloud:
        cloud.fake.add_disk(VM, labels=OURS)
        cloud.fake.refuse(403, "not yours", match="DELETE .*/disks/")
        assert removed(VM).reason == "no permission in project 'my-project': not yours"
        cloud.fake.add_disk(VM, "europe-west4-b", labels=OURS)
        cloud.fake.outage("europe-west4-b", direct=False)
        cloud.fake.burst(503, 100, match="GET .*/zones/europe-west4-b/disks")
        assert removed(VM, "europe-west4-b") == Removed.unanswered("disk", VM, ["europe-west4-b"])
        assert removed(another("bbbbbb")).gone, "what is gone already is gone"

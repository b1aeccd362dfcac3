"""Ending VMs: requests and time for many of them, what is left alone, and what counts as gone."""

from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest

from launcher.backends.gcp.answers import DeniedError, Instance, Operation, VmDisk
from launcher.backends.gcp.machines import PAUSE_S, REMOVE_S, ComputeMachines
from launcher.jobs import watch
from launcher.jobs.launches import LaunchState
from launcher.jobs.watch import require_gone
from launcher.protocol.backend import Leftover, Listing, Removed
from launcher.protocol.records import result_object
from tests.launcher.backends.gcp.canned_cloud import Cloud as WholeCloud
from tests.launcher.backends.gcp.canned_cloud import Clouds
from tests.launcher.backends.gcp.canned_vm import Fault
from tests.launcher.rented_vm import MACHINE, ZONE
from workload.contract.errors import ExitCode, ToolError

# What the cloud takes for one, as often seen.
DELETION_S = 90.0


@dataclass
class Cloud:
    """VMs with the time at which each is gone; `lost`: how many deletions are answered and not done."""

    vms: dict[str, float | None] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)
    order: list[str] = field(default_factory=list)
    s: float = 0.0
    lost: int = 0
    denied: str = ""
    outage: bool = False
    project: str = "my-project"

    def counted(self) -> "Cloud":
        return self

    def now_s(self) -> float:
        return self.s

    def sleep(self, seconds: float) -> None:
        self.s += seconds

    def there(self) -> list[str]:
        return [name for name, gone_s in self.vms.items() if gone_s is None or gone_s > self.s]

    def instance(self, name: str) -> Instance:
        return Instance(**vars(MACHINE) | {"name": name, "status": "STOPPING" if self.vms[name] else "RUNNING"})

    def instances(self) -> Listing[Instance]:
        self.calls["list"] += 1
        if self.outage:
            raise ToolError("a zone does not answer", hint="again")
        return Listing(there=tuple(self.instance(name) for name in self.there()))

    def get(self, zone: str, name: str) -> Instance | None:
        assert zone == ZONE
        self.calls["get"] += 1
        return self.instance(name) if name in self.there() else None

    def delete(self, zone: str, name: str) -> Operation | None:
        self.calls["delete"] += 1
        self.order.append("delete")
        if name == self.denied:
            raise DeniedError("not yours", hint="ask")
        if name not in self.there():
            return None
        if self.lost:
            self.lost -= 1
        elif self.vms[name] is None:
            self.vms[name] = self.s + DELETION_S
        return Operation(name="o", zone=zone)

    def disks(self) -> Listing[VmDisk]:
        return Listing()

    def delete_disk(self, *_: str) -> None:
        self.calls["delete disk"] += 1
        self.order.append("delete disk")


def cloud_of(count: int, **changes: Any) -> Cloud:
    return Cloud(vms={f"rooflaunch-t4-20261121-120000-{number:06x}": None for number in range(count)}, **changes)


def down(cloud: Cloud) -> list[Removed]:
    return watch.down([cloud.instance(name) for name in cloud.vms], machines_of(cloud), None)


def machines_of(cloud: Cloud) -> ComputeMachines:
    compute: Any = cloud
    return ComputeMachines(compute, sleep=cloud.sleep)


def test_a_hundred_vms_take_as_long_as_one() -> None:
    cloud = cloud_of(100)
    removed = down(cloud)
    assert [each.name for each in removed] == list(cloud.vms)
    assert all(each.gone for each in removed)
    assert cloud.s <= DELETION_S + 2 * PAUSE_S
    assert cloud.calls == {"delete": 100, "list": 31, "get": 100}


def test_a_deletion_that_was_lost_is_asked_for_again() -> None:
    cloud = cloud_of(3, lost=2)
    assert all(each.gone for each in down(cloud))
    assert cloud.calls["delete"] == 5


def test_a_list_that_is_incomplete_is_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    cloud = cloud_of(2)
    first = next(iter(cloud.vms))
    monkeypatch.setattr(cloud, "instances", Listing)
    monkeypatch.setattr(cloud, "lost", 1000)
    cloud.vms[first] = -1.0
    assert [(each.gone, each.reason) for each in down(cloud)] == [(True, ""), (False, "the VM still exists")]
    assert cloud.s == pytest.approx(REMOVE_S)


def test_without_a_list_each_is_asked_for_by_itself() -> None:
    cloud = cloud_of(2, outage=True)
    assert all(each.gone for each in down(cloud))


def test_a_zone_that_does_not_answer_is_no_proof_of_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_answer(*_: str) -> None:
        raise ToolError("no answer", hint="again")

    cloud = cloud_of(1, outage=True)
    monkeypatch.setattr(cloud, "get", no_answer)
    (removed,) = down(cloud)
    assert (removed.gone, removed.unknown, removed.reason) == (False, True, "the zone does not answer")
    assert cloud.s >= REMOVE_S, "it is asked again until then"


def test_one_that_is_denied_keeps_no_other() -> None:
    cloud = cloud_of(3)
    denied = list(cloud.vms)[1]
    cloud.denied = denied
    assert {each.name: each.reason for each in down(cloud) if not each.gone} == {denied: "not yours"}
    assert cloud.calls["delete"] == 3


def test_what_is_not_confirmed_is_an_error() -> None:
    cloud = cloud_of(1, lost=1000)
    with pytest.raises(ToolError) as raised:
        require_gone(down(cloud))
    assert raised.value.report() == (
        f"error: not confirmed to be gone: VM {next(iter(cloud.vms))} in {ZONE}: the VM still exists\nhint: run the "
        "same command again; launch status shows what is left"
    )


def test_reap_ends_its_vms_together_before_its_disks() -> None:
    cloud = cloud_of(20)
    left = [Leftover(kind="VM", name=name, zone=ZONE, why="old") for name in cloud.vms]
    left.insert(0, Leftover(kind="disk", name="rooflaunch-d1", zone=ZONE, why="old"))
    removed = machines_of(cloud).stop(left)
    assert [each.kind for each in removed] == ["disk"] + ["VM"] * 20, "in the order given"
    assert cloud.order == ["delete"] * 20 + ["delete disk"]
    assert all(each.gone for each in removed)
    assert cloud.calls["delete"] == 20
    assert cloud.s <= DELETION_S + 2 * PAUSE_S


# With the real client.

VM = "rooflaunch-t4-20260101-120000-aaaaaa"
OURS = {"rooflaunch": "launch", "rooflaunch-limit": "3600"}
# Ages of VMs and disks with a limit of an hour: its end is 60.5 minutes ago, or still to come.
OLD_S, NEW_S = 7230, 0


def another(token: str) -> str:
    return VM.replace("aaaaaa", token)


@pytest.mark.world
def test_down_ends_launches_and_says_so_in_the_bucket(clouds: Clouds) -> None:
    with clouds(fault=Fault.NO_HEARTBEAT) as cloud:
        plans = [cloud.plan() for _ in range(3)]
        for plan in plans:
            cloud.run(plan, detach=True)
        cloud.fake.delete_fails(2)
        machines = cloud.session().machines
        with cloud.clock.busy():
            removed = watch.down(machines.look().there, machines, cloud.bucket)
        assert [(each.kind, each.name, each.zone, each.gone, each.reason) for each in removed] == [
            ("VM", name, ZONE, True, "") for name in sorted(plan.name for plan in plans)
        ]
        assert cloud.fake.instances == []
        assert cloud.fake.count("DELETE") == 5, "two deletions failed and were repeated"
        for plan in plans:
            result = cloud.result(plan.name)
            assert (result.exit_code, result.error) == (ExitCode.INTERRUPTED, "the VM was removed by `launch down`")
            assert cloud.state(plan.name).state is LaunchState.FAILED


@pytest.mark.world
def test_a_result_is_settled_once_with_what_the_vm_told(clouds: Clouds) -> None:
    def settle(cloud: WholeCloud, name: str) -> bytes | None:
        watch.settle(cloud.bucket, name, ZONE, 6, "late", now_s=cloud.clock.now())
        return cloud.bucket.read(result_object(name))

    with clouds(fault=Fault.STOPS_BEATING) as cloud:
        plan = cloud.plan()
        cloud.run(plan, detach=True)
        assert cloud.vm.started.wait(60)
        settled = settle(cloud, plan.name)
        assert list(cloud.result(plan.name).phases)[:3] == ["requested", "booted", "driver_ready"]
        assert settle(cloud, plan.name) == settled
        assert settle(cloud, VM) is None, "no such launch"


@pytest.mark.world
def test_reap_takes_only_what_is_ours_and_past_its_limit(clouds: Clouds) -> None:
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


@pytest.mark.world
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

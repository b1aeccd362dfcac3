"""Ending many VMs: what is asked of the cloud, how often, and how long that takes."""

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from launcher.backends.gcp.machines import ComputeMachines
from launcher.backends.gcp.provision import PAUSE_S, REMOVE_S
from launcher.backends.gcp.refusals import DeniedError
from launcher.backends.gcp.resources import Instance, Operation, VmDisk
from launcher.jobs import cleanup
from launcher.protocol.backend import Leftover, Listing, Removed
from tests.launcher.backends.gcp.plain import INSTANCE, ZONE
from workload.contract.errors import ToolError

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
        return replace(INSTANCE, name=name, status="RUNNING" if self.vms[name] is None else "STOPPING")

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

    def wait(self, _: Operation, limit_s: float) -> tuple[()]:
        """A deletion that is waited for takes its time."""
        self.s += min(DELETION_S, limit_s)
        return ()

    def disks(self) -> Listing[VmDisk]:
        return Listing()

    def delete_disk(self, *_: str) -> None:
        self.calls["delete disk"] += 1
        self.order.append("delete disk")


def cloud_of(count: int, **changes: Any) -> Cloud:
    return Cloud(vms={f"rooflaunch-t4-20261121-120000-{number:06x}": None for number in range(count)}, **changes)


def down(cloud: Cloud) -> list[Removed]:
    return cleanup.down([cloud.instance(name) for name in cloud.vms], machines_of(cloud), None)


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


def test_one_that_is_denied_keeps_no_other() -> None:
    cloud = cloud_of(3)
    denied = list(cloud.vms)[1]
    cloud.denied = denied
    assert {each.name: each.reason for each in down(cloud) if not each.gone} == {denied: "not yours"}
    assert cloud.calls["delete"] == 3


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

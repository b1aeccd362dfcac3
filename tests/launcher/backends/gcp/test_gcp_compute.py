"""The border to Compute Engine: the real client over HTTP, and what it sends."""

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

import pytest

from launcher.backends.gcp import answers
from launcher.backends.gcp import compute as border
from launcher.backends.gcp.answers import ANYWHERE, AlreadyThereError, Operation, OperationFault, gaps
from launcher.backends.gcp.compute import Compute
from launcher.protocol.backend import Condition, Listing, Output
from tests.launcher.backends.gcp import fake_compute
from tests.launcher.backends.gcp.compute_bodies import ID, A, gpu_body, plain_body, quota_error, stockout_error
from tests.launcher.backends.gcp.compute_bodies import VM_NAME as NAME
from tests.launcher.backends.gcp.fake_compute import Clock, FakeCompute
from workload.contract.errors import ToolError, UsageError

pytestmark = pytest.mark.world

OURS = {"rooflaunch": "launch", "rooflaunch-name": NAME, "rooflaunch-limit": "3600"}


# What is there.


def test_an_instance_as_it_is_told(fake: FakeCompute, compute: Compute) -> None:
    assert compute.wait(compute.insert(A, gpu_body(labels={**OURS, "rooflaunch-request": ID}), ID), 1.0) == ()
    found = compute.get(A, NAME)
    assert found is not None
    assert (found.name, found.zone, found.condition, found.status) == (NAME, A, Condition.RUNNING, "RUNNING")
    assert (found.deadline_s, found.request_id) == (fake.vm(NAME).deadline_s, ID)
    assert found.created_s == fake.vm(NAME).created_s
    fake.stop(NAME)
    stopped = compute.get(A, NAME)
    assert stopped is not None
    assert stopped.deadline_s == pytest.approx(fake.vm(NAME).created_s + 3600, abs=0.001), "no message of the cloud"
    fake.add_vm("without-limit", limit_s=0)
    found = compute.get(A, "without-limit")
    assert found is not None
    assert (found.deadline_s, found.request_id, found.restarts_until_s) == (None, "", None)


@pytest.mark.parametrize(
    ("status", "spot", "condition"),
    [
        ("PROVISIONING", False, Condition.STARTING),
        ("RUNNING", False, Condition.RUNNING),
        ("STOPPING", False, Condition.RUNNING),
        ("TERMINATED", False, Condition.STOPPED),
        ("REPAIRING", False, Condition.STOPPED),
        ("REPAIRING", True, Condition.RUNNING),
    ],
)
def test_condition_of_a_vm_by_its_status(
    status: str, spot: bool, condition: Condition, fake: FakeCompute, compute: Compute
) -> None:
    vm = fake.add_vm(NAME)
    vm.status, vm.body["scheduling"]["automaticRestart"] = status, not spot
    found = compute.get(A, NAME)
    assert found is not None
    assert (found.condition, found.restarts) == (condition, not spot)


def test_the_time_is_the_clouds(fake: FakeCompute, compute: Compute, clock: Clock) -> None:
    fake.clock = lambda: 1795262400.6 + clock.slept_s
    assert compute.now_s() == 1795262400.0, "a date has no fractions"
    assert fake.calls == ["GET /compute/v1/projects/test-project"], "any answer will do"
    clock.sleep(90.5)
    assert compute.counted().now_s() == 1795262490.5
    compute.project_quotas()
    assert compute.now_s() == 1795262491.0, "the latest date is the nearest to the truth"
    fake.clock = lambda: 0.0
    compute.project_quotas()
    assert compute.now_s() == 1795262491.0


def test_answers_without_a_date_tell_no_age(compute: Compute, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_compute._Handler, "date_time_string", lambda *_: "today")
    with pytest.raises(ToolError, match=r"^Compute Engine's answers have no date, so the age of VMs is"):
        compute.now_s()


def test_nothing_there(fake: FakeCompute, compute: Compute) -> None:
    assert compute.get(A, NAME) is None
    assert compute.delete(A, NAME) is None
    assert compute.delete_disk(A, NAME) is None
    assert compute.serial(A, NAME, 7) == Output(text="", next_start=7)
    assert compute.guest_attributes(A, NAME) == {}
    fake.add_vm("not-ready-yet").status = "PROVISIONING"
    assert compute.serial(A, "not-ready-yet", 7) == Output(text="", next_start=7)
    assert not compute.preempted(A, NAME)
    assert (compute.instances(), compute.disks()) == (Listing(), Listing())
    assert compute.get_image("ubuntu-os-cloud", "no-such-family") is None
    fake.refuse(404, "The resource 'projects/ubuntu-os-gone' was not found", reason="notFound")
    assert compute.get_image("ubuntu-os-gone", "no-such-family") is None, "nor the project"
    assert fake.count(".") == 11


def test_a_404_for_something_else_is_not_a_vm_that_is_gone(fake: FakeCompute, compute: Compute) -> None:
    for method in (compute.get, compute.delete):
        fake.refuse(404, "The resource 'projects/test-project' was not found", reason="notFound")
        with pytest.raises(UsageError, match=r"^project 'test-project' does not exist, or is not yours$"):
            method(A, NAME)


def test_lists_have_every_page_and_only_ours(fake: FakeCompute, compute: Compute) -> None:
    for zone in (A, "europe-west4-b", "asia-east1-b"):
        for index in range(2):
            fake.add_vm(f"rooflaunch-{index}", zone, labels=OURS)
            fake.add_disk(f"left-{index}", zone, labels=OURS)
    fake.add_vm("somebody-elses")
    fake.add_disk("somebody-elses-too", labels={"rooflaunch": "other"})
    wanted = [(A, 0), (A, 1), ("europe-west4-b", 0), ("europe-west4-b", 1), ("asia-east1-b", 0), ("asia-east1-b", 1)]
    assert [(each.zone, each.name) for each in compute.instances()] == [(z, f"rooflaunch-{i}") for z, i in wanted]
    assert fake.count("aggregated/instances") == 3
    disks = [each for each in compute.disks() if each.name.startswith("left")]
    assert [(each.zone, each.name) for each in disks] == [(z, f"left-{i}") for z, i in wanted]
    created_s = datetime.fromisoformat(fake._disks[A, "left-0"]["creationTimestamp"]).timestamp()
    assert (disks[0].deadline_s, disks[0].users) == (created_s + 3600, ())


B = "europe-west4-b"


def test_list_in_an_outage_says_what_it_lacks(fake: FakeCompute, compute: Compute) -> None:
    for zone in (A, B):
        fake.add_vm("rooflaunch-1", zone, labels=OURS)
        fake.add_disk("left", zone, labels=OURS)
    fake.outage(A)
    for listing in (compute.instances(), compute.disks()):
        assert listing.unreachable == (A,)
        assert {each.zone for each in listing} == {B}
        assert [listing.may_have_more(zone) for zone in (A, B, "us-central1-b")] == [True, False, False]
    fake.outage_ends()
    fake.outage(A, direct=False)
    for listing in (compute.instances(), compute.disks()):
        assert listing.unreachable == (), "the zone itself has answered"
        assert {each.zone for each in listing} == {A, B}
    fake.outage(A, fails=True)
    assert compute.instances() == Listing(unreachable=(ANYWHERE,))
    assert compute.instances().may_have_more(B)
    assert compute.get(B, "rooflaunch-1") is not None


GAPS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "a zone of a scope": ({"items": {"zones/us-a1-a": {"warning": {"code": "UNREACHABLE"}}}}, ["us-a1-a"]),
    "a zone of a warning": (
        {"warning": {"code": "UNREACHABLE", "data": [{"key": "scope", "value": "zones/us-a1-a"}]}},
        ["us-a1-a"],
    ),
    "a zone without anything": ({"items": {"zones/us-a1-a": {"warning": {"code": "NO_RESULTS_ON_PAGE"}}}}, []),
    "a region": ({"unreachables": ["regions/us-central1"]}, ["us-central1"]),
    "somewhere": ({"warning": {"code": "PARTIAL_SUCCESS"}}, [ANYWHERE]),
    "a zone, said twice": ({"unreachables": ["zones/us-a1-a"], "warning": {"code": "UNREACHABLE"}}, ["us-a1-a"]),
}


@pytest.mark.parametrize(("page", "places"), GAPS.values(), ids=list(GAPS))
def test_gaps_of_a_page_as_googles_client_has_it(page: dict[str, Any], places: list[str]) -> None:
    from google.cloud import compute_v1

    assert gaps(compute_v1.InstanceAggregatedList.from_json(json.dumps(page))) == places
    assert Listing(unreachable=("us-central1",)).may_have_more(A), "a region's zones"


def test_a_disk_knows_its_vm_and_goes_with_it(fake: FakeCompute, compute: Compute) -> None:
    body = plain_body(NAME, A)
    body["disks"][0]["initializeParams"]["labels"] = OURS
    compute.insert(A, body, ID)
    assert [each.users for each in compute.disks()] == [(NAME,)]
    with pytest.raises(ToolError, match=rf"The disk '{NAME}' is in use"):
        compute.delete_disk(A, NAME)
    operation = compute.delete(A, NAME)
    assert operation is not None
    assert compute.wait(operation, 1.0) == ()
    assert (compute.disks(), fake.disks) == (Listing(), [])


def test_guest_attributes_are_those_of_our_namespace(fake: FakeCompute, compute: Compute) -> None:
    vm = fake.add_vm(NAME)
    vm.guest_attributes = {"rooflaunch": {"booted": "2026-11-21T14:26:00.000Z"}, "hostkeys": {"ssh-rsa": "AAAA"}}
    assert compute.guest_attributes(A, NAME) == {"booted": "2026-11-21T14:26:00.000Z"}


# What is sent.


def test_the_same_request_makes_one_vm(fake: FakeCompute, compute: Compute) -> None:
    assert compute.insert(A, gpu_body(), ID) == compute.insert(A, gpu_body(), ID)
    assert len(fake.all_vms) == 1
    with pytest.raises(AlreadyThereError):
        compute.insert(A, gpu_body(), "f" * 32)


# Operations.


REGIONAL = quota_error("us-central1", "NVIDIA_T4_GPUS", 0.0)
GLOBAL = quota_error("global", "GPUS_ALL_REGIONS", 0.0)
STOCKOUT = stockout_error(A, zones_available="us-central1-b,us-central1-f", with_details=True)


@pytest.mark.parametrize(
    ("error", "details"),
    [
        (STOCKOUT, {"zones_available": ("us-central1-b", "us-central1-f")}),
        (REGIONAL, {"quota_dimensions": {"region": "us-central1"}}),
        (GLOBAL, {"quota_dimensions": {"global": "global"}}),
    ],
    ids=["stockout", "a region's quota", "the project's quota"],
)
def test_every_detail_of_an_error_is_read(
    error: dict[str, Any], details: dict[str, Any], fake: FakeCompute, compute: Compute
) -> None:
    fake.fail(A, error)
    faults = compute.wait(compute.insert(A, gpu_body(), ID), 1.0)
    assert faults == (OperationFault(code=error["code"], message=error["message"], **details),)


def test_an_operation_that_is_not_done_within_the_limit(fake: FakeCompute, compute: Compute, clock: Clock) -> None:
    fake.endless_operation(A)
    assert compute.wait(compute.insert(A, gpu_body(), ID), 20.0) is None
    assert (clock.slept_s, fake.count("/wait$")) == (20.0, 10)


def test_a_wait_whose_answer_is_late_gives_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(border, "LAST_ANSWER_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv(answers.ENDPOINT_VARIABLE, f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert border.connect("test-project").wait(Operation(name="operation-1", zone=A), 0.2) is None


# Temporary failures.


@pytest.mark.parametrize("statuses", [(429, 500, 502), (503, 504, 403)])
def test_bursts_are_ridden_out(statuses: tuple[int, ...], fake: FakeCompute, compute: Compute, clock: Clock) -> None:
    fake.add_vm(NAME)
    for status in statuses:
        fake.burst(status, 1)
    assert compute.get(A, NAME) is not None
    assert (compute.calls, fake.count(".")) == ({"instances.get": 4}, 4)
    # Between half and one and a half of 0.5 + 1 + 2 s.
    assert 1.75 <= clock.slept_s <= 5.25


# Many at once.


def test_threads_share_one_client_and_count_for_themselves(fake: FakeCompute, compute: Compute) -> None:
    def launch(index: int) -> dict[str, int]:
        own = compute.counted()
        body = {**gpu_body(), "name": f"rooflaunch-{index}"}
        assert own.wait(own.insert(A, body, f"{index + 1:032x}"), 60.0) == ()
        assert own.get(A, body["name"]) is not None
        return dict(own.calls)

    with ThreadPoolExecutor(20) as pool:
        counted = list(pool.map(launch, range(40)))
    assert counted == [{"instances.insert": 1, "zoneOperations.wait": 1, "instances.get": 1}] * 40
    assert compute.calls == {"instances.insert": 40, "zoneOperations.wait": 40, "instances.get": 40}
    assert (len(fake.instances), len(fake.calls)) == (40, 120)

"""The border to Compute Engine: the real client over HTTP, what it sends, and what its failures become."""

import http.client
import json
import signal
import socket
import threading
import urllib.parse
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

import pytest
from google.protobuf import json_format

from launcher.backends.gcp import compute as border
from launcher.backends.gcp import refusals
from launcher.backends.gcp.compute import Compute, ComputePatience
from launcher.backends.gcp.refusals import AlreadyThereError, DeniedError, RefusedError
from launcher.backends.gcp.resources import (
    ANYWHERE,
    Operation,
    OperationFault,
    Quota,
    gaps,
)
from launcher.protocol.backend import Condition, Listing, Output
from tests.launcher.backends.gcp import fake_compute
from tests.launcher.backends.gcp.compute_bodies import plain_body, quota_error, stockout_error
from tests.launcher.backends.gcp.fake_compute import Clock, FakeCompute, Vm
from tests.ports import held_port
from workload.contract.errors import ExitCode, InterruptedRunError, RooflaunchError, ToolError, UsageError
from workload.contract.interrupt import stoppable
from workload.storage.store import UnreachableError

pytestmark = pytest.mark.world

A = "us-central1-a"
NAME = "rooflaunch-t4-20261121-142530-c0ffee"
OURS = {"rooflaunch": "launch", "rooflaunch-name": NAME, "rooflaunch-limit": "3600"}
ID = "0123456789abcdef0123456789abcdef"


def gpu_body(**changes: Any) -> dict[str, Any]:
    """A T4 as the plan asks for it, in short."""
    body = plain_body(NAME, A)
    body["machineType"] = f"zones/{A}/machineTypes/n1-standard-4"
    kind = f"zones/{A}/acceleratorTypes/nvidia-tesla-t4"
    return {**body, "guestAccelerators": [{"acceleratorType": kind, "acceleratorCount": 1}], **changes}


# What is there.


def test_an_instance_as_it_is_told(fake: FakeCompute, compute: Compute) -> None:
    assert compute.wait(compute.insert(A, gpu_body(labels={**OURS, "rooflaunch-request": ID}), ID), 1.0) == ()
    found = compute.get(A, NAME)
    assert found is not None
    assert (found.name, found.zone, found.condition, found.status) == (NAME, A, Condition.RUNNING, "RUNNING")
    assert (found.deadline_s, found.request_id) == (fake.vm(NAME).deadline_s, ID)
    assert found.created_s == fake.vm(NAME).created_s


def test_what_is_not_told_is_unknown(fake: FakeCompute, compute: Compute) -> None:
    fake.add_vm(NAME, limit_s=0)
    found = compute.get(A, NAME)
    assert found is not None
    assert (found.deadline_s, found.request_id, found.restarts_until_s) == (None, "", None)


def test_the_end_of_a_vm_is_what_the_cloud_says(fake: FakeCompute, compute: Compute) -> None:
    machine = fake.add_vm(NAME, age_s=1000, limit_s=1200, labels={"rooflaunch-deadline": "7"})
    machine.deadline_s = machine.created_s + 1225
    found = compute.get(A, NAME)
    assert found is not None
    assert found.deadline_s == pytest.approx(machine.deadline_s, abs=0.001)
    fake.stop(NAME)
    found = compute.get(A, NAME)
    assert found is not None
    assert found.deadline_s == pytest.approx(machine.created_s + 1200, abs=0.001), "of a stopped one no message"


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
    assert not compute.preempted(A, NAME)
    assert (compute.instances(), compute.disks()) == (Listing(), Listing())
    assert compute.get_image("ubuntu-os-cloud", "no-such-family") is None
    fake.refuse(404, "The resource 'projects/ubuntu-os-gone' was not found", reason="notFound")
    assert compute.get_image("ubuntu-os-gone", "no-such-family") is None, "nor the project"
    assert not compute.machine_type(A, "n1-standard-3")
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


@pytest.mark.parametrize("told", ["unreachables", "scope", "warning"])
def test_a_list_in_an_outage_says_what_it_lacks(told: str, fake: FakeCompute, compute: Compute) -> None:
    for zone in (A, B):
        fake.add_vm("rooflaunch-1", zone, labels=OURS)
        fake.add_disk("left", zone, labels=OURS)
    fake.outage(A, told)
    for listing in (compute.instances(), compute.disks()):
        assert listing.unreachable == (A,)
        assert {each.zone for each in listing} == {B}
        assert [listing.may_have_more(zone) for zone in (A, B, "us-central1-b")] == [True, False, False]
    fake.outage_ends()
    fake.outage(A, told, direct=False)
    for listing in (compute.instances(), compute.disks()):
        assert listing.unreachable == (), "the zone itself has answered"
        assert {each.zone for each in listing} == {A, B}


def test_a_list_that_fails_whole_says_nothing_of_any_zone(fake: FakeCompute, compute: Compute) -> None:
    fake.add_vm("rooflaunch-1", B, labels=OURS)
    fake.outage(A, "fails")
    assert compute.instances() == Listing(unreachable=(ANYWHERE,))
    assert compute.instances().may_have_more(B)
    assert compute.get(B, "rooflaunch-1") is not None


GAPS: dict[str, tuple[dict[str, Any], list[str]]] = {
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


def test_serial_port_is_read_piece_by_piece(fake: FakeCompute, compute: Compute) -> None:
    vm = fake.add_vm(NAME)
    vm.write_serial("grün\n")
    first = compute.serial(A, NAME, 0)
    assert first == Output(text="grün\n", next_start=6)
    vm.write_serial("more\n")
    assert compute.serial(A, NAME, first.next_start) == Output(text="more\n", next_start=11)
    # Of an older text than the last MB nothing is left: it goes on where it can.
    vm.write_serial("x" * (1 << 20))
    assert compute.serial(A, NAME, 0) == Output(text="x" * (1 << 20), next_start=11 + (1 << 20))


def test_guest_attributes_are_those_of_our_namespace(fake: FakeCompute, compute: Compute) -> None:
    vm = fake.add_vm(NAME)
    vm.guest_attributes = {"rooflaunch": {"booted": "2026-11-21T14:26:00.000Z"}, "hostkeys": {"ssh-rsa": "AAAA"}}
    assert compute.guest_attributes(A, NAME) == {"booted": "2026-11-21T14:26:00.000Z"}


def test_preempted_is_told_after_the_vm_is_gone(fake: FakeCompute, compute: Compute) -> None:
    for name in (NAME, f"{NAME}-2"):
        fake.add_vm(name)
    fake.preempt(f"{NAME}-2")
    fake.kill(NAME)
    assert (compute.preempted(A, NAME), compute.preempted(A, f"{NAME}-2")) == (False, True)
    assert compute.get(A, NAME) is None


def test_quotas(fake: FakeCompute, compute: Compute) -> None:
    fake.set_quota("us-central1", "NVIDIA_T4_GPUS", 4, usage=1)
    fake.set_quota("us-central1", "PREEMPTIBLE_NVIDIA_T4_GPUS", 0)
    compute.insert(A, gpu_body(), ID)
    found = compute.region_quotas("us-central1")["NVIDIA_T4_GPUS"]
    assert (found, found.remaining) == (Quota(limit=4.0, usage=2.0), 2.0)
    assert compute.project_quotas() == {"GPUS_ALL_REGIONS": Quota(limit=1000.0, usage=1.0)}


# What is sent.


def test_a_body_arrives_as_it_was_given(fake: FakeCompute, compute: Compute) -> None:
    hostile = "a\"b'c\n$(touch /tmp/x) é€😀 " + "x" * 4096
    body = gpu_body(metadata={"items": [{"key": "rooflaunch-request", "value": hostile}]}, labels=OURS)
    compute.insert(A, body, ID)
    assert fake.bodies == [body]


def test_a_field_that_does_not_exist_never_leaves(fake: FakeCompute, compute: Compute) -> None:
    with pytest.raises(Exception, match='no field named "machineTyp"'):
        compute.insert(A, {"name": NAME, "machineTyp": "n1-standard-4"}, ID)
    assert fake.calls == []


def test_the_same_request_makes_one_vm(fake: FakeCompute, compute: Compute) -> None:
    assert compute.insert(A, gpu_body(), ID) == compute.insert(A, gpu_body(), ID)
    assert len(fake.all_vms) == 1
    with pytest.raises(AlreadyThereError):
        compute.insert(A, gpu_body(), "f" * 32)


def changed(path: str, value: Any) -> dict[str, Any]:
    """The body with the value at a path such as `disks.0.boot`."""
    body: Any = json.loads(json.dumps(gpu_body()))
    *parents, last = path.split(".")
    place = body
    for each in parents:
        place = place[int(each)] if each.isdigit() else place[each]
    place[last] = value
    return dict(body)


SPOT_THAT_RESTARTS = {
    "provisioningModel": "SPOT",
    "automaticRestart": True,
    "onHostMaintenance": "TERMINATE",
    "instanceTerminationAction": "DELETE",
    "maxRunDuration": {"seconds": "3600"},
}


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        ("name", "Rooflaunch", "name"),
        ("name", "r" * 64, "name"),
        ("labels", {"UPPER": "x"}, "labels"),
        ("labels", {"a": "x y"}, "labels"),
        ("labels", {"a": "x" * 64}, "labels"),
        ("machineType", "zones/us-central1-b/machineTypes/n1-standard-4", "machineType"),
        ("machineType", f"zones/{A}/machineTypes/n1-standard-96", "machineType"),
        ("machineType", f"zones/{A}/machineTypes/g2-standard-4", "guestAccelerators"),
        ("guestAccelerators.0.acceleratorCount", 3, "guestAccelerators[0].acceleratorCount"),
        ("scheduling.onHostMaintenance", "MIGRATE", "scheduling.onHostMaintenance"),
        ("scheduling", SPOT_THAT_RESTARTS, "scheduling.automaticRestart"),
        ("scheduling.instanceTerminationAction", "STOP", "scheduling.instanceTerminationAction"),
        ("scheduling.provisioningModel", "CHEAP", "scheduling.provisioningModel"),
        ("scheduling.maxRunDuration", {"seconds": "29"}, "scheduling.maxRunDuration.seconds"),
        ("scheduling.maxRunDuration", {"seconds": "10368001"}, "scheduling.maxRunDuration.seconds"),
        ("disks.0.autoDelete", False, "disks[0].autoDelete"),
        ("disks.0.initializeParams.sourceImage", "global/images/mine", "disks[0].initializeParams.sourceImage"),
        ("metadata.items", [{"key": "k", "value": "x" * (256 * 1024 + 1)}], "metadata.items"),
    ],
)
def test_the_fake_refuses_what_the_cloud_refuses(
    path: str, value: Any, field: str, fake: FakeCompute, compute: Compute
) -> None:
    with pytest.raises(ToolError) as caught:
        compute.insert(A, changed(path, value), ID)
    assert str(caught.value).startswith(f"Compute Engine refused insert: Invalid value for field 'resource.{field}'")
    assert fake.all_vms == []


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/compute/v1/projects/test-project/global/snapshots"), ("PATCH", "/compute/v1/projects/test-project")],
)
def test_the_fake_says_what_it_does_not_know(method: str, path: str, fake: FakeCompute) -> None:
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(fake.url).netloc, timeout=60)
    connection.request(method, path)
    answer = connection.getresponse()
    document = json.loads(answer.read())
    connection.close()
    assert (answer.status, document["error"]["message"]) == (501, f"the fake knows no {method} {path}")


def test_a_guest_lives_until_its_vm_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()

    def guest(vm: Vm) -> None:
        """Delete itself as a start-up script does: with its token, over plain HTTP."""
        assert (vm.alive, vm.metadata["enable-guest-attributes"]) == (True, "TRUE")
        path = f"/compute/v1/projects/{vm.project}/zones/{vm.zone}/instances/{vm.name}"
        connection = http.client.HTTPConnection(urllib.parse.urlsplit(fake.url).netloc, timeout=60)
        connection.request("DELETE", path, headers={"Authorization": "Bearer the-vm's"})
        assert connection.getresponse().status == 200
        connection.close()
        assert vm.gone.wait(60)
        ended.set()

    with FakeCompute(vm=guest, operation_s=0.02, boot_s=0.02) as fake:
        monkeypatch.setenv(refusals.ENDPOINT_VARIABLE, fake.url)
        compute = border.connect("test-project")
        operation = compute.insert(A, gpu_body(), ID)
        assert compute.wait(operation, 60.0) == ()
        assert ended.wait(60)
        assert (fake.instances, fake.vm(NAME).alive, fake.tokens) == ([], False, {"the-vm's"})


def test_the_fake_ends_a_vm_at_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeCompute(limit_scale=0.05 / 3600) as fake:
        monkeypatch.setenv(refusals.ENDPOINT_VARIABLE, fake.url)
        border.connect("test-project").insert(A, gpu_body(), ID)
        assert fake.vm(NAME).gone.wait(60)
        assert fake.instances == []


# Operations.


def test_every_detail_of_an_error_is_read(fake: FakeCompute, compute: Compute) -> None:
    fake.stockout_with_details(A, ["us-central1-b", "us-central1-f"])
    told = stockout_error(A)["message"]
    assert compute.wait(compute.insert(A, gpu_body(), ID), 1.0) == (
        OperationFault(
            code="ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
            message=told,
            zones_available=("us-central1-b", "us-central1-f"),
        ),
    )


@pytest.mark.parametrize(
    ("where", "metric", "dimensions"),
    [
        ("us-central1", "NVIDIA_T4_GPUS", {"region": "us-central1"}),
        ("global", "GPUS_ALL_REGIONS", {"global": "global"}),
    ],
    ids=["a region's", "the project's"],
)
def test_a_quota_in_an_error_is_read(
    where: str, metric: str, dimensions: dict[str, str], fake: FakeCompute, compute: Compute
) -> None:
    fake.set_quota(where, metric, 0)
    fake.set_quota(where, f"PREEMPTIBLE_{metric}", 0)
    faults = compute.wait(compute.insert(A, gpu_body(), ID), 1.0)
    message = quota_error(where, metric, 0.0)["message"]
    assert faults == (OperationFault(code="QUOTA_EXCEEDED", message=message, quota_dimensions=dimensions),)


def test_an_operation_that_is_not_done_within_the_limit(fake: FakeCompute, compute: Compute, clock: Clock) -> None:
    fake.endless_operation(A)
    assert compute.wait(compute.insert(A, gpu_body(), ID), 20.0) is None
    assert (clock.slept_s, fake.count("/wait$")) == (20.0, 10)


def test_an_operation_that_takes_a_while_is_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeCompute(operation_s=0.2) as fake:
        monkeypatch.setenv(refusals.ENDPOINT_VARIABLE, fake.url)
        compute = border.connect("test-project")
        assert compute.wait(compute.insert(A, gpu_body(), ID), 60.0) == ()
        assert fake.count("/wait$") == 1


def test_a_wait_whose_answer_is_late_gives_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(border, "LAST_ANSWER_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv(refusals.ENDPOINT_VARIABLE, f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert border.connect("test-project").wait(Operation(name="operation-1", zone=A), 0.2) is None


# Failures.


@pytest.mark.parametrize("statuses", [(429, 500, 502), (503, 504, 403)])
def test_bursts_are_ridden_out(statuses: tuple[int, ...], fake: FakeCompute, compute: Compute, clock: Clock) -> None:
    fake.add_vm(NAME)
    for status in statuses:
        fake.burst(status, 1)
    assert compute.get(A, NAME) is not None
    assert (compute.calls, fake.count(".")) == ({"instances.get": 4}, 4)
    # Between half and one and a half of 0.5 + 1 + 2 s.
    assert 1.75 <= clock.slept_s <= 5.25


@pytest.mark.parametrize("status", [429, 503])
def test_a_service_that_stays_busy_is_there(status: int, fake: FakeCompute, compute: Compute, clock: Clock) -> None:
    fake.burst(status, 1000)
    with pytest.raises(UnreachableError) as caught:
        compute.get(A, NAME)
    assert caught.value.report() == (
        f"error: Compute Engine at {fake.url} answers that it is busy ({status}): busy ({status})\nhint: "
        "wait a minute, then run again, with fewer commands at the same time"
    )
    assert 14 < clock.slept_s <= 30


def test_a_connection_that_is_refused(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    with held_port() as port:
        url = f"http://127.0.0.1:{port}"
        monkeypatch.setenv(refusals.ENDPOINT_VARIABLE, url)
        with pytest.raises(UnreachableError) as caught:
            border.connect("test-project", sleep=clock.sleep, monotonic=clock.now).instances()
    assert str(caught.value) == f"Compute Engine cannot be reached at {url}: Connection refused"
    assert 14 < clock.slept_s <= 30


def test_a_log_in_page_of_the_network_is_no_bug_of_ours(
    fake: FakeCompute, compute: Compute, monkeypatch: pytest.MonkeyPatch
) -> None:
    def welcome(handler: Any) -> None:
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(b"<html>Welcome</html>")
        handler.close_connection = True

    for method in ("do_GET", "do_DELETE"):
        monkeypatch.setattr(fake_compute._Handler, method, welcome)
    for ask in (lambda: compute.get(A, NAME), lambda: compute.delete(A, NAME), compute.project_quotas):
        with pytest.raises(UnreachableError) as caught:
            ask()
        assert caught.value.report() == (
            f"error: another server than Compute Engine answers at {fake.url}: a log-in page of this "
            "network, or a proxy\nhint: open a page in a browser and log in to the network, or correct "
            "HTTPS_PROXY; then run again"
        )


def test_ctrl_c_while_an_answer_is_read_is_no_foreign_answer(
    fake: FakeCompute, compute: Compute, monkeypatch: pytest.MonkeyPatch
) -> None:
    """json_format makes a ParseError of every exception, so a launcher would have gone on after Ctrl-C."""
    del fake
    monkeypatch.setattr(json_format, "_DuplicateChecker", lambda _: signal.raise_signal(signal.SIGINT))
    with stoppable(), pytest.raises(InterruptedRunError):
        compute.project_quotas()


def test_a_server_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setenv(refusals.ENDPOINT_VARIABLE, url)
        compute = border.connect("test-project", patience=ComputePatience(answer_s=0.1, retry_s=0.0))
        with pytest.raises(UnreachableError) as caught:
            compute.get(A, NAME)
        assert str(caught.value) == f"Compute Engine cannot be reached at {url}: no answer in time"


DISABLED = "Compute Engine API has not been used in project 123 before or it is disabled."


@pytest.mark.parametrize(
    ("status", "message", "reason", "info", "kind", "report"),
    [
        pytest.param(
            403, DISABLED, "accessNotConfigured", "", DeniedError,
            "error: the Compute Engine API is disabled in project 'test-project'\n"
            "hint: gcloud services enable compute.googleapis.com --project test-project",
            id="disabled, the old way",
        ),
        pytest.param(
            403, DISABLED, "", "SERVICE_DISABLED", DeniedError,
            "error: the Compute Engine API is disabled in project 'test-project'\n"
            "hint: gcloud services enable compute.googleapis.com --project test-project",
            id="disabled, the new way",
        ),
        pytest.param(
            403, "Required 'compute.instances.list' permission", "forbidden", "", DeniedError,
            "error: no permission in project 'test-project': Required 'compute.instances.list' permission\n"
            "hint: ask the project's owner to add you to `launchers` in infra/, or use another account: "
            "gcloud auth application-default login",
            id="no permission",
        ),
        pytest.param(
            401, "Request had invalid authentication credentials.", "authError", "", DeniedError,
            "error: no usable credentials for Google Cloud: Anonymous credentials cannot be refreshed.\n"
            "hint: gcloud auth application-default login",
            id="no credentials",
        ),
        pytest.param(
            404, "The resource 'projects/test-project' was not found", "notFound", "", UsageError,
            "error: project 'test-project' does not exist, or is not yours\nhint: gcloud projects list",
            id="no project",
        ),
        pytest.param(
            400, "Invalid value for field 'filter'", "invalid", "", ToolError,
            "error: Compute Engine refused aggregated_list: Invalid value for field 'filter'\nhint: launch doctor gcp",
            id="anything else",
        ),
    ],
)  # fmt: skip
def test_what_a_refusal_becomes(
    status: int,
    message: str,
    reason: str,
    info: str,
    kind: type[RooflaunchError],
    report: str,
    fake: FakeCompute,
    compute: Compute,
) -> None:
    fake.refuse(status, message, reason=reason, info=info)
    with pytest.raises(kind) as caught:
        compute.instances()
    assert caught.value.report() == report
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize(
    ("status", "message", "reason", "code"),
    [
        (503, "The zone does not have enough resources available", "backendError", "ZONE_RESOURCE_POOL_EXHAUSTED"),
        (503, "no capacity", "insufficientCapacity", "ZONE_RESOURCE_POOL_EXHAUSTED"),
        (403, "Quota 'NVIDIA_T4_GPUS' exceeded. Limit: 0.0 in region us-central1.", "quotaExceeded", "QUOTA_EXCEEDED"),
        (400, "Machine type with name 'g2-standard-4' does not exist in zone 'z'.", "invalid", "NOT_IN_ZONE"),
        (400, 'Accelerator type "nvidia-tesla-t4" does not exist in zone us-west4-c.', "invalid", "NOT_IN_ZONE"),
        (404, "The resource 'projects/p/zones/z/acceleratorTypes/t' was not found", "notFound", "NOT_IN_ZONE"),
        (404, "The resource 'projects/p/regions/r/subnetworks/s' was not found", "notFound", "RESOURCE_NOT_FOUND"),
    ],
)
def test_an_insert_that_is_refused_for_its_place(
    status: int, message: str, reason: str, code: str, fake: FakeCompute, compute: Compute
) -> None:
    fake.refuse(status, message, reason=reason)
    with pytest.raises(RefusedError) as caught:
        compute.insert(A, gpu_body(), ID)
    assert caught.value.faults == (OperationFault(code=code, message=message),)
    assert fake.count("POST") == 1


SEE = "See https://cloud.google.com/resource-manager/docs/organization-policy/org-policy-constraints for more."


@pytest.mark.parametrize(
    ("status", "message", "error"),
    [
        (
            412,
            (
                f"Constraint constraints/compute.requireShieldedVm violated for project projects/p. Secure Boot is not "
                f"enabled in the 'shielded_instance_config' field. {SEE}"
            ),
            (
                "error: the organisation's policy forbids this VM: constraints/compute.requireShieldedVm: {}\n"
                "hint: --secure-boot"
            ),
        ),
        (
            412,
            (
                f"Constraint constraints/compute.requireShieldedVm violated for project projects/p. The boot "
                f"disk's 'initialize_params.source_image' field specifies a non-Shielded image: "
                f"projects/p/global/images/i. {SEE}"
            ),
            (
                "error: the organisation's policy forbids this VM: constraints/compute.requireShieldedVm: "
                "{}\nhint: --vm-image with an image that can boot by UEFI, and --secure-boot"
            ),
        ),
        (
            412,
            (
                "Constraint constraints/compute.trustedImageProjects violated for project p. Use of images from "
                "project ubuntu-os-accelerator-images is prohibited."
            ),
            (
                "error: the organisation's policy forbids this VM: "
                "constraints/compute.trustedImageProjects: {}\nhint: --vm-image PROJECT/FAMILY of a trusted "
                "project (launch doctor gcp names them)"
            ),
        ),
        (
            403,
            (
                "Constraint constraints/compute.vmExternalIpAccess violated for project 1. Constraint "
                "constraints/compute.requireShieldedVm violated for project projects/p."
            ),
            (
                "error: the organisation's policies forbid this VM: constraints/compute.vmExternalIpAccess, "
                "constraints/compute.requireShieldedVm: {}\n"
                "hint: --no-external-ip, with create_network in infra/; --secure-boot"
            ),
        ),
        (
            412,
            "Constraint constraints/compute.disableGuestAttributesAccess violated for project p.",
            (
                "error: the organisation's policy forbids this VM: "
                "constraints/compute.disableGuestAttributesAccess: {}\n"
                "hint: ask the organisation's administrator for an exception, or use another --project"
            ),
        ),
        (
            400,
            (
                "Invalid value for field 'resource.networkInterfaces[0].subnetwork': ''. Network interface must "
                "specify a subnet if the network resource is in custom subnet mode."
            ),
            (
                "error: the network is in custom mode, and no subnetwork is named: {}\nhint: --subnetwork "
                "NAME, if every region has a subnetwork of this name; or another --network; or "
                "create_network in infra/, which makes both"
            ),
        ),
    ],
    ids=["secure boot", "no UEFI", "image project", "two policies", "another policy", "custom network"],
)
def test_an_insert_that_other_options_would_get(
    status: int, message: str, error: str, fake: FakeCompute, compute: Compute
) -> None:
    fake.refuse(status, message, reason="conditionNotMet")
    with pytest.raises(ToolError) as caught:
        compute.insert(A, gpu_body(), ID)
    assert caught.value.report() == error.format(message)
    assert fake.count("POST") == 1


def test_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    import google.auth
    from google.auth.exceptions import DefaultCredentialsError

    def none(**_: Any) -> None:
        raise DefaultCredentialsError("Your default credentials were not found.\nTo set up …")

    monkeypatch.setattr(google.auth, "default", none)
    with pytest.raises(DeniedError) as caught:
        border.connect("test-project")
    assert caught.value.report() == (
        "error: no usable credentials for Google Cloud: Your default credentials were not found.\n"
        "hint: gcloud auth application-default login"
    )
    assert caught.value.exit_code is ExitCode.TOOL
    assert border.default_project() is None


def test_the_project_of_the_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    import google.auth

    monkeypatch.setattr(google.auth, "default", lambda **_: (object(), "their-project"))
    assert border.default_project() == "their-project"
    monkeypatch.setenv(refusals.ENDPOINT_VARIABLE, "http://127.0.0.1:1")
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "of-the-test")
    assert border.default_project() == "of-the-test"


def test_credentials_that_have_expired(fake: FakeCompute, compute: Compute, monkeypatch: pytest.MonkeyPatch) -> None:
    from google.auth.exceptions import RefreshError

    def expired(*_: Any, **__: Any) -> None:
        raise RefreshError("Reauthentication is needed.")

    monkeypatch.setattr(type(compute._clients.credentials), "before_request", expired)
    with pytest.raises(DeniedError, match=r"^no usable credentials for Google Cloud: Reauthentication is needed\.$"):
        compute.instances()
    assert fake.calls == []


def test_the_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    import builtins

    real: Callable[..., Any] = builtins.__import__

    def without(name: str, *arguments: Any, **options: Any) -> Any:
        if name == "google.cloud":
            raise ModuleNotFoundError("No module named 'google.cloud'")
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ToolError) as caught:
        border.connect("test-project")
    assert caught.value.report() == (
        "error: the package google-cloud-compute is missing\nhint: pip install 'rooflaunch[gcp]'"
    )


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

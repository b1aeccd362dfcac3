"""What a VM asks of its metadata server, over HTTP."""

import threading
import time
from collections.abc import Iterator
from datetime import datetime
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from launcher.backends.gcp import guest
from launcher.backends.gcp.guest import Guest, this_vm
from launcher.jobs.records import Phase
from tests.launcher.backends.gcp.fake_compute import FakeCompute, Vm
from tests.launcher.backends.gcp.fake_metadata import TOKEN, FakeMetadata
from workload.contract.errors import ToolError
from workload.environment.gce import gce_facts
from workload.environment.machine import Machine

pytestmark = pytest.mark.world

HINT = "this runs on a VM of `launch gcp` alone"
LIMIT_S = 10


@pytest.fixture(scope="module")
def compute() -> Iterator[FakeCompute]:
    with FakeCompute() as fake:
        yield fake


@pytest.fixture
def vm(compute: FakeCompute) -> Vm:
    made = compute.add_vm(f"rooflaunch-t4-{len(compute.all_vms)}", labels={"rooflaunch-limit": "3600"})
    made.metadata["rooflaunch-request"] = '{"name": "ü"}'
    return made


@pytest.fixture
def metadata(vm: Vm) -> Iterator[FakeMetadata]:
    with FakeMetadata(vm) as fake:
        yield fake


@pytest.fixture
def here(metadata: FakeMetadata, compute: FakeCompute) -> Guest:
    found = this_vm({"GCE_METADATA_HOST": metadata.host, "ROOFLAUNCH_COMPUTE_ENDPOINT": compute.url})
    return Guest(metadata=found.metadata, compute=found.compute, sleep=lambda _: None)


def test_addresses_without_variables() -> None:
    found = this_vm({})
    assert (found.metadata, found.compute) == ("http://169.254.169.254", "https://compute.googleapis.com")


def test_what_the_vm_is_told(here: Guest) -> None:
    assert here.zone == "us-central1-a"
    assert here.request() == '{"name": "ü"}'.encode()


def test_a_phase_is_a_guest_attribute(here: Guest, vm: Vm) -> None:
    here.report(Phase.RUN_STARTED, "2026-11-21T10:00:00.000Z")
    assert vm.guest_attributes == {"rooflaunch": {"run_started": "2026-11-21T10:00:00.000Z"}}


def test_guest_attributes_that_are_switched_off(here: Guest, vm: Vm) -> None:
    vm.metadata["enable-guest-attributes"] = "FALSE"
    with pytest.raises(ToolError) as caught:
        here.report("heartbeat", "now")
    key = "instance/guest-attributes/rooflaunch/heartbeat"
    assert str(caught.value) == f"the metadata server has no answer for '{key}': HTTP 403"
    assert caught.value.hint == HINT


@pytest.mark.parametrize(("silent", "answered"), [(guest.TRIES - 1, True), (guest.TRIES, False)])
def test_a_busy_server_is_asked_again(silent: int, answered: bool, here: Guest, metadata: FakeMetadata) -> None:
    metadata.silent = silent
    if answered:
        assert here.zone == "us-central1-a"
        return
    with pytest.raises(ToolError, match=r"no answer for 'instance/zone': HTTP 503"):
        assert here.zone
    assert len(metadata.asked) == guest.TRIES


def test_nobody_there() -> None:
    slept: list[float] = []
    nobody = Guest(metadata="http://127.0.0.1:9", compute="", sleep=slept.append)
    with pytest.raises(ToolError, match=r"no answer for 'instance/zone': .*Connection refused"):
        assert nobody.zone
    assert slept == [guest.PAUSE_S] * (guest.TRIES - 1)


def test_another_server_than_googles() -> None:
    class Somebody(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"zones/mine")

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Somebody) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        other = Guest(metadata=f"http://127.0.0.1:{server.server_port}", compute="", sleep=lambda _: None)
        with pytest.raises(ToolError, match="the answer is not from Google's metadata server"):
            assert other.zone
        server.shutdown()


def test_a_preemption_is_told_when_it_comes(here: Guest, vm: Vm) -> None:
    taken, tag = here.preempted()
    assert (taken, bool(tag)) == (False, True)
    answers: list[bool] = []
    asking = threading.Thread(target=lambda: answers.append(here.preempted(since=tag)[0]))
    began_s = time.monotonic()
    asking.start()
    time.sleep(0.1)
    assert answers == [], "the server keeps the question"
    vm.preempted = True
    asking.join(LIMIT_S)
    assert answers == [True]
    assert time.monotonic() - began_s < LIMIT_S / 2
    assert here.preempted(since=tag)[0] is True, "it has changed since that tag"


def test_the_vm_as_compute_engine_describes_it(here: Guest, vm: Vm, compute: FakeCompute) -> None:
    vm.physical_host = "/block/sub/host-7"
    found = here.instance()
    assert found["resourceStatus"]["physicalHost"] == "/block/sub/host-7"
    ends_s = datetime.fromisoformat(found["resourceStatus"]["scheduling"]["terminationTimestamp"]).timestamp()
    assert ends_s == pytest.approx(vm.created_s + 3600, abs=0.01)
    assert found["labels"]["rooflaunch-limit"] == "3600"
    assert TOKEN in compute.tokens


def test_a_vm_that_may_not_ask_about_itself(here: Guest, compute: FakeCompute) -> None:
    compute.refuse(403, "Required 'compute.instances.get' permission", match="GET")
    assert here.instance() == {}


def test_the_trainers_facts_come_from_the_same_server(metadata: FakeMetadata, vm: Vm) -> None:
    vm.body["scheduling"]["provisioningModel"] = "SPOT"
    machine = Machine(environ={"GCE_METADATA_HOST": metadata.host}, tool=lambda *_: None)
    facts = gce_facts(machine)
    assert facts is not None
    assert (facts["zone"], facts["machine_type"], facts["preemptible"]) == ("us-central1-a", "n1-standard-1", True)
    assert (facts["physical_host"], facts["preempted"]) == (None, False)

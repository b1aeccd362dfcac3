"""What a VM asks of its metadata server, over HTTP."""

import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.agent import home
from launcher.backends.gcp import guest
from launcher.backends.gcp.guest import Guest, this_machine
from launcher.protocol.records import LaunchPhase
from tests.launcher.backends.gcp import fake_vm
from tests.launcher.backends.gcp.fake_compute import FakeCompute, Vm
from tests.launcher.backends.gcp.fake_metadata import TOKEN, FakeMetadata
from workload.contract.errors import ToolError

pytestmark = pytest.mark.world

HINT = "this program runs only on a VM of `launch gcp`"
LIMIT_S = 60
NAME = "rooflaunch-t4-20261121-100000-0000aa"


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
    found = this_machine({"GCE_METADATA_HOST": metadata.host, "ROOFLAUNCH_COMPUTE_ENDPOINT": compute.url})
    return Guest(metadata=found.metadata, compute=found.compute, sleep=lambda _: None)


def test_what_the_vm_is_told(here: Guest) -> None:
    found = this_machine({})
    assert (found.metadata, found.compute) == (("169.254.169.254", 80), "https://compute.googleapis.com")
    assert (here.zone, here.request()) == ("us-central1-a", '{"name": "ü"}'.encode())


def test_a_phase_is_a_guest_attribute_unless_they_are_switched_off(here: Guest, vm: Vm, metadata: FakeMetadata) -> None:
    here.report(LaunchPhase.RUN_STARTED, "2026-11-21T10:00:00.000Z")
    assert vm.guest_attributes == {"rooflaunch": {"run_started": "2026-11-21T10:00:00.000Z"}}
    vm.metadata["enable-guest-attributes"] = "FALSE"
    with pytest.raises(ToolError) as caught:
        here.report("heartbeat", "now")
    key = "instance/guest-attributes/rooflaunch/heartbeat"
    assert metadata.asked.count(f"PUT {key}") == 1, "no other answer is to come"
    assert str(caught.value) == f"the metadata server has no answer for '{key}': HTTP 403"
    assert caught.value.hint == HINT


def test_busy_server_is_asked_again_a_few_times(here: Guest, metadata: FakeMetadata) -> None:
    metadata.silent = guest.TRIES - 1
    assert here.zone == "us-central1-a"
    metadata.silent, metadata.asked = guest.TRIES, []
    with pytest.raises(ToolError, match=r"no answer for 'instance/zone': HTTP 503"):
        assert here.zone
    assert len(metadata.asked) == guest.TRIES


def test_nobody_there() -> None:
    slept: list[float] = []
    nobody = Guest(metadata=("127.0.0.1", 9), compute="", sleep=slept.append)
    with pytest.raises(ToolError, match=r"no answer for 'instance/zone': .*Connection refused"):
        assert nobody.zone
    assert slept == [guest.PAUSE_S] * (guest.TRIES - 1)
    assert nobody.is_preempted() is False
    assert (nobody.created_s(), nobody.deleted_s()) == (None, None)


def test_a_preemption_is_told_when_it_comes(here: Guest, vm: Vm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guest, "WAIT_S", 3600)
    taken, tag = here.preempted()
    assert (taken, bool(tag)) == (False, True)
    answers: list[bool] = []
    asking = threading.Thread(target=lambda: answers.append(here.preempted(since=tag)[0]))
    asking.start()
    time.sleep(0.1)
    assert answers == [], "the server keeps the question"
    vm.preempted = True
    asking.join(LIMIT_S)
    assert answers == [True]
    assert here.preempted(since=tag)[0] is True, "it has changed since that tag"


@pytest.mark.parametrize("taken", [True, False])
def test_waiting_for_a_preemption(taken: bool, here: Guest, vm: Vm, metadata: FakeMetadata) -> None:
    assert here.is_preempted() is False
    waits: list[float] = []

    def is_over(wait_s: float) -> bool:
        waits.append(wait_s)
        vm.preempted = taken
        return not taken

    metadata.silent = guest.TRIES
    assert here.await_preemption(is_over) is taken, "a server that does not answer is asked again until it is over"
    assert waits == [guest.ASK_AGAIN_S]
    assert here.is_preempted() is taken


def test_times_and_facts_that_only_compute_engine_tells(here: Guest, vm: Vm, compute: FakeCompute) -> None:
    vm.physical_host = "/block/sub/host-7"
    request = fake_vm.make_request(NAME, "i@sha256:00", {})
    facts = {"provider": "gce", "zone": "us-central1-a", "spot": True, "vm_image": request.options["vm_image"]}
    assert here.created_s() == pytest.approx(vm.created_s, abs=0.01)
    assert here.deleted_s() == pytest.approx(vm.created_s + 3600, abs=0.01)
    assert here.facts(request) == {**facts, "physical_host": "/block/sub/host-7"}
    assert TOKEN in compute.tokens
    compute.refuse(403, "Required 'compute.instances.get' permission", match="GET")
    assert here.facts(request) == facts


def test_the_agent_loads_it_from_the_folder_of_the_launch(tmp_path: Path) -> None:
    shutil.copy(guest.__file__, tmp_path / home.FILE)
    loaded = home.host_facts_of(tmp_path)
    assert type(loaded).__name__ == "Guest"
    assert {name for name in dir(home.HostFacts) if not name.startswith("_")} <= set(dir(loaded))


def test_a_task_of_batch_has_its_request_in_the_store_and_its_end_by_the_limit(tmp_path: Path) -> None:
    request = fake_vm.make_request(NAME, "", {})
    (tmp_path / f"launches/{NAME}").mkdir(parents=True)
    (tmp_path / f"launches/{NAME}/request.json").write_bytes(request.to_bytes())
    variables = {
        "ROOFLAUNCH_LAUNCH": NAME,
        "ROOFLAUNCH_STORE": str(tmp_path),
        "ROOFLAUNCH_LIMIT_S": "600",
        "ROOFLAUNCH_RETRIES": "2",
    }
    began_s = time.time()
    first = this_machine(variables)
    assert first.request() == request.to_bytes()
    assert began_s + 600 <= first.deleted_s() <= time.time() + 600
    first.report("heartbeat", "nobody is asked")
    attempts = [this_machine({**variables, "BATCH_TASK_RETRY_ATTEMPT": str(count)}) for count in range(3)]
    assert [attempt.comes_back() for attempt in attempts] == [True, True, False]
    nowhere = this_machine({**variables, "ROOFLAUNCH_LAUNCH": "rooflaunch-t4-20261121-100000-ffffff"})
    with pytest.raises(ToolError) as refused:
        nowhere.request()
    assert str(refused.value).endswith("has no launches/rooflaunch-t4-20261121-100000-ffffff/request.json")

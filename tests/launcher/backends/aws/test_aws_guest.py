"""What an instance asks of its metadata server and its store, over HTTP."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.agent import home
from launcher.backends.aws import guest
from launcher.backends.aws.guest import Guest, this_machine
from launcher.protocol.records import epoch_s
from tests.launcher.backends.aws.fake_instance import ENDS, NAME
from tests.launcher.backends.gcp import fake_vm
from tests.ports import held_port
from tests.workload.environment.imds_server import ImdsServer
from workload.contract.errors import ToolError

pytestmark = pytest.mark.world

STARTED_S = epoch_s("2026-11-21T10:00:00Z") or 0.0
TAG = "rooflaunch-ends"


@pytest.fixture
def imds() -> Iterator[ImdsServer]:
    with ImdsServer() as server:
        yield server


def guest_of(url: str, store: Path) -> Guest:
    variables = {
        "AWS_EC2_METADATA_SERVICE_ENDPOINT": url,
        "ROOFLAUNCH_STORE": str(store),
        "ROOFLAUNCH_LAUNCH": NAME,
        "ROOFLAUNCH_LIMIT_S": "3600",
    }
    found = this_machine(variables)
    return Guest(**{**vars(found), "sleep": lambda _: None})


@pytest.fixture
def here(imds: ImdsServer, tmp_path: Path) -> Guest:
    return guest_of(imds.url, tmp_path)


def test_an_instance_without_variables_of_the_cloud() -> None:
    found = this_machine({"ROOFLAUNCH_STORE": "s3://b", "ROOFLAUNCH_LAUNCH": NAME, "ROOFLAUNCH_LIMIT_S": "60"})
    assert (found.metadata, found.store, found.limit_s) == (("169.254.169.254", 80), "s3://b", 60.0)


def test_the_request_is_in_the_store(here: Guest, tmp_path: Path) -> None:
    with pytest.raises(ToolError) as refused:
        here.request()
    assert str(refused.value).endswith(f"has no launches/{NAME}/request.json")
    (tmp_path / f"launches/{NAME}").mkdir(parents=True)
    (tmp_path / f"launches/{NAME}/request.json").write_bytes(b"{}")
    assert here.request() == b"{}"


def test_facts(here: Guest) -> None:
    request = fake_vm.make_request(NAME, "i@sha256:00", {}, options={"ami": "ami-0123"})
    assert here.zone == "use1-az4"
    assert here.facts(request) == {"provider": "ec2", "zone": "use1-az4", "spot": True, "vm_image": "ami-0123"}
    assert here.comes_back() is False
    here.report("heartbeat", "nobody is asked")


@pytest.mark.parametrize(
    ("ends", "started", "expected"),
    [
        (ENDS, "2026-11-21T10:00:00Z", STARTED_S + 3600),
        ("2026-11-21T10:30:00Z", "2026-11-21T10:00:00Z", STARTED_S + 1800),
        ("2026-11-21T12:30:00Z", "2026-11-21T10:00:00Z", STARTED_S + 3600),
        ("2026-11-21T12:30:00Z", None, STARTED_S + 9000),
        ("soon", "2026-11-21T10:00:00Z", STARTED_S + 3600),
        (None, "2026-11-21T10:00:00Z", STARTED_S + 3600),
        (None, None, None),
    ],
)
def test_the_earlier_end_counts(
    ends: str | None, started: str | None, expected: float | None, here: Guest, imds: ImdsServer
) -> None:
    if ends:
        imds.tag(TAG, ends)
    imds.keys[guest.IDENTITY_KEY] = json.dumps({"pendingTime": started}) if started else "no JSON"
    assert here.deleted_s() == expected
    assert here.created_s() == epoch_s(started)


@pytest.mark.parametrize("taken", [True, False])
def test_waiting_for_an_interruption(taken: bool, here: Guest, imds: ImdsServer) -> None:
    waits: list[float] = []

    def is_over(wait_s: float) -> bool:
        waits.append(wait_s)
        if taken and len(waits) == 2:
            imds.interrupt()
        return not taken and len(waits) == 2

    assert here.is_preempted() is False
    assert here.await_preemption(is_over) is taken
    assert waits == [guest.LOOK_EVERY_S] * 2
    assert here.is_preempted() is taken


def test_busy_server_is_asked_again(here: Guest, imds: ImdsServer) -> None:
    imds.silent = guest.TRIES - 1
    assert here.zone == "use1-az4"
    imds.silent = guest.TRIES
    with pytest.raises(ToolError) as caught:
        assert here.zone
    key = "meta-data/placement/availability-zone-id"
    assert str(caught.value) == f"the metadata server has no answer for '{key}': HTTP 503"
    assert caught.value.hint == "this program runs only on an instance of `launch aws`"


def test_nobody_there(tmp_path: Path) -> None:
    with held_port() as port:
        nobody = guest_of(f"http://127.0.0.1:{port}", tmp_path)
        with pytest.raises(ToolError, match="Connection refused"):
            assert nobody.zone
        assert (nobody.is_preempted(), nobody.created_s(), nobody.deleted_s()) == (False, None, None)
        looks: list[float] = []
        assert nobody.await_preemption(lambda wait_s: bool(looks.append(wait_s)) or len(looks) == 2) is False


def test_the_agent_loads_it_from_the_folder_of_the_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("STORE", "s3://b"), ("LAUNCH", NAME), ("LIMIT_S", "60")):
        monkeypatch.setenv(f"ROOFLAUNCH_{name}", value)
    shutil.copy(guest.__file__, tmp_path / home.FILE)
    loaded = home.host_facts_of(tmp_path)
    assert type(loaded).__name__ == "Guest"
    assert {name for name in dir(home.HostFacts) if not name.startswith("_")} <= set(dir(loaded))

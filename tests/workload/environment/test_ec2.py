"""An instance of EC2 describes itself, without its account and its address."""

import json
from collections.abc import Iterator

import pytest

from tests.workload.conftest import SILENT, LayOut
from tests.workload.environment.imds_server import ACCOUNT, ADDRESS, IDENTITY, SESSION, ImdsServer
from workload.environment import cloud
from workload.environment import collect as environment
from workload.environment.cloud import cloud_facts
from workload.environment.machine import HostSystem

pytestmark = pytest.mark.world

FACTS = {
    "provider": "ec2",
    "instance_id": "i-0123456789abcdef0",
    "machine_type": "g4dn.xlarge",
    "image": "ami-0abcdef1234567890",
    "region": "us-east-1",
    "zone": "use1-az4",
    "spot": True,
    "physical_host": None,
}


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run waits a second for all facts together, which a busy machine may need here."""
    monkeypatch.setattr(cloud, "LIMIT_S", 60.0)


@pytest.fixture
def imds() -> Iterator[ImdsServer]:
    with ImdsServer() as server:
        yield server


@pytest.fixture
def instance(imds: ImdsServer, lay_out: LayOut) -> HostSystem:
    return lay_out(environ={"AWS_EC2_METADATA_SERVICE_ENDPOINT": imds.url}, tools=SILENT)


def test_an_instance(instance: HostSystem, imds: ImdsServer) -> None:
    facts = cloud_facts(instance)
    assert facts == FACTS
    assert not [key for key in imds.asked if "credentials" in key or key.endswith("/")]
    assert not [secret for secret in (ACCOUNT, ADDRESS, SESSION) if secret in json.dumps(facts)]


@pytest.mark.parametrize(("life_cycle", "spot"), [("on-demand", False), ("capacity-block", False), ("", None)])
def test_how_it_was_bought(life_cycle: str, spot: bool | None, instance: HostSystem, imds: ImdsServer) -> None:
    imds.keys["meta-data/instance-life-cycle"] = life_cycle
    assert cloud_facts(instance) == {**FACTS, "spot": spot}


def test_keys_that_the_server_does_not_have_are_unknown(instance: HostSystem, imds: ImdsServer) -> None:
    imds.keys = {"dynamic/instance-identity/document": json.dumps({**IDENTITY, "imageId": None, "region": ""})}
    imds.unknown = []
    unknown = ("image", "region", "zone", "spot")
    assert cloud_facts(instance) == {**FACTS, **dict.fromkeys(unknown)}
    imds.unknown.clear()


@pytest.mark.parametrize("text", ["no JSON", "[1]", '"text"'])
def test_a_document_that_is_none(text: str, instance: HostSystem, imds: ImdsServer) -> None:
    imds.keys["dynamic/instance-identity/document"] = text
    assert cloud_facts(instance) is None


@pytest.mark.parametrize("silent", [1, 2])
def test_a_server_that_refuses(silent: int, instance: HostSystem, imds: ImdsServer) -> None:
    imds.silent = silent
    assert cloud_facts(instance) is None


@pytest.mark.parametrize(
    ("host", "device", "expected"),
    [
        ("h-0123", {"serial": "0323", "uuid": "GPU-1"}, "h-0123"),
        (None, {"serial": "0323", "uuid": "GPU-1"}, "0323"),
        (None, {"serial": None, "uuid": "GPU-1"}, "GPU-1"),
        (None, {}, None),
    ],
)
def test_the_gpu_stands_for_the_host(
    host: str | None,
    device: dict[str, object],
    expected: str | None,
    instance: HostSystem,
    imds: ImdsServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if host:
        imds.keys["meta-data/placement/host-id"] = host
    monkeypatch.setattr("workload.environment.device.device_facts", lambda *_: device)
    facts = environment.collect(device="cuda:0", machine=instance)["cloud"]
    assert facts == {**FACTS, "physical_host": expected}


def test_elsewhere_the_gpu_does_not(lay_out: LayOut, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workload.environment.device.device_facts", lambda *_: {"serial": "0323"})
    outside = {"cloud": {"provider": "gce", "zone": "us-central1-a"}}
    facts = environment.collect(device="cuda:0", machine=lay_out(tools=SILENT), outside=outside)
    assert facts["cloud"] == outside["cloud"]

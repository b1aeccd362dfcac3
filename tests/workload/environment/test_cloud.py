"""Machines of Google Cloud and EC2 describe themselves, without accounts and addresses."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from tests.ports import Answering, Fake, held_port
from tests.workload.conftest import SILENT, LayOut
from tests.workload.environment.imds_server import ACCOUNT, ADDRESS, IDENTITY, SESSION, ImdsServer
from workload.environment import cloud
from workload.environment import collect as environment
from workload.environment.cloud import cloud_facts
from workload.environment.machine import HostSystem

BASE = "/computeMetadata/v1/"
VM = {
    "instance/id": "4242",
    "instance/name": "run-1",
    "instance/zone": "projects/7/zones/us-central1-a",
    "instance/machine-type": "projects/7/machineTypes/g2-standard-4",
    "instance/image": "projects/debian-cloud/global/images/debian-12",
    "instance/cpu-platform": "Intel Cascade Lake",
    "instance/preempted": "FALSE",
    "instance/scheduling/preemptible": "TRUE",
    "instance/attributes/physical_host": "/block/subblock/host",
}
FACTS = {
    "provider": "gce",
    "instance_id": "4242",
    "instance_name": "run-1",
    "zone": "us-central1-a",
    "machine_type": "g2-standard-4",
    "image": "projects/debian-cloud/global/images/debian-12",
    "cpu_platform": "Intel Cascade Lake",
    "physical_host": "/block/subblock/host",
    "preempted": False,
    "spot": True,
}


class Metadata(Fake):
    """A metadata server that answers only to those who know its header; 404 for a key that it does not have."""

    def __init__(self, values: dict[str, str], *, flavor: str | None = "Google", chunked: bool = False) -> None:
        self.values, self.flavor, self.chunked = values, flavor, chunked
        self.asked: list[str] = []
        super().__init__(_Handler)

    @property
    def address(self) -> str:
        return self.url.removeprefix("http://")


class _Handler(Answering):
    fake: Metadata
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        assert self.path.startswith(BASE)
        assert self.headers["Metadata-Flavor"] == "Google"
        key = self.path.removeprefix(BASE)
        self.fake.asked.append(key)
        value = self.fake.values.get(key)
        self.send_response(404 if value is None else 200)
        if self.fake.flavor is not None:
            self.send_header("Metadata-Flavor", self.fake.flavor)
        body, chunked = ("not found" if value is None else value).encode(), self.fake.chunked
        self.send_header(*(("Transfer-Encoding", "chunked") if chunked else ("Content-Length", str(len(body)))))
        self.end_headers()
        self.wfile.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body) if chunked else body)


@contextmanager
def raw_server(answer: bytes) -> Iterator[str]:
    """Server that sends `answer` to each client, and then nothing, without closing."""
    done = threading.Event()

    def serve(listener: socket.socket) -> None:
        while not done.is_set():
            with suppress(OSError), listener.accept()[0] as connection:
                connection.sendall(answer)
                done.wait()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.05)
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            done.set()
            thread.join()


def at(lay_out: LayOut, address: str) -> HostSystem:
    """Machine whose metadata server is at `address`."""
    return lay_out(environ={"GCE_METADATA_HOST": address})


@pytest.mark.world
@pytest.mark.parametrize("chunked", [False, True], ids=["with length", "chunked"])
def test_a_vm(lay_out: LayOut, chunked: bool) -> None:
    with Metadata(VM, chunked=chunked) as server:
        facts = cloud_facts(at(lay_out, server.address))
    assert facts == FACTS
    assert set(server.asked) == set(VM)
    assert not [key for key in server.asked if "service-account" in key or "recursive" in key or key.endswith("/")]


@pytest.mark.world
def test_keys_that_the_server_does_not_have_are_unknown(lay_out: LayOut) -> None:
    with Metadata({"instance/preempted": "TRUE", "instance/zone": ""}) as server:
        facts = cloud_facts(at(lay_out, server.address))
    assert facts == {**dict.fromkeys(FACTS), "provider": "gce", "preempted": True}


@pytest.mark.world
@pytest.mark.parametrize("flavor", [None, "Amazon"], ids=["no header", "another cloud"])
def test_a_server_that_is_not_googles_is_asked_once(lay_out: LayOut, flavor: str | None) -> None:
    with Metadata(VM, flavor=flavor) as server:
        assert cloud_facts(at(lay_out, server.address)) is None
    assert server.asked == ["instance/id"]


@pytest.mark.world
def test_nobody_listens(lay_out: LayOut) -> None:
    with held_port() as port:
        assert cloud_facts(at(lay_out, f"127.0.0.1:{port}")) is None


HEAD = b"HTTP/1.1 200 OK\r\nMetadata-Flavor: Google\r\n"


@pytest.mark.world
@pytest.mark.parametrize(
    ("answer", "limit_s"),
    [
        # Left at the limit.
        (b"", 0.4),
        # No answer of a metadata server: left at once.
        (HEAD + b"Content-Length: 2\r\n\r\n\xff\xfe", 3600.0),
        (b"SSH-2.0-OpenSSH\r\n\r\n", 3600.0),
        (HEAD + b"Content-Length: 9000000\r\n\r\n" + b"x" * 100_000, 3600.0),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nnonsense\r\n", 3600.0),
    ],
    ids=["silence", "no text", "no HTTP", "endless", "broken chunks"],
)
def test_a_server_that_does_not_answer_as_it_should(
    lay_out: LayOut, monkeypatch: pytest.MonkeyPatch, answer: bytes, limit_s: float
) -> None:
    monkeypatch.setattr(cloud, "LIMIT_S", limit_s)
    with raw_server(answer) as address:
        assert cloud_facts(at(lay_out, address)) is None


@pytest.mark.world
def test_what_was_answered_before_the_deadline_is_kept(lay_out: LayOut) -> None:
    readings = iter([0.0] * 9)
    with Metadata(VM) as server:
        facts = cloud_facts(at(lay_out, server.address), clock=lambda: next(readings, cloud.LIMIT_S + 1))
    assert facts["instance_id"] == "4242"
    assert facts["spot"] is None
    assert len(server.asked) < len(VM)


class Network:
    """Record of the addresses that the code connects to, and of its time limits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wanted: list[tuple[tuple[str, int], float]] = []
        monkeypatch.setattr(socket, "create_connection", self.connect)

    def connect(self, address: tuple[str, int], limit_s: float, *_: object) -> socket.socket:
        self.wanted.append((address, limit_s))
        raise TimeoutError


DMI = "/sys/class/dmi/id/sys_vendor"


NO_XEN = {DMI: "Xen", "/sys/hypervisor/uuid": "01e1916-9099-7caf-fd21-012345abcdef\n"}
# Files of a machine.
MACHINES = {
    "Google's firmware": {DMI: "Google"},
    "a PC maker's": {DMI: "Dell Inc.", "/proc/self/status": ""},
    "Amazon's": {DMI: "Amazon EC2", "/proc/self/status": ""},
    "Amazon's, on Xen": NO_XEN | {"/sys/hypervisor/uuid": "ec2e1916-9099-7caf-fd21-012345abcdef\n"},
    "somebody's Xen": NO_XEN,
    "Linux without firmware tables": {"/proc/self/status": ""},
    "no Linux": {},
}
# Values of Google's and of EC2's variable.
GOOGLE = ["metadata.test:8080", "10.0.0.1", "[::1]:99", "host:port", ":80", ""]
EC2 = ["http://10.0.0.1:81/", "http://[fd00:ec2::254]"]


def test_who_is_asked(lay_out: LayOut, monkeypatch: pytest.MonkeyPatch, golden: Callable[[str, str], None]) -> None:
    machines = {name: lay_out(files, apart=name) for name, files in MACHINES.items()}
    for variable, values in (("GCE_METADATA_HOST", GOOGLE), ("AWS_EC2_METADATA_SERVICE_ENDPOINT", EC2)):
        for value in values:
            named = lay_out({DMI: "Dell Inc."}, environ={variable: value}, apart="named")
            machines[f"{variable}={value}"] = named
    text = ""
    for name, machine in machines.items():
        network = Network(monkeypatch)
        assert cloud_facts(machine, clock=lambda: 0.0) is None
        assert all(limit_s == 0.3 for _, limit_s in network.wanted)
        text += f"{name}: {', '.join(f'{host} port {port}' for (host, port), _ in network.wanted) or 'nobody'}\n"
    golden("metadata_servers.txt", text)


pytestmark = pytest.mark.world

EC2_FACTS = {
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
    assert facts == EC2_FACTS
    assert not [key for key in imds.asked if "credentials" in key or key.endswith("/")]
    assert not [secret for secret in (ACCOUNT, ADDRESS, SESSION) if secret in json.dumps(facts)]


@pytest.mark.parametrize(("life_cycle", "spot"), [("on-demand", False), ("capacity-block", False), ("", None)])
def test_how_it_was_bought(life_cycle: str, spot: bool | None, instance: HostSystem, imds: ImdsServer) -> None:
    imds.keys["meta-data/instance-life-cycle"] = life_cycle
    assert cloud_facts(instance) == {**EC2_FACTS, "spot": spot}


def test_keys_that_an_instance_does_not_have_are_unknown(instance: HostSystem, imds: ImdsServer) -> None:
    imds.keys = {"dynamic/instance-identity/document": json.dumps({**IDENTITY, "imageId": None, "region": ""})}
    imds.unknown = []
    unknown = ("image", "region", "zone", "spot")
    assert cloud_facts(instance) == {**EC2_FACTS, **dict.fromkeys(unknown)}
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
) -> None:
    if host:
        imds.keys["meta-data/placement/host-id"] = host
    facts = environment.collect(device=device, machine=instance)["cloud"]
    assert facts == {**EC2_FACTS, "physical_host": expected}


def test_elsewhere_the_gpu_does_not(lay_out: LayOut) -> None:
    outside = {"cloud": {"provider": "gce", "zone": "us-central1-a"}}
    facts = environment.collect(device={"serial": "0323"}, machine=lay_out(tools=SILENT), outside=outside)
    assert facts["cloud"] == outside["cloud"]

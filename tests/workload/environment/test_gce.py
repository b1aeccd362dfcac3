import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from tests.ports import held_port
from tests.workload.conftest import LayOut
from workload.environment import cloud
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


class Handler(BaseHTTPRequestHandler):
    """A metadata server that answers only to those who know its header; 404 for a key that it does not have."""

    values: ClassVar[dict[str, str]] = {}
    flavor: ClassVar[str | None] = "Google"
    chunked: ClassVar[bool] = False
    asked: ClassVar[list[str]] = []
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        assert self.path.startswith(BASE)
        assert self.headers["Metadata-Flavor"] == "Google"
        key = self.path.removeprefix(BASE)
        self.asked.append(key)
        value = self.values.get(key)
        self.send_response(404 if value is None else 200)
        if self.flavor is not None:
            self.send_header("Metadata-Flavor", self.flavor)
        body = ("not found" if value is None else value).encode()
        self.send_header(*(("Transfer-Encoding", "chunked") if self.chunked else ("Content-Length", str(len(body)))))
        self.end_headers()
        self.wfile.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body) if self.chunked else body)

    def log_message(self, *_arguments: object) -> None:
        pass


@contextmanager
def metadata_server(
    values: dict[str, str], *, flavor: str | None = "Google", chunked: bool = False
) -> Iterator[tuple[str, list[str]]]:
    handler = type("Bound", (Handler,), {"values": values, "flavor": flavor, "chunked": chunked, "asked": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}", handler.asked
        finally:
            server.shutdown()
            thread.join()


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
    with metadata_server(VM, chunked=chunked) as (address, asked):
        facts = cloud_facts(at(lay_out, address))
    assert facts == FACTS
    assert set(asked) == set(VM)
    assert not [key for key in asked if "service-account" in key or "recursive" in key or key.endswith("/")]


@pytest.mark.world
def test_keys_that_the_server_does_not_have_are_unknown(lay_out: LayOut) -> None:
    with metadata_server({"instance/preempted": "TRUE", "instance/zone": ""}) as (address, _):
        facts = cloud_facts(at(lay_out, address))
    assert facts == {**dict.fromkeys(FACTS), "provider": "gce", "preempted": True}


@pytest.mark.world
@pytest.mark.parametrize("flavor", [None, "Amazon"], ids=["no header", "another cloud"])
def test_a_server_that_is_not_googles_is_asked_once(lay_out: LayOut, flavor: str | None) -> None:
    with metadata_server(VM, flavor=flavor) as (address, asked):
        assert cloud_facts(at(lay_out, address)) is None
    assert asked == ["instance/id"]


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
    with metadata_server(VM) as (address, asked):
        facts = cloud_facts(at(lay_out, address), clock=lambda: next(readings, cloud.LIMIT_S + 1))
    assert facts["instance_id"] == "4242"
    assert facts["spot"] is None
    assert len(asked) < len(VM)


class Network:
    """Record of the addresses that the code connects to, and of its time limits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wanted: list[tuple[tuple[str, int], float]] = []
        monkeypatch.setattr(socket, "create_connection", self.connect)

    def connect(self, address: tuple[str, int], limit_s: float, *_: object) -> socket.socket:
        self.wanted.append((address, limit_s))
        raise TimeoutError


DMI = "/sys/class/dmi/id/sys_vendor"
LINK_LOCAL = ("169.254.169.254", 80)


MACHINES = {
    "Google's firmware": ({DMI: "Google"}, {}, LINK_LOCAL),
    "a PC maker's": ({DMI: "Dell Inc.", "/proc/self/status": ""}, {}, None),
    "Amazon's": ({DMI: "Amazon EC2", "/proc/self/status": ""}, {}, LINK_LOCAL),
    "Amazon's, on Xen": (
        {DMI: "Xen", "/sys/hypervisor/uuid": "ec2e1916-9099-7caf-fd21-012345abcdef\n"},
        {},
        LINK_LOCAL,
    ),
    "somebody's Xen": ({DMI: "Xen", "/sys/hypervisor/uuid": "01e1916-9099-7caf-fd21-012345abcdef\n"}, {}, None),
    "Linux without firmware tables": ({"/proc/self/status": ""}, {}, LINK_LOCAL),
    "no Linux": ({}, {}, None),
    "named with a port": ({DMI: "Dell Inc."}, {"GCE_METADATA_HOST": "metadata.test:8080"}, ("metadata.test", 8080)),
    "named": ({}, {"GCE_METADATA_HOST": "10.0.0.1"}, ("10.0.0.1", 80)),
    "named, IPv6": ({}, {"GCE_METADATA_HOST": "[::1]:99"}, ("::1", 99)),
    "a port that is none": ({}, {"GCE_METADATA_HOST": "host:port"}, None),
    "a host that is none": ({}, {"GCE_METADATA_HOST": ":80"}, None),
    "named empty": ({DMI: "Dell Inc."}, {"GCE_METADATA_HOST": ""}, None),
    "an endpoint of EC2": (
        {DMI: "Dell Inc."},
        {"AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://10.0.0.1:81/"},
        ("10.0.0.1", 81),
    ),
    "an endpoint of EC2, IPv6": (
        {DMI: "Amazon EC2"},
        {"AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://[fd00:ec2::254]"},
        ("fd00:ec2::254", 80),
    ),
}


@pytest.mark.parametrize(("files", "environ", "asked"), MACHINES.values(), ids=MACHINES.keys())
def test_who_is_asked(
    lay_out: LayOut,
    monkeypatch: pytest.MonkeyPatch,
    files: dict[str, str],
    environ: dict[str, str],
    asked: tuple[str, int] | None,
) -> None:
    network = Network(monkeypatch)
    assert cloud_facts(lay_out(files, environ=environ), clock=lambda: 0.0) is None
    assert network.wanted == ([] if asked is None else [(asked, 0.3)])

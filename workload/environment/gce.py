"""What Compute Engine says about the VM, asked in no more than a second: a run on a laptop must not wait for it.

Only the named keys are asked for, one by one: a recursive query would also answer with service accounts, SSH
keys and start-up scripts. Keys: cloud.google.com/compute/docs/metadata/predefined-metadata-keys, read 2026-11.
"""

import http.client
import io
import json
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

from workload.environment.machine import Machine
from workload.environment.virtualization import dmi_makers

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

# The address, not the name: elsewhere a name server could take seconds to deny the name.
METADATA_ADDRESS = "169.254.169.254"
FLAVOR = "Google"

# For all questions together. On a VM an answer takes about a millisecond.
LIMIT_S = 1.0
# Where DMI is hidden and nothing is there, packets vanish: this is then the whole wait.
CONNECT_LIMIT_S = 0.3
ANSWER_LIMIT_BYTES = 64 * 1024

TEXT_KEYS = {
    "instance_id": "instance/id",
    "instance_name": "instance/name",
    "zone": "instance/zone",
    "machine_type": "instance/machine-type",
    "image": "instance/image",
    "cpu_platform": "instance/cpu-platform",
    "maintenance_event": "instance/maintenance-event",
    "on_host_maintenance": "instance/scheduling/on-host-maintenance",
    "physical_host": "instance/attributes/physical_host",
}
FLAG_KEYS = {
    "preempted": "instance/preempted",
    "preemptible": "instance/scheduling/preemptible",
    "automatic_restart": "instance/scheduling/automatic-restart",
}
TOPOLOGY_KEY = "instance/attributes/physical_host_topology"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """From a server that identified itself as Google's; `text` is None unless the status was 200."""

    text: str | None


@dataclass(frozen=True, kw_only=True)
class MetadataServer:
    """A server that is asked until `deadline_s` on `clock`."""

    host: str
    port: int
    deadline_s: float
    clock: Callable[[], float]

    def ask(self, key: str) -> Answer | None:
        """None where nobody answers in time, or somebody else than Google's metadata server."""
        try:
            with socket.create_connection((self.host, self.port), min(CONNECT_LIMIT_S, self._left_s())) as connection:
                return self._converse(connection, key)
        except (OSError, http.client.HTTPException, ValueError):
            return None

    def _converse(self, connection: socket.socket, key: str) -> Answer | None:
        request = (
            f"GET /computeMetadata/v1/{key} HTTP/1.1\r\nHost: {self.host}\r\n"
            f"Metadata-Flavor: {FLAVOR}\r\nConnection: close\r\n\r\n"
        )
        connection.sendall(request.encode())
        response = http.client.HTTPResponse(cast("socket.socket", _DeadlineSocket(connection, self._left_s)))
        response.begin()
        if response.getheader("Metadata-Flavor") != FLAVOR:
            return None
        text = response.read().decode().strip()
        return Answer(text=text or None if response.status == HTTPStatus.OK else None)

    def _left_s(self) -> float:
        """Seconds to the deadline; raises TimeoutError behind it."""
        left_s = self.deadline_s - self.clock()
        if left_s <= 0:
            raise TimeoutError
        return left_s


class _DeadlineSocket(io.RawIOBase):
    """What HTTPResponse reads from: a socket's own limit starts anew with every byte that drips in."""

    def __init__(self, connection: socket.socket, left_s: Callable[[], float]) -> None:
        super().__init__()
        self._connection = connection
        self._left_s = left_s
        self._left_bytes = ANSWER_LIMIT_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        self._connection.settimeout(self._left_s())
        received_bytes = self._connection.recv_into(buffer)
        self._left_bytes -= received_bytes
        if self._left_bytes < 0:
            raise ValueError("an answer longer than any metadata value")
        return received_bytes

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)


def gce_facts(machine: Machine, *, clock: Callable[[], float] = time.monotonic) -> dict[str, object] | None:
    """None off Compute Engine; a key that the server does not have is None."""
    address = _address(machine)
    if address is None:
        return None
    server = MetadataServer(host=address[0], port=address[1], deadline_s=clock() + LIMIT_S, clock=clock)
    if server.ask("instance/id") is None:
        return None
    return {
        "provider": "gce",
        **{name: _last_part(name, _text(server, key)) for name, key in TEXT_KEYS.items()},
        **{name: _flag(_text(server, key)) for name, key in FLAG_KEYS.items()},
        "physical_host_topology": _topology(_text(server, TOPOLOGY_KEY)),
    }


def _address(machine: Machine) -> tuple[str, int] | None:
    """Where to ask, or None where asking is pointless: no Linux, or firmware by another maker than Google."""
    if named := machine.environ.get("GCE_METADATA_HOST"):
        return _host_and_port(named)
    makers = dmi_makers(machine)
    google = any(maker.startswith("Google") for maker in makers)
    return (METADATA_ADDRESS, 80) if google or (not makers and machine.exists("/proc/self")) else None


def _host_and_port(named: str) -> tuple[str, int] | None:
    try:
        parts = urlsplit(f"//{named}")
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    return (host, port or 80) if host else None


def _text(server: MetadataServer, key: str) -> str | None:
    answer = server.ask(key)
    return answer.text if answer else None


def _last_part(name: str, text: str | None) -> str | None:
    """`projects/1/zones/us-central1-a` -> `us-central1-a`; an image keeps its project: it says whose it is."""
    return text.rpartition("/")[2] if text and name in {"zone", "machine_type"} else text


def _flag(text: str | None) -> bool | None:
    return {"TRUE": True, "FALSE": False}.get((text or "").upper())


def _topology(text: str | None) -> dict[str, str] | None:
    """Cluster, block, sub-block and host, each an opaque name."""
    try:
        parsed = json.loads(text or "null")
    except ValueError:
        return None
    return {key: str(value) for key, value in parsed.items()} if isinstance(parsed, dict) else None

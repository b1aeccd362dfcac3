"""Further machines of a run that share no folder with its first one, and how its processes reach them.

Standard library only. On each of them `launcher/agent/further.py` listens. The agent on the first machine keeps a
connection to it while the job lives. The starting process of each run has another one, by which ranks begin there and
their files arrive. Messages are lines of JSON. The first message of a connection is signed with a password and a number
that is used once: whoever reads along learns nothing by which a process could be started.
"""

import hashlib
import hmac
import json
import os
import secrets
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Variable of a rank on one of several machines: address, port and password of the process that started it; without srun
# also the name of the rank's host, and on a further machine the folder of the job on the first one.
STARTER = "ROOFLAUNCH_STARTER"
# Variable of the job's processes on the first machine: path of the file with its name and the further machines.
VARIABLE = "ROOFLAUNCH_MACHINES"
# Files in the folder of the job: how machines are reached; on a further one its port, and the values of --env.
FILE, PORT, SECRETS = "machines.json", "port", "variables.json"
# Beginnings of names in the folder of a run's notes: what a rank printed; a rank waits until its files have arrived.
OUTPUT, DELIVERING = "output-", "delivering-"
CONNECT_LIMIT_S, SEND_LIMIT_S = 60.0, 30.0
# A machine that answers no probe of TCP for this time is lost: probes begin after 5 s, and are 5 s apart. Sent bytes
# that are not acknowledged for as long, in ms, mean the same.
KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 2, "TCP_USER_TIMEOUT": 20_000}
MOST_BYTES, MOST_UNSIGNED = 1 << 18, 1 << 20
NUMBER_BYTES = 32


def kept_alive(connection: socket.socket) -> socket.socket:
    """Set options by which a TCP connection breaks within 20 s if the other machine is lost; return the connection."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for name, value in KEEPALIVE.items():
        if hasattr(socket, name):  # macOS has other names
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return connection


def listening_at(address: str) -> socket.socket:
    """Socket that listens at a free port of this address only, not on all interfaces."""
    return socket.create_server((address, 0), family=socket.getaddrinfo(address, None)[0][0])


class Messages:
    """Messages over a TCP connection. `is_open`: False once this end or the other has closed it."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = kept_alive(connection)
        self.connection.settimeout(SEND_LIMIT_S)
        self.is_open = True
        self._rest = b""

    def fileno(self) -> int:
        return self.connection.fileno()

    def send(self, **message: Any) -> None:
        """Send a message, if the other end still receives."""
        try:
            self.connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self.is_open = False

    def receive(self) -> list[dict[str, Any]]:
        """Messages that have come; waits for the next bytes."""
        try:
            received = self.connection.recv(MOST_BYTES)
        except OSError:
            received = b""
        self.is_open = bool(received)
        *lines, self._rest = (self._rest + received).split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        self.is_open = False
        self.connection.close()


class Caller(Messages):
    """Connection that was made to the process on a further machine, which does nothing for it before a signed order."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection)
        self._number = secrets.token_bytes(NUMBER_BYTES)
        with suppress(OSError):
            self.connection.sendall(self._number)

    def order(self, password: str) -> dict[str, Any] | None:
        """Return the first message once it has come. A connection whose first message is not signed is closed."""
        try:
            for message in self.receive()[:1]:
                text = str(message["order"])
                if hmac.compare_digest(str(message["signature"]), _signed(password, self._number, text)):
                    return dict(json.loads(text))
                self.close()
        except (ValueError, KeyError, TypeError, RecursionError):  # compare_digest takes only ASCII
            self.close()
        if len(self._rest) > MOST_UNSIGNED:
            self.close()
        return None


def _signed(password: str, number: bytes, order: str) -> str:
    return hmac.new(password.encode(), number + order.encode(), hashlib.sha256).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Further:
    """Further machine: its name for messages, and where and with which password its process is reached."""

    name: str
    address: str
    port: int
    password: str

    def connected(self, order: Mapping[str, Any]) -> Messages:
        """Connect to the process there, and send an order as the first message. Raises `OSError`."""
        connection = socket.create_connection((self.address, self.port), timeout=CONNECT_LIMIT_S)
        number = b""
        while len(number) < NUMBER_BYTES:
            number += (received := connection.recv(NUMBER_BYTES - len(number)))
            if not received:
                raise ConnectionResetError("the connection was closed")
        text = json.dumps(order)
        messages = Messages(connection)
        messages.send(order=text, signature=_signed(self.password, number, text))
        return messages


# --- on the first machine


def listed() -> tuple[str, list[Further]]:
    """Name of this machine, and the further machines of the job in which this process runs; none in other jobs."""
    if VARIABLE not in os.environ:
        return "", []
    content = json.loads(Path(os.environ[VARIABLE]).read_text(encoding="utf-8"))
    return content["name"], [Further(**each) for each in content["further"]]


@contextmanager
def kept() -> Iterator[None]:
    """Keep a connection to each further machine while the block runs; the process there ends when it closes."""
    with ExitStack() as connections:
        for each in listed()[1]:
            with suppress(OSError):  # the run will tell it
                connections.callback(each.connected({"what": "job"}).close)
        yield

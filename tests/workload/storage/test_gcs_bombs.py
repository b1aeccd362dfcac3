"""Answers of a server that unpack to far more than they have: a few bytes of gzip, and most of the memory."""

import threading
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from workload.contract.errors import RooflaunchError
from workload.storage.address import open_store
from workload.storage.gcs import Bucket
from workload.storage.store import Store, StoredObject, TooLongError, UnreachableError

pytestmark = pytest.mark.world

UNPACKED_MB = 300
MOST_MB = 60


def _bomb() -> bytes:
    packed = zlib.compressobj(9, zlib.DEFLATED, 31)
    parts = [packed.compress(b'{"items": [], "x": "')]
    parts += [packed.compress(b" " * (1 << 20)) for _ in range(UNPACKED_MB)]
    return b"".join([*parts, packed.flush()])


BOMB = _bomb()


class Bombs(BaseHTTPRequestHandler):
    """Answers the first question as Cloud Storage does, and all others with a bomb."""

    status: ClassVar[int] = 200

    def do_GET(self) -> None:
        """Answer."""
        is_first = "maxResults=1" in self.path
        content = b'{"items": []}' if is_first else BOMB
        self.send_response(200 if is_first else self.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("x-goog-generation", "1")
        if not is_first:
            self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        try:
            self.wfile.write(content)
        except OSError:
            self.close_connection = True

    def do_POST(self) -> None:
        """Answer an upload."""
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.do_GET()

    def log_message(self, *_: object) -> None:  # type: ignore[override]
        """Nothing."""


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Bombs)
    threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{server.server_port}")
    yield open_store("gs://bucket")
    server.shutdown()
    server.server_close()


class Counted:
    """Where a download goes."""

    count = 0

    def write(self, data: bytes) -> int:
        self.count += len(data)
        return len(data)


def _download(store: Store) -> None:
    sink = Counted()
    store.download(StoredObject(name="x", bytes=len(BOMB), crc32c="", version="1"), sink)
    assert sink.count == len(BOMB), "as stored"


def _access(store: Store) -> None:
    assert isinstance(store, Bucket)
    store.access()


# Question, what it raises where the bomb is an object or an answer, and where it is the text of an error.
FOREIGN = "another server than Cloud Storage answers at "
ASKED: dict[str, tuple[Callable[[Store], object], type[RooflaunchError] | None]] = {
    "read": (lambda store: store.read("x"), None),
    "read a little": (lambda store: store.read("x", most_bytes=1000), TooLongError),
    "download": (_download, None),
    "list": (lambda store: list(store.objects("")), UnreachableError),
    "folders": (lambda store: store.folders("a/"), UnreachableError),
    "checksum": (lambda store: store.checksum("x"), UnreachableError),
    "write": (lambda store: store.write("x", b"1"), UnreachableError),
    "access": (_access, UnreachableError),
}


@pytest.mark.parametrize("status", [200, 400, 404])
@pytest.mark.parametrize("name", ASKED)
def test_no_answer_fills_the_memory(store: Store, monkeypatch: pytest.MonkeyPatch, name: str, status: int) -> None:
    ask, error = ASKED[name]
    monkeypatch.setattr(Bombs, "status", status)
    tracemalloc.start()
    try:
        if error is None and status == 200:
            ask(store)
        else:
            with pytest.raises(RooflaunchError) as caught:
                ask(store)
            assert isinstance(caught.value, error if error and status == 200 else UnreachableError)
            assert isinstance(caught.value, TooLongError) or str(caught.value).startswith(FOREIGN)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < MOST_MB * 1e6

"""Answers of a server that unpack to far more than they have: a few bytes of gzip, and most of the memory."""

import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from typing import ClassVar

import pytest

from tests.ports import Answering, Fake
from workload.contract.errors import RooflaunchError
from workload.storage.address import open_store
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


class Bombs(Answering):
    """Answers the first question as Cloud Storage does, and all others with a bomb."""

    status: ClassVar[int] = 200

    def do_GET(self) -> None:
        """Answer."""
        if "maxResults=1" in self.path:
            self.send(200, b'{"items": []}', Content_Type="application/json")
        else:
            headers = {"Content-Type": "application/json", "x-goog-generation": "1", "Content-Encoding": "gzip"}
            self.send(self.status, BOMB, **headers)

    def do_POST(self) -> None:
        """Answer an upload."""
        self.content()
        self.do_GET()


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    with Fake(Bombs) as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        yield open_store("gs://bucket")


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

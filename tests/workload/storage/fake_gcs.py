"""Cloud Storage that exists only as the objects below. It stands in for Google's client: all of ours is real."""

import base64
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import google_crc32c
from google.api_core import exceptions as api

from workload.storage.gcs import Bucket
from workload.storage.store import Patience

NAME = "bucket"
PIECE_BYTES = 8


@dataclass
class FakeObject:
    content: bytes
    generation: int
    crc32c: str


@dataclass
class FakeStorage:
    """Holds one bucket's objects.

    `before[name]` runs before a download of that object, and may raise or replace it; `break_after[name]` lists after
    how many bytes the next downloads break off. `downloads` are the names that were asked for.
    """

    objects: dict[str, FakeObject] = field(default_factory=dict)
    before: dict[str, Callable[[], None]] = field(default_factory=dict)
    break_after: dict[str, list[int]] = field(default_factory=dict)
    list_error: Exception | None = None
    downloads: list[str] = field(default_factory=list)
    _generations: Iterator[int] = field(default_factory=lambda: itertools.count(1001))

    def put(self, name: str, content: bytes = b"x") -> None:
        crc = base64.b64encode(google_crc32c.Checksum(content).digest()).decode()
        self.objects[name] = FakeObject(content, next(self._generations), crc)

    def put_folder(self, folder: Path, prefix: str = "", *, without: Sequence[str] = ()) -> None:
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(folder).as_posix()
            if path.is_file() and name not in without:
                self.put(f"{prefix}runs/{folder.name}/{name}", path.read_bytes())

    def opened(self) -> Bucket:
        """Ours, connected to this."""
        return Bucket(self, NAME, Patience())  # type: ignore[arg-type]

    def asked_for(self) -> list[str]:
        """Names of what was downloaded since the last look, without the run's folder."""
        names = [name.partition("runs/")[2].partition("/")[2] for name in self.downloads]
        self.downloads.clear()
        return sorted(names)

    def list_blobs(
        self, bucket: str, *, prefix: str, fields: str, max_results: int | None, timeout: Any, retry: Any
    ) -> Any:
        assert fields == "items(name,size,crc32c,generation,metadata),nextPageToken"
        assert timeout == (5.0, 8.0), "the client's default waits for a minute"
        assert retry._timeout <= 20
        if self.list_error:
            raise self.list_error
        if bucket != NAME:
            raise api.NotFound(f"GET https://storage.googleapis.com/storage/v1/b/{bucket}/o: Not Found")
        names = sorted(name for name in self.objects if name.startswith(prefix))[:max_results]
        return iter([FakeBlob(self, name, listed=True) for name in names])

    def bucket(self, name: str) -> Any:
        assert name == NAME
        return FakeBucket(self)


@dataclass
class FakeBucket:
    storage: FakeStorage

    def blob(self, name: str) -> "FakeBlob":
        return FakeBlob(self.storage, name)


class FakeBlob:
    def __init__(self, storage: FakeStorage, name: str, *, listed: bool = False) -> None:
        self._storage, self.name = storage, name
        self.size: int | None = None
        self.crc32c: str | None = None
        self.generation: int | None = None
        self.metadata: dict[str, str] | None = None
        if listed:
            held = storage.objects[name]
            self.size, self.crc32c, self.generation = len(held.content), held.crc32c, held.generation

    def download_to_file(
        self,
        sink: Any,
        *,
        raw_download: bool,
        checksum: None,
        if_generation_match: int,
        timeout: Any,
        retry: Any,
    ) -> None:
        assert raw_download
        assert checksum is None
        assert retry._timeout == 20
        assert timeout == (5.0, 8.0)
        storage = self._storage
        storage.downloads.append(self.name)
        storage.before.get(self.name, lambda: None)()
        held = storage.objects.get(self.name)
        if held is None:
            raise api.NotFound("No such object")
        if held.generation != if_generation_match:
            raise api.PreconditionFailed("conditionNotMet")
        content = held.content
        breaks = storage.break_after.get(self.name, [])
        end = breaks.pop(0) if breaks else len(content)
        for offset in range(0, min(end, len(content)), PIECE_BYTES):
            sink.write(content[offset : min(offset + PIECE_BYTES, end)])
        self.generation = held.generation
        if end < len(content):
            reset = ConnectionResetError(104, "Connection reset by peer")
            raise api.RetryError("Timeout of 20.0s exceeded", reset) from reset

"""Interface of a store, which keeps bundles and records of launches in a bucket or a folder.

`address.open_store` opens one. Names of objects are relative to the store's address, with `/` between their parts.
Checksums are CRC-32C, base64 of the big-endian value, as in a bundle's manifest. Standard library only.
"""

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, Self, TypeVar

from workload.contract.errors import BundleError, ToolError
from workload.contract.operating_system import crc32c

T = TypeVar("T")

# A record has a few kB, and a list of 10,000 runs 700 kB. A larger file is damaged, or meant to exhaust the memory.
MAX_RECORD_BYTES = 2_000_000
# For text that is shown whole, for example a start-up log. Longer text needs the store's own tools.
MAX_TEXT_BYTES = 32_000_000
# Permissions of an object that is a file, before the writer's umask. A secret is readable by its owner alone.
USUAL_MODE, PRIVATE_MODE = 0o666, 0o600


@dataclass(frozen=True, kw_only=True)
class Patience:
    """Time limits for a store behind a network, in seconds; Google's own default is two minutes per request.

    `first_answer_s`: limit of the whole first contact; `first_retry_s` and `retry_s`: how long a failing request is
    repeated, at the first contact and later; `connect_s` and `read_s`: longest wait for a connection, and for data.
    """

    first_answer_s: float = 15.0
    first_retry_s: float = 5.0
    retry_s: float = 20.0
    connect_s: float = 5.0
    read_s: float = 8.0


@dataclass(frozen=True, kw_only=True)
class StoredObject:
    """An object as a store lists it.

    `version`: the store's identifier of this content, which changes when the object is replaced. `crc32c`: empty if the
    listing lacks it. `metadata`: short texts stored with the object, if the store keeps metadata. `problem`: why the
    entry can be neither read nor replaced, for example because it is a symbolic link in a folder; else empty.
    """

    name: str
    bytes: int
    crc32c: str
    version: str
    metadata: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""


class UnreachableError(ToolError):
    """The store, or another service behind the network, does not answer."""


class ObjectChangedError(BundleError):
    """An object was replaced or deleted after it was listed."""


class TooLongError(BundleError):
    """An object has more bytes than expected."""


class ObjectExistsError(BundleError):
    """An object to create exists already, or an object to replace has another version."""


class Sink(Protocol):
    """Destination of a download."""

    def write(self, data: bytes, /) -> int: ...


class BoundedSink:
    """Passes bytes on to `sink`; raises `TooLongError` after `most_bytes`. `what` names the object in the message."""

    def __init__(self, sink: Sink, most_bytes: int, *, what: str) -> None:
        self._sink, self._left, self._most, self._what = sink, most_bytes, most_bytes, what

    def write(self, data: bytes, /) -> int:
        if len(data) > self._left:
            raise too_long(self._what, self._most)
        self._left -= len(data)
        return self._sink.write(data)


class CountedSink:
    """Counts the bytes written to it, and passes them on to `sink`, if there is one."""

    def __init__(self, sink: Sink | None) -> None:
        self._sink, self.bytes = sink, 0

    def write(self, data: bytes, /) -> int:
        self.bytes += len(data)
        return len(data) if self._sink is None else self._sink.write(data)


class ChecksumSink:
    """Discards the bytes written to it, and keeps their CRC-32C."""

    crc = 0

    def write(self, data: bytes, /) -> int:
        self.crc = crc32c(data, self.crc)
        return len(data)


class Store(Protocol):
    """A place that holds objects. Threads may share it; its `str()` is its name in messages: `bucket 'my-bucket'`.

    Writer and reader may be on different machines, and either may be killed at any moment. Therefore a reader sees an
    object as a whole or not at all.
    """

    @property
    def kind(self) -> str:
        """Kind of store, for messages: `bucket` or `folder`."""

    def locate(self, name: str) -> str:
        """The address of an object, as the store's own tools and our commands accept it."""

    def removal(self, name: str) -> str:
        """Command for the user that removes an object, or all objects below a name that ends in a slash."""

    def with_patience(self, patience: Patience) -> Self:
        """A copy of this store with other time limits."""

    def objects(self, prefix: str) -> Iterator[StoredObject]:
        """All objects whose names start with `prefix`, ordered by name."""

    def folders(self, prefix: str) -> list[str]:
        """Names of the folders below `prefix`, sorted: `a/` -> `["x", "y"]` if objects `a/x/…` and `a/y/…` exist."""

    def read(self, name: str, *, most_bytes: int = MAX_RECORD_BYTES) -> bytes | None:
        """Content of a small object; None if it does not exist.

        Raises `TooLongError` if it has more than `most_bytes`.
        """

    def write(self, name: str, content: bytes, *, if_absent: bool = False, is_private: bool = False) -> bool:
        """Create or replace an object. With `if_absent`, write nothing and return False if it exists.

        If several writers use `if_absent`, exactly one of them gets True. `is_private`: in a folder, only the owner may
        read the file (mode 0600); in a bucket, the bucket's own access rules hold, and S3 keeps no older version.
        """

    def upload(
        self, name: str, path: Path, *, crc32c: str, replaces: str = "", metadata: Mapping[str, str] | None = None
    ) -> bool:
        """Store a file whose checksum is known; return False if the store has the same content already.

        `replaces`: version of the object to replace; empty to create a new one. Raises `ObjectExistsError` if another
        object has this name, `BundleError` if the file differs from its checksum.
        """

    def download(self, listed: StoredObject, sink: Sink) -> None:
        """Write the bytes of an object to `sink`, in small pieces.

        Raises `ObjectChangedError` if the object was replaced after it was listed, `TooLongError` if it has more bytes
        than listed.
        """

    def checksum(self, name: str) -> str | None:
        """Current CRC-32C of an object; None if it does not exist."""


def checksum_of(store: Store, listed: StoredObject) -> str | None:
    """CRC-32C of a listed object, computed by the store if the listing lacks it; None if the object is gone."""
    return listed.crc32c or store.checksum(listed.name)


def within(limit_s: float, work: Callable[[], T]) -> T:
    """Return `work()`; raise `TimeoutError` after `limit_s` seconds.

    For calls that take no time limit of their own: name resolution, tokens, a mount that hangs.
    """
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(work())
        except BaseException as error:  # noqa: BLE001 - it is raised again where it is awaited
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return answer.result(timeout=limit_s)


def too_long(what: str, most_bytes: int) -> TooLongError:
    """Error for an object with more than `most_bytes`; `what` names it."""
    return TooLongError(f"{what} has more than {most_bytes} bytes", hint="remove the object, or write it again")


def changed(listed: StoredObject) -> ObjectChangedError:
    """Error for an object that was replaced or deleted after it was listed."""
    return ObjectChangedError(f"'{listed.name}' changed while it was copied", hint="fetch again")


def not_sealed(name: str) -> BundleError:
    """Error for a file that differs from its checksum."""
    return BundleError(f"'{name}' differs from its checksum: it was changed after the run", hint="run again")


# --- names of objects, which must be safe as names of files on every file system that may hold them

# https://cloud.google.com/storage/docs/objects#naming allows 1024 bytes; file systems allow 255 in each part.
MAX_PART_BYTES = 255

UNSAFE: tuple[tuple[str, Callable[[str], object]], ...] = (
    ("an absolute path", lambda name: name.startswith("/")),
    ("a backslash", lambda name: "\\" in name),
    ("a control character", lambda name: re.search(r"[\x00-\x1f\x7f-\x9f]", name)),
    ("a drive letter", lambda name: re.search(r"(^|/)[A-Za-z]:", name)),
    ("leaves its folder", lambda name: ".." in name.split("/")),
    # `rm -rf *` would read such a name as options.
    ("a part that begins with a dash", lambda name: re.search(r"(^|/)-", name)),
    ("an empty part", lambda name: "" in name.split("/")),
    # Windows drops these endings: `MANIFEST.json.` would be the manifest.
    ("a part that ends in a dot or a space", lambda name: re.search(r"[. ](/|$)", name)),
    ("no valid Unicode", lambda name: re.search(r"[\ud800-\udfff]", name)),
    (
        f"a part of more than {MAX_PART_BYTES} bytes",
        lambda name: max(len(part.encode()) for part in name.split("/")) > MAX_PART_BYTES,
    ),
)


def why_unsafe(name: str) -> str:
    """Reason why a file of this name might leave our folder or could not be written; empty if the name is safe."""
    return next((reason for reason, is_unsafe in UNSAFE if is_unsafe(name)), "")


def require_safe(name: str, store: object) -> None:
    """Raise `BundleError` for a name that could not be fetched again."""
    if reason := why_unsafe(name):
        raise BundleError(f"{name!r} is not allowed as a name in {store}: {reason}", hint="give it another name")

"""A store: where bundles and the records of launches lie, whatever kind of place that is.

`open_store("gs://BUCKET/PREFIX")` is a bucket of Cloud Storage, `open_store("FOLDER")` a folder of this machine or of
one that it shares, `open_store("ssh://USER@HOST/FOLDER")` a folder of another. Names of objects are relative to the
address, with `/` between their parts; checksums are CRC-32C, base64 of the big-endian value, as a bundle's manifest has
them. Standard library only until a store is opened.
"""

import re
import threading
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, Self, TypeVar

from workload.contract.errors import BundleError, ToolError, UsageError

T = TypeVar("T")

# Records have a few kB, and a list of 10,000 runs has 700: more is damage, or meant to fill somebody's memory.
MAX_RECORD_BYTES = 2_000_000
# For text that is shown whole, a start-up log say; the place's own tools are for more.
MAX_TEXT_BYTES = 32_000_000
# Permissions of an object that is a file: what the writer's umask leaves of the usual ones; a secret is its owner's.
USUAL_MODE, PRIVATE_MODE = 0o666, 0o600


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long to wait for a store behind a network, in seconds; Google's own default is two minutes a question.

    `first_answer_s` bounds the first contact whatever it waits for; `first_retry_s` and `retry_s`: how long a failing
    request is repeated, at the first contact and later; `connect_s` and `read_s` bound one wait of one request.
    """

    first_answer_s: float = 15.0
    first_retry_s: float = 5.0
    retry_s: float = 20.0
    connect_s: float = 5.0
    read_s: float = 8.0


@dataclass(frozen=True, kw_only=True)
class StoredObject:
    """One object as listed.

    `version` is the store's own word for this content: it changes when the object is replaced. `crc32c` is empty where
    the listing does not know it. `metadata` are the few words that were stored with the object, where the store keeps
    such. `problem` says why an entry can be neither read nor replaced (a symbolic link in a folder).
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
    """More bytes came than there should be."""


class ObjectExistsError(BundleError):
    """An object is there that was to be made, or another than the one that was to be replaced."""


class Sink(Protocol):
    """What a download is written to."""

    def write(self, data: bytes, /) -> int: ...


class BoundedSink:
    """Passes on what is written, up to so many bytes; then `TooLongError`."""

    def __init__(self, sink: Sink, most_bytes: int, *, what: str) -> None:
        self._sink, self._left, self._most, self._what = sink, most_bytes, most_bytes, what

    def write(self, data: bytes, /) -> int:
        if len(data) > self._left:
            raise TooLongError(f"{self._what} has more than {self._most} bytes", hint="remove it, or write it again")
        self._left -= len(data)
        return self._sink.write(data)


class Store(Protocol):
    """One place for objects. Threads may share it; its `str()` is how messages name it: `bucket 'my-bucket'`.

    A writer and a reader may be on different machines, and either may be killed at any moment: an object is there as a
    whole, or not at all.
    """

    @property
    def kind(self) -> str:
        """What to call such a place: `bucket`, `folder`."""

    def locate(self, name: str) -> str:
        """The address of an object, as the place's own tools and our commands take it."""

    def removal(self, name: str) -> str:
        """The command with which a person removes an object, or all objects below a name that ends in a slash."""

    def with_patience(self, patience: Patience) -> Self:
        """The same store, asked with other limits."""

    def objects(self, prefix: str) -> Iterator[StoredObject]:
        """Every object whose name starts with `prefix`, in the order of names."""

    def folders(self, prefix: str) -> list[str]:
        """`a/` -> `["x", "y"]` where objects `a/x/…` and `a/y/…` exist: without `prefix` and slash, in order."""

    def read(self, name: str, *, most_bytes: int = MAX_RECORD_BYTES) -> bytes | None:
        """What a small object holds; None where there is none, `TooLongError` where it has more than `most_bytes`."""

    def write(self, name: str, content: bytes, *, if_absent: bool = False, is_private: bool = False) -> bool:
        """Make or replace an object. With `if_absent`, write nothing and return False if it exists.

        Of several writers with `if_absent`, exactly one is told True. `is_private`: in a folder, a file that its owner
        alone may read (mode 0600); who may read a bucket's objects is the bucket's own matter.
        """

    def upload(
        self, name: str, path: Path, *, crc32c: str, replaces: str = "", metadata: Mapping[str, str] | None = None
    ) -> bool:
        """Store a file whose checksum is known; False where the same content is there already.

        It makes a new object, or replaces the one of version `replaces`. Raises `ObjectExistsError` where another
        object is there, `BundleError` where the file is not what its checksum says.
        """

    def download(self, listed: StoredObject, sink: Sink, *, start: int = 0) -> None:
        """Write the bytes of an object from `start` on, in small pieces.

        Raises `ObjectChangedError` where it was replaced since, `TooLongError` where more come than were listed.
        """

    def checksum(self, name: str) -> str | None:
        """The checksum of an object as it is now; None where it is gone."""


def checksum_of(store: Store, listed: StoredObject) -> str | None:
    """The checksum of an object; it is read where the list did not know it."""
    return listed.crc32c or store.checksum(listed.name)


@dataclass(frozen=True, kw_only=True)
class BucketAddress:
    """`gs://BUCKET/PATH`; the path has no slash at its ends."""

    bucket: str
    path: str


@dataclass(frozen=True, kw_only=True)
class SshAddress:
    """`ssh://LOGIN/PATH`; `login` may end in a port, the path has no slash at its ends."""

    login: str
    path: str


BUCKET_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
# A scheme has two letters at least: `C:/results` is a folder of Windows. `gs:/x` is a slip, and no folder.
SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")
EXAMPLE = "analyze fetch gs://BUCKET/PREFIX -o results"


def is_bucket(text: str) -> bool:
    """Whether an address means a bucket, well written or not."""
    return text.startswith("gs://")


def parse_address(text: str) -> BucketAddress | SshAddress | Path:
    """A bucket, a folder of another machine, or one of this; `UsageError` for anything else."""
    scheme = SCHEME.match(text)
    if scheme is None and text:
        return Path(text)
    if scheme and scheme[1] == "gs":
        name, _, path = text.removeprefix("gs://").partition("/")
        if not is_bucket(text) or not BUCKET_NAME.fullmatch(name):
            raise UsageError(f"a bucket is written gs://BUCKET/PREFIX; got '{text}'", hint=EXAMPLE)
        return BucketAddress(bucket=name, path=_joined(path))
    if scheme and scheme[1] == "ssh" and text.startswith("ssh://"):
        login, _, path = text.removeprefix("ssh://").partition("/")
        return SshAddress(login=login, path=_joined(path))
    if scheme and scheme[1] == "file":
        path = urllib.parse.unquote(text.removeprefix("file://"))
        if not text.startswith("file:///"):
            raise UsageError(f"a folder is written file:///FOLDER, or FOLDER; got '{text}'", hint=EXAMPLE)
        return Path(path)
    raise UsageError(
        "a place for bundles is written gs://BUCKET/PREFIX, ssh://USER@HOST/FOLDER, FOLDER or file:///FOLDER; "
        f"got '{text}'",
        hint=EXAMPLE,
    )


def _joined(path: str) -> str:
    return "/".join(part for part in path.split("/") if part)


def open_store(address: str, *, probe: str = "", jobs: int = 1, patience: Patience | None = None) -> Store:
    """The store at this address, once it has answered a question about names that start with `probe`.

    `jobs` requests may run at a time. Raises `UsageError` (no such bucket or folder, an unknown kind of address) or
    `ToolError` (a package is missing; no credentials, permission or answer).
    """
    from workload.storage import folder, gcs, ssh  # noqa: PLC0415 - each needs this module

    limits = patience or Patience()
    place = parse_address(address)
    if isinstance(place, SshAddress):
        return ssh.connect(address)
    if isinstance(place, Path):
        return folder.connect(address, place, limit_s=limits.first_answer_s)
    root = f"{place.path}/" if place.path else ""
    return gcs.connect(place.bucket, root=root, prefix=probe, jobs=jobs, patience=limits)


def within(limit_s: float, work: Callable[[], T]) -> T:
    """`work()`, or `TimeoutError`, for what cannot be given a limit: names to resolve, tokens, a mount that hangs."""
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(work())
        except BaseException as error:  # noqa: BLE001 - it is raised again where it is awaited
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return answer.result(timeout=limit_s)


def not_sealed(name: str) -> BundleError:
    """For a file that is not what its checksum says."""
    return BundleError(f"'{name}' differs from its checksum: it was changed after the run", hint="run again")

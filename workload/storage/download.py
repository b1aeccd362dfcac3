"""Receives the files of a run: downloads them in pieces, compares them, and moves them to their folder."""

import hashlib
import io
import shutil
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO

from workload.contract import bundle
from workload.contract.checksum import crc32c_of
from workload.contract.errors import BundleError, ToolError
from workload.contract.files import replacing
from workload.storage.inventory import PARTIAL, Wanted
from workload.storage.store import (
    ObjectChangedError,
    Store,
    StoredObject,
    TooLongError,
    UnreachableError,
    checksum_of,
)

ATTEMPTS = 2


@dataclass(kw_only=True)
class Traffic:
    """State shared by the workers: bytes received so far, and whether to stop."""

    bytes: int = 0
    stop: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, count: int) -> None:
        """Count received bytes."""
        with self._lock:
            self.bytes += count


class StoppedError(Exception):
    """The fetch is stopping: another worker failed for good, or the user pressed Ctrl-C."""


class Downloader:
    """Downloads files of one store; shared by threads."""

    def __init__(self, store: Store, traffic: Traffic) -> None:
        self._store = store
        self._traffic = traffic

    def manifest(self, listed: StoredObject) -> bytes:
        """Download the manifest and compare it with its listing; repeat once if it differs. Raises `BundleError`."""
        for _ in range(ATTEMPTS):
            content = io.BytesIO()
            with suppress(TooLongError):
                self._store.download(listed, _Counted(content, self._traffic))
            arrived = content.getvalue()
            if len(arrived) == listed.bytes and crc32c_of(io.BytesIO(arrived)) == checksum_of(self._store, listed):
                return arrived
        raise BundleError(f"{bundle.MANIFEST} arrived damaged {ATTEMPTS} times", hint="fetch again")

    def download(self, folder: Path, wanted: Iterable[Wanted]) -> tuple[int, int]:
        """Download every wanted file that `folder` lacks; return the number of files downloaded, and their bytes."""
        files = count = 0
        for file in wanted:
            if not self._is_as_wanted(folder / file.name, file):
                count += self._download_file(folder, file)
                files += 1
        return files, count

    def _download_file(self, folder: Path, wanted: Wanted) -> int:
        """Download to a partial file, compare, move to its place; return the number of bytes received."""
        token = hashlib.sha256(wanted.name.encode()).hexdigest()[:16]
        # The version in its name ensures that a partial file is continued only with the same content.
        partial = folder / PARTIAL / f"{token}-{wanted.remote.version}"
        partial.parent.mkdir(exist_ok=True)
        count = 0
        for _ in range(ATTEMPTS):
            count += self._download(partial, wanted.remote)
            if self._is_as_wanted(partial, wanted):
                target = folder / wanted.name
                target.parent.mkdir(parents=True, exist_ok=True)
                partial.replace(target)
                return count
            # A partial file of an earlier fetch may have been damaged: start once more.
            partial.unlink()
        raise BundleError(f"{wanted.name} arrived damaged {ATTEMPTS} times", hint="fetch again")

    def _download(self, partial: Path, listed: StoredObject) -> int:
        """Continue the partial file up to its full size, over broken connections as long as each brings some bytes."""
        before = _size(partial)
        if before > listed.bytes:
            partial.unlink()
            before = 0
        partial.touch()
        start = before
        while start < listed.bytes:
            try:
                # A file that is too long fails its comparison later.
                with suppress(TooLongError), partial.open("ab") as content:
                    self._store.download(listed, _Counted(content, self._traffic), start=start)
            except UnreachableError:
                if _size(partial) == start:
                    raise
            except ObjectChangedError:
                partial.unlink()
                raise
            else:
                break
            start = _size(partial)
        return _size(partial) - before

    def _is_as_wanted(self, path: Path, wanted: Wanted) -> bool:
        """Whether the file has the size and checksum of the manifest, or without a manifest those of the object."""
        if not path.is_file() or _size(path) != wanted.remote.bytes:
            return False
        if not wanted.sha256:
            return checksum_of(self._store, wanted.remote) == _crc32c_of(path)
        with path.open("rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest() == wanted.sha256


class _Counted:
    """Stream that counts written bytes, and raises `StoppedError` when the workers must stop."""

    def __init__(self, stream: BinaryIO, traffic: Traffic) -> None:
        self._stream = stream
        self._traffic = traffic

    def write(self, data: bytes, /) -> int:
        if self._traffic.stop.is_set():
            raise StoppedError
        self._traffic.add(len(data))
        return self._stream.write(data)


class LocalState(StrEnum):
    """State of a run's folder before the fetch; `other`: a complete bundle with other content."""

    ABSENT = "absent"
    SAME = "same"
    OTHER = "other"


def local_state(store: Store, folder: Path, manifest: StoredObject) -> LocalState:
    """State of the local folder, compared with the remote manifest."""
    path = folder / bundle.MANIFEST
    try:
        same = _size(path) == manifest.bytes and _crc32c_of(path) == checksum_of(store, manifest)
        bundle.read(folder)
    except (BundleError, FileNotFoundError):
        return LocalState.ABSENT
    return LocalState.SAME if same else LocalState.OTHER


def _crc32c_of(path: Path) -> str:
    with path.open("rb") as content:
        return crc32c_of(content)


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def seal(folder: Path, manifest: bytes) -> None:
    """Write the manifest, atomically and last: from here on the bundle is complete."""
    shutil.rmtree(folder / PARTIAL, ignore_errors=True)
    with replacing(folder / bundle.MANIFEST) as file:
        file.write(manifest)


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Convert disk errors: a disk that takes no more data ends the fetch, a problem of one folder refuses its run."""
    try:
        yield
    except OSError as error:
        where = error.filename or folder
        if bundle.is_write_failure(error) and not isinstance(error, FileNotFoundError):
            raise ToolError(
                f"{error.strerror} while writing '{where}'",
                hint="free some space, or use -o FOLDER on another disk; the same command continues",
            ) from error
        raise BundleError(f"'{where}' cannot be written: {error.strerror or error}", hint="move it away") from error

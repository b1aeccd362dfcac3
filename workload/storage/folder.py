"""Stores in folders: of this machine, or of a file system that machines share (NFS, Lustre, a mounted disk).

`ssh_remote.py` reads and writes the files, here and on another machine.
"""

import errno
import io
import os
import shlex
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from workload.contract.errors import BundleError, ToolError, UsageError
from workload.contract.operating_system import crc32c_of, crc32c_text, replace_file
from workload.storage import ssh_remote
from workload.storage.store import (
    MAX_RECORD_BYTES,
    PRIVATE_MODE,
    USUAL_MODE,
    BoundedSink,
    ChecksumSink,
    ObjectExistsError,
    Patience,
    Sink,
    StoredObject,
    UnreachableError,
    changed,
    not_sealed,
    require_safe,
    too_long,
    within,
)

# Attempts to read one file, if a network file system reports that the opened file was replaced.
ATTEMPTS = 3
# Errors of file systems without hard links (FAT, some network and FUSE mounts), or of a missing right.
NO_HARD_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
# Errors of a disk or file server that fails: the only remedy is to try again.
NO_ANSWER = (errno.ESTALE, errno.EIO, errno.ENOTCONN, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.ENODEV, errno.ENXIO)


class FileStore(ABC):
    """Base of a `Store` whose objects are the files below a folder."""

    kind = "folder"

    @abstractmethod
    def locate(self, name: str) -> str:
        """The address of an object."""

    @abstractmethod
    def _answer(self, question: Mapping[str, Any], sink: Sink | None, payload: bytes | Path) -> dict[str, Any]:
        """Answer of `ssh_remote.main` to this question; bytes of a file go to `sink`."""

    def objects(self, prefix: str) -> Iterator[StoredObject]:
        rows = self._ask("list", prefix=prefix)["objects"]
        listed = [StoredObject(name=n, bytes=size, crc32c="", version=v, problem=p) for n, size, v, p in rows]
        yield from sorted(listed, key=lambda stored: stored.name.encode(errors="surrogateescape"))

    def folders(self, prefix: str) -> list[str]:
        return list(self._ask("folders", prefix=prefix)["folders"])

    def read(self, name: str, *, most_bytes: int = MAX_RECORD_BYTES) -> bytes | None:
        content = io.BytesIO()
        answer = self._ask("read", content, name=name, most_bytes=most_bytes, version="")
        if answer["state"] == "absent":
            return None
        if answer["size"] > most_bytes:
            raise too_long(f"'{name}' in {self}", most_bytes)
        return content.getvalue()

    def checksum(self, name: str) -> str | None:
        """Current CRC-32C of an object, computed here from its bytes; None if it does not exist."""
        sink = ChecksumSink()
        answer = self._ask("read", sink, name=name, most_bytes=None, version="")
        return None if answer["state"] == "absent" else crc32c_text(sink.crc)

    def download(self, listed: StoredObject, sink: Sink) -> None:
        bounded = BoundedSink(sink, listed.bytes, what=f"'{listed.name}'")
        answer = self._ask("read", bounded, name=listed.name, most_bytes=None, version=listed.version)
        if answer["state"] != "read":
            raise changed(listed)

    def write(self, name: str, content: bytes, *, if_absent: bool = False, is_private: bool = False) -> bool:
        return self._write(name, content, if_absent=if_absent, replaces="", is_private=is_private)

    def upload(
        self, name: str, path: Path, *, crc32c: str, replaces: str = "", metadata: Mapping[str, str] | None = None
    ) -> bool:
        """Store a file whose checksum is known; return False if the store has the same content already.

        The version `replaces` is compared before the replacement, not atomically with it: two writers that replace an
        object at the same moment may both succeed. Metadata is dropped, because a folder cannot hold it.
        """
        del metadata
        with path.open("rb") as source:
            if crc32c_of(source) != crc32c:
                raise not_sealed(name)
        if self._write(name, path, if_absent=not replaces, replaces=replaces):
            return True
        if self.checksum(name) != crc32c:
            raise ObjectExistsError(f"another '{name}' is in {self} already", hint=f"look at {self.locate(name)}")
        return False

    def _write(
        self, name: str, payload: bytes | Path, *, if_absent: bool, replaces: str, is_private: bool = False
    ) -> bool:
        require_safe(name, self)
        size = len(payload) if isinstance(payload, bytes) else payload.stat().st_size
        question: dict[str, Any] = {"name": name, "size": size, "if_absent": if_absent, "replaces": replaces}
        question["mode"] = PRIVATE_MODE if is_private else USUAL_MODE
        return bool(self._ask("write", payload=payload, **question)["written"])

    def _ask(self, do: str, sink: Sink | None = None, payload: bytes | Path = b"", **question: Any) -> dict[str, Any]:
        answer = self._answer({"do": do, **question}, sink, payload)
        if "unsafe" in answer:
            raise BundleError(
                f"{answer['unsafe']} in {self}", hint="give it another name, or replace the link by the file itself"
            )
        return answer


class Folder(FileStore):
    """A `Store` whose objects are the files below a folder of this machine."""

    def __init__(self, root: Path) -> None:
        self._shown = root
        self._root = root.absolute()
        # Once a disk is unmounted, its mount point is an empty folder with another inode.
        self._inode = self._root.stat().st_ino

    def __str__(self) -> str:
        return f"folder '{self._shown}'"

    def locate(self, name: str) -> str:
        return str(self._shown / name)

    def removal(self, name: str) -> str:
        return f"rm {'-r ' if name.endswith('/') else ''}{shlex.quote(self.locate(name))}"

    def with_patience(self, _: Patience) -> "Folder":
        """Return this store: a folder has no time limits to set, the operating system has its own."""
        return self

    def read(self, name: str, *, most_bytes: int = MAX_RECORD_BYTES) -> bytes | None:
        for _ in range(ATTEMPTS - 1):
            try:
                return super().read(name, most_bytes=most_bytes)
            except UnreachableError as error:
                # ESTALE: the server of a network file system has dropped the opened file, because it was replaced.
                if not _is_stale(error):
                    raise
        return super().read(name, most_bytes=most_bytes)

    def download(self, listed: StoredObject, sink: Sink) -> None:
        """Write the bytes of an object to `sink`. Errors of the sink are not converted."""
        try:
            super().download(listed, sink)
        except UnreachableError as error:
            if _is_stale(error):
                raise changed(listed) from error
            raise

    def _answer(self, question: Mapping[str, Any], sink: Sink | None, payload: bytes | Path) -> dict[str, Any]:
        self._require_root()
        name = str(question.get("name", question.get("prefix")))
        errors = self._write_errors if question["do"] == "write" else self._read_errors
        with errors(name), io.BytesIO(payload) if isinstance(payload, bytes) else payload.open("rb") as source:
            request = {**question, "root": str(self._root), "again": False}
            answer, blocks = ssh_remote.main(request, source, replace_file)
        following = iter(blocks)
        while block := self._next(following, name):
            assert sink is not None
            sink.write(block)
        # What is missing may be on the disk that is gone.
        self._require_root()
        return answer

    def _next(self, blocks: Iterator[bytes], name: str) -> bytes:
        with self._read_errors(name):
            return next(blocks, b"")

    def _require_root(self) -> None:
        """Raise `UnreachableError` if the store's folder is gone: then a missing object may still exist."""
        try:
            is_there = self._root.stat().st_ino == self._inode
        except OSError:
            is_there = False
        if not is_there:
            raise UnreachableError(f"{self} is gone", hint="check whether the disk is mounted, then run again")

    @contextmanager
    def _read_errors(self, name: str) -> Iterator[None]:
        try:
            yield
        except PermissionError as error:
            raise BundleError(
                f"no permission to read '{self.locate(name)}'",
                hint=f"ask the file's owner: ls -ld {shlex.quote(self.locate(name))}",
            ) from error
        except OSError as error:
            raise self._unreachable(error) from error

    @contextmanager
    def _write_errors(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in NO_ANSWER:
                raise self._unreachable(error) from error
            root = shlex.quote(str(self._shown))
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                hint = f"free some space there (df -h {root}; quota -s), then run again"
            elif error.errno in (errno.EACCES, errno.EROFS):
                hint = f"ask the folder's owner for permission to write there: ls -ld {root}"
            elif error.errno in NO_HARD_LINKS:
                hint = f"a store needs hard links, and the right to write: ls -ld {root}; or take another disk"
            else:
                hint = f"check the path: ls -ld {shlex.quote(self.locate(name))}"
            raise ToolError(f"{error.strerror} while writing '{self.locate(name)}'", hint=hint) from error

    def _unreachable(self, error: OSError) -> UnreachableError:
        return UnreachableError(
            f"{self} cannot be read or written: {error.strerror or error}",
            hint=f"check whether the disk or server is available: ls {shlex.quote(str(self._shown))}; then run again",
        )


def _is_stale(error: UnreachableError) -> bool:
    return getattr(error.__cause__, "errno", 0) == errno.ESTALE


def connect(address: str, root: Path, *, limit_s: float) -> Folder:
    """Open an existing folder as a store. Raises `UnreachableError` if its file system takes over `limit_s` seconds.

    Raises `UsageError` if `root` is no folder, `ToolError` without the permission to read the folder.
    """

    def ask() -> Folder:
        with os.scandir(root) as entries:
            next(entries, None)
        return Folder(root)

    try:
        return within(limit_s, ask)
    except FileNotFoundError as error:
        raise UsageError(f"folder '{address}' does not exist", hint="correct the name, or mount the disk") from error
    except NotADirectoryError as error:
        raise UsageError(f"'{address}' is not a folder", hint="name the folder that contains runs/") from error
    except PermissionError as error:
        raise ToolError(
            f"no permission to read folder '{address}'", hint=f"ask the folder's owner: ls -ld {shlex.quote(str(root))}"
        ) from error
    except TimeoutError as error:
        raise UnreachableError(
            f"folder '{address}' does not answer within {limit_s:g} s",
            hint="the network file system hangs: check whether the server is available, then run again",
        ) from error
    except OSError as error:
        raise UnreachableError(
            f"folder '{address}' cannot be read: {error.strerror or error}",
            hint="check whether the disk or server is available, then run again",
        ) from error

"""A store in a folder of this machine, or of a file system that machines share (NFS, Lustre, a mounted disk).

An object is written to a temporary file in its folder, flushed to the disk, and then given its name: by a hard link,
which fails if the name exists, or by moving the file over the object that it replaces. A reader therefore sees an
object whole or not at all, and exactly one of several writers succeeds. Listings omit temporary files; those of killed
writers are removed after a day. Symbolic links below the folder are never followed.
"""

import errno
import os
import secrets
import shlex
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from workload.contract.errors import BundleError, ToolError, UsageError
from workload.contract.files import BLOCK_BYTES, crc32c_of, crc32c_text
from workload.contract.files import crc32c as extend_crc32c
from workload.contract.operating_system import replace_file
from workload.storage.names import require_safe, why_unsafe
from workload.storage.ssh_remote import NEW_FLAGS, OPEN_FLAGS, TEMPORARY, entries, walk
from workload.storage.ssh_remote import version as file_version
from workload.storage.store import (
    MAX_RECORD_BYTES,
    PRIVATE_MODE,
    USUAL_MODE,
    BoundedSink,
    ObjectExistsError,
    Patience,
    Sink,
    StoredObject,
    UnreachableError,
    changed,
    not_sealed,
    too_long,
    within,
)

# No upload of one file takes this long, and the clocks of machines that share a folder differ by less.
ABANDONED_S = 24 * 3600.0
# Attempts to read one file, if a network file system reports that the opened file was replaced.
ATTEMPTS = 3
# Errors of file systems without hard links (FAT, some network and FUSE mounts).
NO_HARD_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
# Errors of file systems that cannot flush a folder, which is no failure.
CANNOT_FLUSH = (errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EPERM, errno.EBADF)
# Errors of a disk or file server that fails: the only remedy is to try again.
NO_ANSWER = (errno.ESTALE, errno.EIO, errno.ENOTCONN, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.ENODEV, errno.ENXIO)


class Folder:
    """A `Store` whose objects are the files below a folder."""

    kind = "folder"

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

    def objects(self, prefix: str) -> Iterator[StoredObject]:
        top, _, start = prefix.rpartition("/")
        with self._read_errors(top):
            if top and why_unsafe(top):
                return
            if link := self._link_on_the_way(top):
                listed = [StoredObject(name=link, bytes=0, crc32c="", version="", problem="a symbolic link")]
            else:
                listed = list(self._walk(top, start))
            if not listed:
                self._require_root()
        yield from sorted(listed, key=lambda entry: entry.name.encode(errors="surrogateescape"))

    def folders(self, prefix: str) -> list[str]:
        top, _, start = prefix.rpartition("/")
        with self._read_errors(top):
            if (top and why_unsafe(top)) or self._link_on_the_way(top):
                return []
            inside = [entry.name for entry in entries(self._root / top) if entry.is_dir(follow_symlinks=False)]
            holding = (name for name in inside if name.startswith(start) and any(self._walk(_join(top, name))))
            names = sorted(name.removeprefix(start) for name in holding)
            if not names:
                self._require_root()
        return names

    def read(self, name: str, *, most_bytes: int = MAX_RECORD_BYTES) -> bytes | None:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                with self._read_errors(name), self._open(name) as source:
                    content = source.read(most_bytes + 1)
                break
            except FileNotFoundError:
                return None
            except UnreachableError as error:
                # ESTALE: the server of a network file system has dropped the opened file, because it was replaced.
                if attempt == ATTEMPTS or getattr(error.__cause__, "errno", 0) != errno.ESTALE:
                    raise
        if len(content) > most_bytes:
            raise too_long(f"'{name}' in {self}", most_bytes)
        return content

    def checksum(self, name: str) -> str | None:
        try:
            with self._read_errors(name), self._open(name) as source:
                return crc32c_of(source)
        except FileNotFoundError:
            return None

    def download(self, listed: StoredObject, sink: Sink) -> None:
        """Write the bytes of an object to `sink`. Errors of the sink are not converted."""
        bounded = BoundedSink(sink, listed.bytes, what=f"'{listed.name}'")
        try:
            with self._read_errors(listed.name):
                source = self._open(listed.name)
        except FileNotFoundError as error:
            raise changed(listed) from error
        with source:
            # The version is checked again at the end, for programs that overwrite a file in place, as `cp` does.
            self._require_version(listed, source)
            while block := self._next_block(listed.name, source):
                bounded.write(block)
            self._require_version(listed, source)

    def write(self, name: str, content: bytes, *, if_absent: bool = False, is_private: bool = False) -> bool:
        def fill(sink: BinaryIO) -> None:
            sink.write(content)

        return self._place(name, fill, replace=not if_absent, mode=PRIVATE_MODE if is_private else USUAL_MODE)

    def upload(
        self, name: str, path: Path, *, crc32c: str, replaces: str = "", metadata: Mapping[str, str] | None = None
    ) -> bool:
        """Store a file whose checksum is known; return False if the store has the same content already.

        The version `replaces` is compared before the replacement, not atomically with it: two writers that replace an
        object at the same moment may both succeed. Metadata is dropped, because a folder cannot hold it.
        """
        del metadata

        def fill(sink: BinaryIO) -> None:
            crc = 0
            with path.open("rb") as source:
                while block := source.read(BLOCK_BYTES):
                    crc = extend_crc32c(block, crc)
                    sink.write(block)
            if crc32c_text(crc) != crc32c:
                raise not_sealed(name)

        is_replaceable = bool(replaces) and self._current_version(name) == replaces
        if (is_replaceable or not replaces) and self._place(name, fill, replace=is_replaceable):
            return True
        if self.checksum(name) != crc32c:
            raise ObjectExistsError(f"another '{name}' is in {self} already", hint=f"ls -l {self._quoted(name)}")
        return False

    # Reading.

    def _path(self, name: str) -> Path:
        """Path of an object's file. Raises `BundleError` for an unsafe name, or for one that leads over a link."""
        require_safe(name, self)
        if any(TEMPORARY.fullmatch(part) for part in name.split("/")):
            raise BundleError(
                f"'{name}' is not allowed as a name in {self}: the store itself uses it", hint="give it another name"
            )
        if link := self._link_on_the_way(name):
            raise BundleError(
                f"'{self.locate(link)}' is a symbolic link, which a store does not follow",
                hint="replace the link by the file or folder itself",
            )
        return self._root / name

    def _link_on_the_way(self, name: str) -> str:
        """First part of the path `name`, below the root, that is a symbolic link; empty if none is."""
        way = ""
        for part in name.split("/") if name else ():
            way = _join(way, part)
            if (self._root / way).is_symlink():
                return way
        return ""

    def _open(self, name: str) -> BinaryIO:
        descriptor = os.open(self._path(name), OPEN_FLAGS)
        try:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                return os.fdopen(descriptor, "rb")
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        # Neither a folder nor a FIFO is an object.
        raise FileNotFoundError(errno.ENOENT, "not a regular file", name)

    def _next_block(self, name: str, source: BinaryIO) -> bytes:
        with self._read_errors(name):
            return source.read(BLOCK_BYTES)

    def _require_version(self, listed: StoredObject, source: BinaryIO) -> None:
        with self._read_errors(listed.name):
            version = file_version(os.fstat(source.fileno()))
        if version != listed.version:
            raise changed(listed)

    def _current_version(self, name: str) -> str:
        """Current version of an object; empty if it does not exist."""
        try:
            with self._read_errors(name):
                return file_version(self._path(name).lstat())
        except FileNotFoundError:
            return ""

    def _walk(self, top: str, start: str = "") -> Iterator[StoredObject]:
        """All objects below the folder `top` whose path inside it begins with `start`, without temporary files."""
        for name, size, version, problem in walk(self._root / top, f"{top}/" if top else "", start):
            yield StoredObject(name=name, bytes=size, crc32c="", version=version, problem=problem)

    @contextmanager
    def _read_errors(self, name: str) -> Iterator[None]:
        """Convert errors of the operating system to ours, except `FileNotFoundError`."""
        try:
            yield
        except FileNotFoundError:
            self._require_root()
            raise
        except NotADirectoryError as error:
            raise FileNotFoundError(*error.args) from error
        except PermissionError as error:
            raise BundleError(
                f"no permission to read '{self.locate(name)}'",
                hint=f"ask the file's owner: ls -ld {self._quoted(name)}",
            ) from error
        except OSError as error:
            if error.errno == errno.ELOOP:  # the link was created after the check
                raise BundleError(
                    f"'{self.locate(name)}' is a symbolic link", hint="replace the link by the file or folder itself"
                ) from error
            raise self._unreachable(error) from error

    def _require_root(self) -> None:
        """Raise `UnreachableError` if the store's folder is gone: then a missing object may still exist."""
        try:
            is_there = self._root.stat().st_ino == self._inode
        except OSError:
            is_there = False
        if not is_there:
            raise UnreachableError(f"{self} is gone", hint="check whether the disk is mounted, then run again")

    def _unreachable(self, error: OSError) -> UnreachableError:
        return UnreachableError(
            f"{self} cannot be read or written: {error.strerror or error}",
            hint=f"check whether the disk or server is available: ls {shlex.quote(str(self._shown))}; then run again",
        )

    def _quoted(self, name: str) -> str:
        return shlex.quote(self.locate(name))

    # Writing.

    def _place(self, name: str, fill: Callable[[BinaryIO], None], *, replace: bool, mode: int = USUAL_MODE) -> bool:
        """Write a temporary file and give it its name; False if the name exists and may not be replaced."""
        with self._write_errors(name):
            self._require_root()
            path = self._path(name)
            self._make_folders(path.parent)
            _remove_abandoned(path.parent)
            temporary = path.with_name(f".rooflaunch-{secrets.token_hex(8)}.tmp")
            try:
                with os.fdopen(os.open(temporary, NEW_FLAGS, mode), "wb") as sink:
                    fill(sink)
                    sink.flush()
                    os.fsync(sink.fileno())
                if replace:
                    replace_file(temporary, path)
                elif not _give_name(temporary, path):
                    return False
            finally:
                with suppress(OSError):
                    temporary.unlink(missing_ok=True)
            _flush_folder(path.parent)
        return True

    def _make_folders(self, folder: Path) -> None:
        """Create the folders between the root and an object, never the root itself: its disk may not be mounted."""
        missing = []
        while folder != self._root and not folder.is_dir():
            missing.append(folder)
            folder = folder.parent
        for new in reversed(missing):
            new.mkdir(exist_ok=True)
            _flush_folder(new.parent)

    @contextmanager
    def _write_errors(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in NO_ANSWER:
                raise self._unreachable(error) from error
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                hint = f"free some space there (df -h {shlex.quote(str(self._shown))}; quota -s), then run again"
            elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
                hint = f"ask the folder's owner for permission to write there: ls -ld {shlex.quote(str(self._shown))}"
            else:
                hint = f"check the path: ls -ld {self._quoted(name)}"
            raise ToolError(f"{error.strerror} while writing '{self.locate(name)}'", hint=hint) from error


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


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _give_name(temporary: Path, path: Path) -> bool:
    """Give the temporary file its name, atomically, also between machines; return whether the name was free."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        if path.is_dir():
            raise
        # A network file system repeats a request whose answer was lost: then the existing file is ours.
        return temporary.stat().st_nlink > 1
    except OSError as error:
        if error.errno in NO_HARD_LINKS:
            raise ToolError(
                f"the file system of '{path.parent}' has no hard links, which a store needs",
                hint="a folder on another disk, or a bucket",
            ) from error
        raise
    return True


def _remove_abandoned(folder: Path) -> None:
    """Remove temporary files of killed writers; ignore those that cannot be removed."""
    with suppress(OSError):
        for entry in entries(folder):
            if TEMPORARY.fullmatch(entry.name):
                age_s = time.time() - entry.stat(follow_symlinks=False).st_mtime
                if age_s > ABANDONED_S:
                    Path(entry.path).unlink(missing_ok=True)


def _flush_folder(folder: Path) -> None:
    """Flush a folder, so that a new name in it survives a crash of the machine, if the file system can."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except PermissionError:
        return  # the folder may be written but not read; or the system is Windows
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in CANNOT_FLUSH:
            raise
    finally:
        os.close(descriptor)

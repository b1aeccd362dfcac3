"""A store in a folder of this machine, or of a file system that machines share (NFS, Lustre, a mounted disk).

An object is written beside its place under a temporary name, flushed to the disk, and then given its name: by a hard
link, which fails where the name is taken, or by moving it over the one that it replaces. So a reader sees an object
whole or not at all, and of several writers one wins. Nobody lists temporary names; those of writers that were killed
are removed a day later. Symbolic links below the folder are never followed.
"""

import errno
import hashlib
import os
import re
import secrets
import shlex
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from workload.contract.checksum import BLOCK_BYTES, crc32c_of, crc32c_text
from workload.contract.checksum import crc32c as extend_crc32c
from workload.contract.errors import BundleError, ToolError, UsageError
from workload.storage.names import require_safe, why_unsafe
from workload.storage.store import (
    MAX_RECORD_BYTES,
    PRIVATE_MODE,
    USUAL_MODE,
    BoundedSink,
    ObjectChangedError,
    ObjectExistsError,
    Patience,
    Sink,
    StoredObject,
    TooLongError,
    UnreachableError,
    not_sealed,
    within,
)

TEMPORARY = re.compile(r"\.rooflaunch-[0-9a-f]{16}\.(tmp|claim)")
# No upload of one file takes that long, and clocks of machines that share a folder differ by less.
ABANDONED_S = 24 * 3600.0
# Of one file, on a network file system whose server says that the opened file has been replaced meanwhile.
ATTEMPTS = 3
# What file systems without hard links answer (FAT, some network and FUSE mounts).
NO_HARD_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
# Looks for the end of another writer's claim, which lasts milliseconds; after them the writer must have been killed.
CLAIM_LOOKS, CLAIM_PAUSE_S = 40, 0.05
# Flushing a folder is refused by some file systems, and pointless where it may not even be opened.
CANNOT_FLUSH = (errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EPERM, errno.EBADF)
# Links are not followed, and opening a FIFO does not wait for its writer. Windows has none of these.
OPEN_FLAGS = os.O_RDONLY | sum(getattr(os, flag, 0) for flag in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))
NEW_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | sum(getattr(os, flag, 0) for flag in ("O_CLOEXEC", "O_BINARY"))
# The disk or the server behind it fails: asking again may help, which nothing else does.
NO_ANSWER = (errno.ESTALE, errno.EIO, errno.ENOTCONN, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.ENODEV, errno.ENXIO)


class Folder:
    """The objects below a folder: a `Store`."""

    kind = "folder"

    def __init__(self, root: Path) -> None:
        self._shown = root
        self._root = root.absolute()
        # Where a disk was mounted lies another folder once it is unmounted: empty, and not the store.
        self._inode = self._root.stat().st_ino

    def __str__(self) -> str:
        return f"folder '{self._shown}'"

    def locate(self, name: str) -> str:
        """The path of an object."""
        return str(self._shown / name)

    def removal(self, name: str) -> str:
        """The command that removes an object, or what lies below a name that ends in a slash."""
        return f"rm {'-r ' if name.endswith('/') else ''}{shlex.quote(self.locate(name))}"

    def with_patience(self, _: Patience) -> "Folder":
        """The same folder: the operating system has its own limits."""
        return self

    def objects(self, prefix: str) -> Iterator[StoredObject]:
        """Every file whose name starts with `prefix`, in the order of names; other things with their `problem`."""
        top, _, start = prefix.rpartition("/")
        with self._read_errors(top):
            if top and why_unsafe(top):
                return
            link = self._link_on_the_way(top)
            listed = [_problem(link, "a symbolic link")] if link else list(self._walk(top, start))
            if not listed:
                self._require_root()
        yield from sorted(listed, key=lambda entry: entry.name.encode(errors="surrogateescape"))

    def folders(self, prefix: str) -> list[str]:
        """The folders that hold an object, below `prefix` and without it, in order."""
        top, _, start = prefix.rpartition("/")
        with self._read_errors(top):
            if (top and why_unsafe(top)) or self._link_on_the_way(top):
                return []
            inside = [entry.name for entry in _entries(self._root / top) if entry.is_dir(follow_symlinks=False)]
            holding = (name for name in inside if name.startswith(start) and any(self._walk(_join(top, name))))
            names = sorted(name.removeprefix(start) for name in holding)
            if not names:
                self._require_root()
        return names

    def read(self, name: str, *, most_bytes: int = MAX_RECORD_BYTES) -> bytes | None:
        """What a small object holds; None where there is none, `TooLongError` where it has more than `most_bytes`."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                with self._read_errors(name), self._open(name) as source:
                    content = source.read(most_bytes + 1)
                break
            except FileNotFoundError:
                return None
            except UnreachableError as error:
                # The server of a network file system has let go of the file that was opened: it was replaced.
                if attempt == ATTEMPTS or getattr(error.__cause__, "errno", 0) != errno.ESTALE:
                    raise
        if len(content) > most_bytes:
            raise TooLongError(
                f"'{name}' in {self} has more than {most_bytes} bytes", hint="remove it, or write it again"
            )
        return content

    def checksum(self, name: str) -> str | None:
        """The checksum of an object as it is now; None where it is gone."""
        try:
            with self._read_errors(name), self._open(name) as source:
                return crc32c_of(source)
        except FileNotFoundError:
            return None

    def download(self, listed: StoredObject, sink: Sink, *, start: int = 0) -> None:
        """Write the bytes of an object from `start` on; `ObjectChangedError` where it was replaced since.

        Failures of the sink pass as they are.
        """
        bounded = BoundedSink(sink, listed.bytes - start, what=f"'{listed.name}'")
        try:
            with self._read_errors(listed.name):
                source = self._open(listed.name)
        except FileNotFoundError as error:
            raise self._changed(listed) from error
        with source:
            # Again at the end, for those who write into a file in its place, as `cp` does.
            self._require_version(listed, source)
            source.seek(start)
            while block := self._next_block(listed.name, source):
                bounded.write(block)
            self._require_version(listed, source)

    def write(self, name: str, content: bytes, *, if_absent: bool = False, is_private: bool = False) -> bool:
        """Write an object. With `if_absent`, write nothing and return False if it exists. `is_private`: mode 0600."""

        def fill(sink: BinaryIO) -> None:
            sink.write(content)

        return self._place(name, fill, replace=not if_absent, mode=PRIVATE_MODE if is_private else USUAL_MODE)

    def upload(
        self, name: str, path: Path, *, crc32c: str, replaces: str = "", metadata: Mapping[str, str] | None = None
    ) -> bool:
        """Store a file whose checksum is known; False where the same content is there already.

        `replaces` is compared before the file takes its place, not with it: of two who replace an object at the same
        moment both may do so. Metadata have no place in a folder, and are left out.
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
        """Where the object lies; `BundleError` for a name that may not be a file's, or is reached over a link."""
        require_safe(name, self)
        if any(TEMPORARY.fullmatch(part) for part in name.split("/")):
            raise BundleError(
                f"'{name}' is no name for an object in {self}: the store itself uses it", hint="give it another name"
            )
        if link := self._link_on_the_way(name):
            raise BundleError(
                f"'{self.locate(link)}' is a symbolic link, which a store does not follow",
                hint="put the file or folder itself there",
            )
        return self._root / name

    def _link_on_the_way(self, name: str) -> str:
        """The first part of `name`, from the root on, that is a symbolic link; empty where none is."""
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
        # A folder, where other objects lie, is no object; nor is a FIFO.
        raise FileNotFoundError(errno.ENOENT, "no regular file", name)

    def _next_block(self, name: str, source: BinaryIO) -> bytes:
        with self._read_errors(name):
            return source.read(BLOCK_BYTES)

    def _require_version(self, listed: StoredObject, source: BinaryIO) -> None:
        with self._read_errors(listed.name):
            version = _version(os.fstat(source.fileno()))
        if version != listed.version:
            raise self._changed(listed)

    def _current_version(self, name: str) -> str:
        """The version of an object as it is now; empty where there is none."""
        try:
            with self._read_errors(name):
                return _version(self._path(name).lstat())
        except FileNotFoundError:
            return ""

    def _changed(self, listed: StoredObject) -> ObjectChangedError:
        return ObjectChangedError(f"'{listed.name}' changed in the folder meanwhile", hint="fetch again")

    def _walk(self, top: str, start: str = "") -> Iterator[StoredObject]:
        """Every object below the folder `top` whose path there begins with `start`; no temporary names."""
        for entry in _entries(self._root / top):
            name = _join(top, entry.name)
            if not entry.name.startswith(start) or TEMPORARY.fullmatch(entry.name):
                continue
            try:
                if entry.is_symlink():
                    yield _problem(name, "a symbolic link")
                elif entry.is_dir():
                    yield from self._walk(name)
                elif entry.is_file():
                    facts = entry.stat(follow_symlinks=False)
                    yield StoredObject(name=name, bytes=facts.st_size, crc32c="", version=_version(facts))
                else:
                    yield _problem(name, "no regular file")
            except FileNotFoundError:
                continue  # removed or replaced since its folder was read
            except PermissionError as error:
                yield _problem(name, f"no permission to read it: {error.strerror}")

    @contextmanager
    def _read_errors(self, name: str) -> Iterator[None]:
        """Turn what the system says into our errors, except that there is no such file (`FileNotFoundError`)."""
        try:
            yield
        except FileNotFoundError:
            self._require_root()
            raise
        except NotADirectoryError as error:
            raise FileNotFoundError(*error.args) from error
        except PermissionError as error:
            raise BundleError(
                f"no permission to read '{self.locate(name)}'", hint=f"ask its owner: ls -ld {self._quoted(name)}"
            ) from error
        except OSError as error:
            if error.errno == errno.ELOOP:  # a link that came after we looked for one
                raise BundleError(
                    f"'{self.locate(name)}' is a symbolic link", hint="put the file or folder itself there"
                ) from error
            raise self._unreachable(error) from error

    def _require_root(self) -> None:
        """Nothing there is an answer only while the store itself is there."""
        try:
            is_there = self._root.stat().st_ino == self._inode
        except OSError:
            is_there = False
        if not is_there:
            raise UnreachableError(f"{self} is gone", hint="see whether its disk is mounted, then run again")

    def _unreachable(self, error: OSError) -> UnreachableError:
        return UnreachableError(
            f"{self} cannot be read or written: {error.strerror or error}",
            hint=f"see whether its disk or server is there: ls {shlex.quote(str(self._shown))}; then run again",
        )

    def _quoted(self, name: str) -> str:
        return shlex.quote(self.locate(name))

    # Writing.

    def _place(self, name: str, fill: Callable[[BinaryIO], None], *, replace: bool, mode: int = USUAL_MODE) -> bool:
        """Write a temporary file and give it its name; False where that is taken and may not be replaced."""
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
                    temporary.replace(path)
                elif not _give_name(temporary, path):
                    return False
            finally:
                with suppress(OSError):
                    temporary.unlink(missing_ok=True)
            _flush_folder(path.parent)
        return True

    def _make_folders(self, folder: Path) -> None:
        """Make the folders between the root and an object; never the root: its disk may not be mounted."""
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
                hint = f"ask its owner for the right to write there: ls -ld {shlex.quote(str(self._shown))}"
            else:
                hint = f"see what is there: ls -ld {self._quoted(name)}"
            raise ToolError(f"{error.strerror} while writing '{self.locate(name)}'", hint=hint) from error


def connect(address: str, root: Path, *, limit_s: float) -> Folder:
    """The folder, which has to exist; `UnreachableError` where its file system does not answer within `limit_s`."""

    def ask() -> Folder:
        with os.scandir(root) as entries:
            next(entries, None)
        return Folder(root)

    try:
        return within(limit_s, ask)
    except FileNotFoundError as error:
        raise UsageError(
            f"folder '{address}' does not exist",
            hint="correct the name, or mount its disk",
        ) from error
    except NotADirectoryError as error:
        raise UsageError(f"'{address}' is no folder", hint="name the folder that holds runs/") from error
    except PermissionError as error:
        raise ToolError(
            f"no permission to read folder '{address}'", hint=f"ask its owner: ls -ld {shlex.quote(str(root))}"
        ) from error
    except TimeoutError as error:
        raise UnreachableError(
            f"folder '{address}' does not answer within {limit_s:g} s",
            hint="its network file system hangs: see whether its server is there, then run again",
        ) from error
    except OSError as error:
        raise UnreachableError(
            f"folder '{address}' cannot be read: {error.strerror or error}",
            hint="see whether its disk or server is there, then run again",
        ) from error


def _entries(folder: Path) -> list["os.DirEntry[str]"]:
    """What lies in a folder; nothing where there is none."""
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _problem(name: str, problem: str) -> StoredObject:
    return StoredObject(name=name, bytes=0, crc32c="", version="", problem=problem)


def _version(facts: os.stat_result) -> str:
    """Another file under the same name has another number; one that was written to has another time or size."""
    return f"{facts.st_ino:x}-{facts.st_mtime_ns:x}-{facts.st_size:x}"


def _give_name(temporary: Path, path: Path) -> bool:
    """Whether the name was free; decided by the file system, also between machines."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        if path.is_dir():
            raise
        # A network file system repeats a request whose answer was lost: then the file that is there is ours.
        return temporary.stat().st_nlink > 1
    except OSError as error:
        if error.errno not in NO_HARD_LINKS:
            raise
        return _claim_name(temporary, path)
    return True


def _claim_name(temporary: Path, path: Path) -> bool:
    """Do what `_give_name` does, without hard links: only the process that makes the claim's file gives the name."""
    token = hashlib.sha256(path.name.encode()).hexdigest()[:16]
    claim = path.with_name(f".rooflaunch-{token}.claim")
    for look in range(CLAIM_LOOKS):
        try:
            claim.open("xb").close()
            break
        except FileExistsError as error:
            if path.exists():
                return False
            if look == CLAIM_LOOKS - 1:
                raise ToolError(
                    f"'{path}' is being written by another process, or was by one that was killed",
                    hint=f"run again; if it stays so: rm {shlex.quote(str(claim))}",
                ) from error
            time.sleep(CLAIM_PAUSE_S)
    try:
        if path.exists():
            return False
        temporary.rename(path)
    finally:
        claim.unlink(missing_ok=True)
    return True


def _remove_abandoned(folder: Path) -> None:
    """Remove what writers that were killed have left; what cannot be removed stays."""
    with suppress(OSError):
        for entry in _entries(folder):
            if TEMPORARY.fullmatch(entry.name):
                age_s = time.time() - entry.stat(follow_symlinks=False).st_mtime
                if age_s > ABANDONED_S:
                    Path(entry.path).unlink(missing_ok=True)


def _flush_folder(folder: Path) -> None:
    """Make a new name outlive a crash of the machine, where the file system can."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except PermissionError:
        return  # a folder that one may write to, and not read; or Windows
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in CANNOT_FLUSH:
            raise
    finally:
        os.close(descriptor)

"""Files of a store in a folder: `folder.py` calls this file here, and `ssh.py` sends it to another machine's python3.

Python 3.8 or newer, standard library only. An object is written to a temporary file in its folder, flushed to the disk,
and then given its name: by a hard link, which fails if the name exists, or by moving the file over the object that it
replaces. A reader therefore sees an object whole or not at all, and exactly one of several writers succeeds. Listings
omit temporary files; those of killed writers are removed after a day. Symbolic links below the folder are not followed.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

TEMPORARY = re.compile(r"\.rooflaunch-[0-9a-f]{16}\.tmp")
BLOCK_BYTES = 1 << 18
# No upload of one file takes this long, and the clocks of machines that share a folder differ by less.
ABANDONED_S = 24 * 3600.0
# Errors of file systems that cannot flush a folder, which is no failure.
CANNOT_FLUSH = (errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EPERM, errno.EBADF)
# A link that was created after the check is not followed, and opening a FIFO does not wait for its writer. A system
# without a flag (Windows) omits it.
OPEN_FLAGS = os.O_RDONLY | sum(getattr(os, flag, 0) for flag in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))
NEW_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | sum(getattr(os, flag, 0) for flag in ("O_CLOEXEC", "O_BINARY"))


class UnsafeError(Exception):
    """A name that is invalid, or that leads out of the folder."""


def main(
    question: dict[str, Any], stdin: BinaryIO, move: Callable[[Path, Path], object] = os.replace
) -> tuple[dict[str, Any], Iterable[bytes]]:
    """Handle one request; return the answer, and the bytes that follow it. `move`: moves a file over another."""
    root = Path(question["root"]).expanduser()
    try:
        if question["do"] == "list":
            return {"objects": list(listed(root, question["prefix"]))}, ()
        if question["do"] == "folders":
            return {"folders": folders(root, question["prefix"])}, ()
        path = path_of(root, question["name"])
        if question["do"] == "read":
            return read(path, question)
        return {"written": write(root, path, question, stdin, move)}, ()
    except UnsafeError as unsafe:
        return {"unsafe": str(unsafe)}, ()


def path_of(root: Path, name: str) -> Path:
    """Path of an object. The sender has checked its name fully; this check only keeps it inside the folder."""
    parts = name.split("/")
    if not all(parts) or {".", ".."} & set(parts) or "\0" in name or any(map(TEMPORARY.fullmatch, parts)):
        raise UnsafeError(f"{name!r} is not allowed as a name")
    path = root
    for part in parts:
        path /= part
        if path.is_symlink():
            raise UnsafeError(f"{str(path)!r} is a symbolic link")
    return path


def listed(root: Path, prefix: str) -> Iterator[tuple[str, int, str, str]]:
    """All files whose names start with `prefix`, as (name, bytes, version, problem)."""
    top, _, start = prefix.rpartition("/")
    try:
        folder = path_of(root, top) if top else root
    except UnsafeError:
        if (root / top).is_symlink():
            yield top, 0, "", "a symbolic link"
        return
    yield from walk(folder, f"{top}/" if top else "", start)


def folders(root: Path, prefix: str) -> list[str]:
    """Names of the folders below `prefix` that hold an object, sorted."""
    top, _, start = prefix.rpartition("/")
    try:
        folder = path_of(root, top) if top else root
    except UnsafeError:
        return []
    inside = [entry.name for entry in entries(folder) if entry.is_dir(follow_symlinks=False)]
    return sorted(name[len(start) :] for name in inside if name.startswith(start) and any(walk(folder / name, "")))


def walk(folder: Path, before: str, start: str = "") -> Iterator[tuple[str, int, str, str]]:
    """Files below `folder` whose path in it begins with `start`, as rows of `listed`; `before`: prefix of the names."""
    for entry in entries(folder):
        name = before + entry.name
        if not entry.name.startswith(start) or TEMPORARY.fullmatch(entry.name):
            continue
        try:
            facts = entry.stat(follow_symlinks=False)
            if stat.S_ISREG(facts.st_mode):
                yield name, facts.st_size, version(facts), ""
            elif stat.S_ISDIR(facts.st_mode):
                yield from walk(folder / entry.name, f"{name}/")
            else:
                yield name, 0, "", "a symbolic link" if entry.is_symlink() else "not a regular file"
        except FileNotFoundError:
            continue  # the file was removed after its folder was read
        except PermissionError as error:
            yield name, 0, "", f"no permission to read the file: {error.strerror}"


def entries(folder: Path) -> list[os.DirEntry[str]]:
    """Entries of a folder; empty if it does not exist."""
    try:
        with os.scandir(folder) as scan:
            return list(scan)
    except (FileNotFoundError, NotADirectoryError):
        return []


def version(facts: os.stat_result) -> str:
    """Version of a file: a replaced file has another inode, a modified one another time or size."""
    return f"{facts.st_ino:x}-{facts.st_mtime_ns:x}-{facts.st_size:x}"


def read(path: Path, question: dict[str, Any]) -> tuple[dict[str, Any], Iterable[bytes]]:
    """Read an object. If it is absent, changed or too long, return that state and no bytes."""
    try:
        number = os.open(path, OPEN_FLAGS)
    except (FileNotFoundError, NotADirectoryError):
        return {"state": "absent", "size": 0}, ()
    facts, most, state = os.fstat(number), question["most_bytes"], "read"
    if not stat.S_ISREG(facts.st_mode):  # neither a folder nor a FIFO is an object
        state = "absent"
    elif question["version"] and question["version"] != version(facts):
        state = "changed"
    elif most is not None and facts.st_size > most:
        state = "too long"
    if state != "read":
        os.close(number)
        return {"state": state, "size": facts.st_size}, ()
    return {"state": state, "size": facts.st_size, "bytes": facts.st_size}, unchanged(os.fdopen(number, "rb"), facts)


def unchanged(source: BinaryIO, facts: os.stat_result) -> Iterator[bytes]:
    """Yield a file's content; `OSError`, before its last block, if a program has overwritten the file in place."""
    with source:
        remaining = facts.st_size
        for block in exactly(source, facts.st_size):
            remaining -= len(block)
            if not remaining and version(os.fstat(source.fileno())) != version(facts):
                break
            yield block
        else:
            if not remaining:
                return
        raise OSError(errno.ESTALE, "a file changed while it was read")


def exactly(source: BinaryIO, size: int) -> Iterator[bytes]:
    """Yield `size` bytes in blocks; fewer if the stream ends early."""
    while size:
        block = source.read(min(size, BLOCK_BYTES))
        if not block:
            return
        size -= len(block)
        yield block


def write(
    root: Path, path: Path, question: dict[str, Any], stdin: BinaryIO, move: Callable[[Path, Path], object]
) -> bool:
    """Write an object; return False if its name exists and may not be replaced."""
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    parents = [path.parent, *path.parent.parents]
    new = [] if path.parent.is_dir() else parents[1 : parents.index(root) + 1]
    path.parent.mkdir(parents=True, exist_ok=True)
    # Remove temporary files of killed writers; ignore those that cannot be removed.
    with suppress(OSError):
        for entry in entries(path.parent):
            if TEMPORARY.fullmatch(entry.name):
                age_s = time.time() - entry.stat(follow_symlinks=False).st_mtime
                if age_s > ABANDONED_S:
                    Path(entry.path).unlink()
    temporary = path.with_name(f".rooflaunch-{secrets.token_hex(8)}.tmp")
    try:
        with os.fdopen(os.open(temporary, NEW_FLAGS, question["mode"]), "wb") as sink:
            sink.writelines(exactly(stdin, question["size"]))
            sink.flush()
            os.fsync(sink.fileno())
            if sink.tell() != question["size"]:
                raise OSError(errno.EPIPE, "the connection broke while a file came")
        replaces = question["replaces"]
        if not question["if_absent"] and (not replaces or (path.exists() and version(path.lstat()) == replaces)):
            move(temporary, path)
        elif replaces or not give_name(temporary, path):
            # A request repeated after a lost connection: the first one may have written the object.
            return bool(question["again"]) and is_same(temporary, path)
    finally:
        with suppress(OSError):
            temporary.unlink()
    for folder in (path.parent, *new):
        flush(folder)
    return True


def give_name(temporary: Path, path: Path) -> bool:
    """Give the temporary file its name, atomically, also between machines; return whether the name was free."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        if path.is_dir():
            raise
        # A network file system repeats a request whose answer was lost: then the existing file is ours.
        return temporary.stat().st_nlink > 1
    return True


def flush(folder: Path) -> None:
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


def is_same(path: Path, other: Path) -> bool:
    """Whether two files have the same content."""
    with path.open("rb") as file, other.open("rb") as other_file:
        while True:
            block = file.read(BLOCK_BYTES)
            if block != other_file.read(BLOCK_BYTES):
                return False
            if not block:
                return True

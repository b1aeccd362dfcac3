"""Remote half of a store over ssh: `workload/storage/ssh.py` sends this file, and the other machine's python3 runs it.

Python 3.8 or newer, standard library only. Files are written as in `workload/storage/folder.py`: under a temporary
name, flushed, and then given their name, so that nobody sees half an object. Symbolic links below the folder are not
followed. `folder.py` imports the functions that it shares with this file.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

TEMPORARY = re.compile(r"\.rooflaunch-[0-9a-f]{16}\.tmp")
BLOCK_BYTES = 1 << 18
# A link that was created after the check is not followed, and opening a FIFO does not wait for its writer. A system
# without a flag (Windows) omits it.
OPEN_FLAGS = os.O_RDONLY | sum(getattr(os, flag, 0) for flag in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))
NEW_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | sum(getattr(os, flag, 0) for flag in ("O_CLOEXEC", "O_BINARY"))


class UnsafeError(Exception):
    """A name that is invalid, or that leads out of the folder."""


def main(question: dict[str, Any], stdin: BinaryIO) -> tuple[dict[str, Any], Iterable[bytes]]:
    """Handle one request; return the answer, and the bytes that follow it."""
    root = Path(question["root"]).expanduser()
    try:
        if question["do"] == "list":
            return {"objects": list(listed(root, question["prefix"]))}, ()
        path = path_of(root, question["name"])
        if question["do"] == "read":
            return read(path, question)
        return {"written": write(root, path, question, stdin)}, ()
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
    facts = os.fstat(number)
    if not stat.S_ISREG(facts.st_mode):
        return {"state": "absent", "size": 0}, ()
    if question["version"] and question["version"] != version(facts):
        return {"state": "changed", "size": 0}, ()
    most = question["most_bytes"]
    if most is not None and facts.st_size > most:
        return {"state": "too long", "size": facts.st_size}, ()
    size = facts.st_size
    return {"state": "read", "size": size, "bytes": size}, exactly(os.fdopen(number, "rb"), size)


def exactly(source: BinaryIO, size: int) -> Iterator[bytes]:
    """Yield `size` bytes in blocks; fewer if the stream ends early, which the receiver detects."""
    while size:
        block = source.read(min(size, BLOCK_BYTES))
        if not block:
            return
        size -= len(block)
        yield block


def write(root: Path, path: Path, question: dict[str, Any], stdin: BinaryIO) -> bool:
    """Write an object; return False if its name exists and may not be replaced."""
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
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
            temporary.replace(path)
        elif replaces or not give_name(temporary, path):
            # A request repeated after a lost connection: the first one may have written the object.
            return bool(question["again"]) and is_same(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    number = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
    return True


def give_name(temporary: Path, path: Path) -> bool:
    """Give the temporary file its name, atomically; return whether the name was free."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    return True


def is_same(path: Path, other: Path) -> bool:
    """Whether two files have the same content."""
    with path.open("rb") as file, other.open("rb") as other_file:
        while True:
            block = file.read(BLOCK_BYTES)
            if block != other_file.read(BLOCK_BYTES):
                return False
            if not block:
                return True

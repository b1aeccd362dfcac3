"""Lock that lets only one process at a time work on a sweep in a folder of results.

The lock is the kernel's (`flock`): it ends with its process, however the process ends, and also holds between machines
that share the folder. The file's content serves messages, and tells the next process that an earlier one was here.
"""

import fcntl
import json
import os
import re
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from workload.contract import bundle
from workload.contract.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Holder:
    """Process that works, or has worked, on a sweep; `started_at` is ISO 8601."""

    pid: int
    host: str
    started_at: str


def lock_path(output: Path, sweep: str) -> Path:
    """Path of a sweep's lock: a hidden file in the folder of results."""
    return output / f".sweep-{re.sub(r'[^A-Za-z0-9._-]+', '-', sweep)[:100]}.lock"


@contextmanager
def held(output: Path, sweep: str) -> Iterator[Holder | None]:
    """Hold the lock while the context lasts. Yields the earlier holder, which has ended; None if there was none.

    Raises `UsageError` if another process holds the lock now, or if its file cannot be opened.
    """
    bundle.make_output(output)
    path = lock_path(output, sweep)
    with _opened(path) as file:
        earlier = _holder(path)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            who = f"process {earlier.pid} on {earlier.host}, since {earlier.started_at}" if earlier else "a process"
            raise UsageError(
                f"another process works on sweep '{sweep}' in '{output}': {who}",
                hint="wait for it or end it, or -o ANOTHER_FOLDER",
            ) from error
        now = datetime.now(UTC).isoformat(timespec="seconds")
        file.truncate(0)
        json.dump(asdict(Holder(pid=os.getpid(), host=socket.gethostname(), started_at=now)), file)
        file.flush()
        yield earlier


def _opened(path: Path) -> TextIO:
    """Open the lock file for reading and writing. Raises `UsageError` if it is forbidden or no plain file."""
    try:
        # Not blocking: if the path is a pipe, opening it would wait for the other end.
        number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK, 0o666)
        is_file = stat.S_ISREG(os.fstat(number).st_mode)
        if not is_file:
            os.close(number)
    except OSError as error:
        reason = str(error.strerror)
    else:
        reason = "it is not a file"
        if is_file:
            return os.fdopen(number, "r+", encoding="utf-8")
    raise UsageError(f"the sweep's lock '{path}' cannot be opened: {reason}", hint="-o ANOTHER_FOLDER")


def _holder(path: Path) -> Holder | None:
    with suppress(OSError, ValueError, TypeError):
        return Holder(**json.loads(path.read_text(encoding="utf-8")))
    return None

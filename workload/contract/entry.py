"""Entry code shared by all four programs: output that cannot be written, closed streams, Ctrl-C. Standard library only.

A command's work continues if its output cannot be written. A pipe whose reader has ended (`launch local | head`) is no
error, and does not change the exit code. If the output is lost for another reason (a full disk), a command that did its
work exits with 4. Messages on stderr that cannot be written are dropped.
"""

import atexit
import errno
import io
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any, NoReturn, TextIO, cast

from workload.contract.errors import ExitCode, RooflaunchError, ToolError
from workload.contract.interrupt import ignore_signals, never_dropped

# Variables by which profilers and other tools load their own code into a process. They may write their data when the
# process exits normally.
TOOLS = ("CUDA_INJECTION64_PATH", "LD_PRELOAD")
# Errors of a pipe whose reader has ended. Windows reports EINVAL: https://github.com/python/cpython/issues/79935.
NO_READER = (errno.EPIPE, errno.EINVAL) if sys.platform == "win32" else (errno.EPIPE,)


class TolerantStream:
    """Text stream that drops output it cannot write and keeps the first error. All other calls go to `stream`."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.error: OSError | None = None

    def write(self, text: str) -> int:
        """Write `text`, or drop it if the stream fails."""
        with self._errors_dropped():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush the stream, or drop its content if it fails."""
        with self._errors_dropped():
            self._stream.flush()

    @contextmanager
    def _errors_dropped(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.error = self.error or error
            # Send the rest of the buffer to /dev/null, now and when Python flushes it at exit.
            with suppress(OSError), Path(os.devnull).open("wb") as nowhere:
                os.dup2(nowhere.fileno(), self._stream.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def enter(run: Callable[[], int]) -> int:
    """Run a command and return its exit code, or the exit code for lost output or for Ctrl-C."""
    code: int
    open_standard_streams()
    # In files and pipes, Windows uses an encoding that lacks many characters.
    for stream in (sys.stdout, sys.stderr) if sys.platform == "win32" else ():
        if isinstance(stream, io.TextIOWrapper) and not stream.isatty():
            stream.reconfigure(encoding="utf-8")
    out, err = TolerantStream(sys.stdout), TolerantStream(sys.stderr)
    with redirect_stdout(cast("TextIO", out)), redirect_stderr(cast("TextIO", err)):
        try:
            with never_dropped():
                code = run()
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            code = ExitCode.INTERRUPTED
        except OSError as error:
            explained = _explained(error)
            if explained is None:
                raise
            print(explained.report(), file=sys.stderr)
            code = int(explained.exit_code)
        except SystemExit as done:  # argparse raises SystemExit after --help
            code = done.code if isinstance(done.code, int) else ExitCode.DONE
        # Ctrl-C reaches a child twice, from the terminal and from its launcher. Python's own exit must not be
        # interrupted.
        ignore_signals()
        out.flush()
        if out.error is not None and out.error.errno not in NO_READER:
            lost = ToolError(
                f"standard output cannot be written: {out.error.strerror}",
                hint="the work itself is done; print its result again, to another file",
            )
            print(lost.report(), file=sys.stderr)
            code = code or int(lost.exit_code)
        err.flush()
    return code


def end_quickly(code: int) -> NoReturn:
    """End this process with `code`; its memory is freed by the system, not object by object.

    With torch and torchvision imported, Python's own exit takes a second of CPU time. This end too waits for other
    threads, and calls the functions of `atexit`. A process into which a tool has been loaded exits normally.
    """
    if any(os.environ.get(name) for name in TOOLS):
        sys.exit(code)
    threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001 - as multiprocessing ends its processes
    atexit._run_exitfuncs()  # noqa: SLF001 - the same
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _explained(error: OSError) -> RooflaunchError | None:
    """User error for a full disk; None for other errors of the operating system."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = f" while writing '{error.filename}'" if error.filename else " while a file was written"
        return ToolError(f"{error.strerror}{where}", hint="free some space (df -h; quota -s), then run again")
    return None


def open_standard_streams() -> None:
    """Connect a closed stdin, stdout or stderr to /dev/null.

    Otherwise the next opened file would get the closed stream's file descriptor, and with it the stream's output.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            # os.open takes the lowest free file descriptor, which is `number`.
            os.open(os.devnull, os.O_RDWR)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "r" if number == 0 else "w", encoding="utf-8", closefd=False))  # noqa: SIM115 - stays open

"""Runs a child process with a log and a time limit, and ends its whole process group; the child can watch its parent.

Standard library only.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import IO

from workload.contract.errors import ExitCode, InterruptedRunError
from workload.contract.operating_system import SIGKILL, is_alive, start_child

# When interrupted, ncu writes a report of the kernels so far; for a thousand kernels that takes seconds.
GRACE_S = 30.0
TICK_S = 0.5
READER_LIMIT_S = 5.0
OWNER_CHECK_S = 1.0
# The original function: `os._exit` itself is wrapped while a script is measured.
LEAVE = os._exit

OnLine = Callable[[str], None]
OnTick = Callable[[], None]


@dataclass(frozen=True, kw_only=True)
class End:
    """End of a child process; `output`: text that the child printed. `returncode` is negative for a signal."""

    returncode: int
    output: str
    elapsed_s: float
    timed_out: bool = False
    interrupted: bool = False

    @property
    def ok(self) -> bool:
        """Whether the child ended by itself with exit code 0."""
        return self.returncode == 0 and not self.timed_out and not self.interrupted


def run(
    command: Sequence[str],
    *,
    log: Path,
    limit_s: float,
    grace_s: float | None = None,
    environment: Mapping[str, str] | None = None,
    on_line: OnLine = lambda _: None,
    on_tick: OnTick = lambda: None,
    monotonic: Callable[[], float] = time.monotonic,
) -> End:
    """Run `command` in its own process group until it ends, reaches its time limit or the user interrupts.

    The caller must be within `interrupt.stoppable`, whose error ends the child: the group gets SIGINT, as from a
    terminal, and after `grace_s` (30 s) SIGKILL. Raises `OSError` if the command cannot be started.
    """
    began_s = monotonic()
    timed_out = interrupted = False
    lines: list[str] = []
    with log.open("a", encoding="utf-8") as kept, _start(command, environment) as child:
        reader = Thread(target=_read, args=(child.stdout, kept, lines, on_line), daemon=True)
        reader.start()
        try:
            timed_out = not _wait(child, began_s + limit_s, on_tick, monotonic)
        except InterruptedRunError:
            interrupted = True
        finally:
            _end_group(child, (GRACE_S if grace_s is None else grace_s) if timed_out or interrupted else 0.0)
        reader.join(READER_LIMIT_S)
    return End(
        returncode=child.returncode,
        output="".join(lines),
        elapsed_s=monotonic() - began_s,
        timed_out=timed_out,
        interrupted=interrupted,
    )


def _start(command: Sequence[str], environment: Mapping[str, str] | None) -> "subprocess.Popen[str]":
    return start_child(
        command,
        apart=sys.platform == "win32",
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    )


def _read(source: IO[str], kept: IO[str], lines: list[str], on_line: OnLine) -> None:
    # A leftover process may keep this reader waiting until the log is closed; then a write raises ValueError.
    with suppress(ValueError):
        for line in source:
            kept.write(line)
            kept.flush()
            lines.append(line)
            on_line(line)


def _wait(child: "subprocess.Popen[str]", end_s: float, on_tick: OnTick, monotonic: Callable[[], float]) -> bool:
    """Wait for the child; return whether it ended by `end_s`, a time of the clock `monotonic`."""
    while monotonic() < end_s:
        with suppress(subprocess.TimeoutExpired):
            child.wait(TICK_S)
            return True
        on_tick()
    return child.poll() is not None


def _end_group(child: "subprocess.Popen[str]", grace_s: float) -> None:
    """Interrupt the process group, then kill it: a group outlives its leader if the profiled process hangs."""
    if grace_s:
        _signal(child, signal.SIGINT)
        with suppress(subprocess.TimeoutExpired, InterruptedRunError):
            child.wait(grace_s)
    _signal(child, SIGKILL)
    child.wait()


def _signal(child: "subprocess.Popen[str]", number: int) -> None:
    if sys.platform == "win32":
        child.send_signal(number)
        return
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, number)


def end_with(owner: int) -> None:
    """End this process, which uses a GPU, when the process `owner` is gone, even by SIGKILL."""

    def watch() -> None:
        while is_alive(owner):
            time.sleep(OWNER_CHECK_S)
        LEAVE(ExitCode.INTERRUPTED)

    Thread(target=watch, daemon=True).start()

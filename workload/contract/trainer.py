"""How a launcher starts our trainer: the context of a run, and forks of a start server. Standard library only.

The start server (`workload/run/start_server.py`) is a process that has imported torch and forks runs of our trainer. A
fork starts in a fraction of the time of a fresh process, because it imports nothing. Forks of one server share its
memory layout and hash seed, so a server lasts for one block of runs. Linux only: elsewhere, and after a failure of the
server, the runs are fresh processes.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Self

from workload.contract.errors import UsageError
from workload.contract.operating_system import SIGKILL
from workload.contract.process import TOOLS

# Command of the trainer for which the server forks runs. With -P Python does not import from its working folder.
TRAINER = (sys.executable, "-P", "-m", "workload")
SERVER = "start-server"
# Time for a server to import torch and fork its first run. A cold disk takes 20 s.
START_LIMIT_S = 90.0
# Time for a server to fork a further run, or to report the end of one.
ANSWER_LIMIT_S = 15.0
STDERR = 2
# Largest answer of the server; answers have about 20 bytes.
ANSWER_BYTES = 4096
FRESH_NOTE = "further runs are fresh processes, which take seconds longer to start and are not pooled with forked runs"


class Start(StrEnum):
    """How the process of a run was made. `FORKED`: by a start server, with torch already imported."""

    FRESH = "fresh"
    FORKED = "forked"


# How this process was made; a start server sets it in its forks.
_this_start = Start.FRESH


def this_start() -> Start:
    """How this process was made."""
    return _this_start


def set_this_start(start: Start) -> None:
    """Record how this process was made."""
    global _this_start  # noqa: PLW0603 - a fact of the process
    _this_start = start


class ServerError(Exception):
    """Error of a start server that has ended, or that does not answer in time."""


class Forks:
    """Starts runs as forks of a start server, which begins with the first run and lasts until `end`.

    `tell` gets one line if a server fails, or if a tool forbids forks. After that every run is a fresh process.
    """

    def __init__(self, tell: Callable[[str], object]) -> None:
        self._tell = tell
        self._server: _Server | None = None
        # A tool such as a profiler wants to see a whole process.
        self._tool = next((name for name in TOOLS if os.environ.get(name)), None)
        self._is_usable = sys.platform == "linux" and hasattr(os, "pidfd_open")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """End the server; the next run begins a new one, whose memory layout differs."""
        if self._server:
            self._server.end()
            self._server = None

    def child(self, command: Sequence[str], *, reads_stderr: bool, apart: bool) -> "ForkedChild | None":
        """Start `command` as a fork, with pipes as `run_child` makes them; None if it must be a fresh process.

        `reads_stderr`: stderr is a pipe too; `apart`: the fork gets a process group of its own.
        """
        trainer, words = tuple(command[: len(TRAINER)]), list(command[len(TRAINER) :])
        if not self._is_usable or trainer != TRAINER or words[:1] != ["train"]:
            return None
        if self._tool:
            self._is_usable = False
            self._tell(
                f"{self._tool} is set, so runs are not forked: each start takes seconds longer; unset it if it is no"
                " profiler's"
            )
            return None
        # torch and its libraries read their variables when they are imported.
        if self._server and self._server.environment != dict(os.environ):
            self.end()
        try:
            self._server = self._server or _Server()
            return ForkedChild(self._server, words, reads_stderr=reads_stderr, apart=apart, fail=self._fail)
        except OSError as error:
            self._fail(str(error))
            return None

    def _fail(self, why: str) -> None:
        self._is_usable = False
        if self._server:
            self._server.kill()
        self.end()
        self._tell(f"the start server failed: {why}; {FRESH_NOTE}")


class _Server:
    """A start server. It ends when our end of its socket is closed, also because this process was killed."""

    def __init__(self) -> None:
        self.environment = dict(os.environ)
        self.limit_s = START_LIMIT_S
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # type: ignore[attr-defined,unused-ignore]
        try:
            self._process = subprocess.Popen(
                [*TRAINER, SERVER],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                # A fresh run prints what is wrong with an installation.
                stderr=subprocess.DEVNULL,
                # By default a child would also get variables that C libraries such as readline have set here.
                env=self.environment,
            )
        except OSError:
            self.socket.close()
            raise
        finally:
            theirs.close()

    def answer(self) -> tuple[dict[str, Any], list[int]]:
        """Next answer and its file descriptors. Raises `ServerError` if none comes in time."""
        if not _is_readable(self.socket.fileno(), self.limit_s):
            # Somebody may have stopped it.
            self._process.send_signal(signal.SIGCONT)  # type: ignore[attr-defined,unused-ignore]
            if not _is_readable(self.socket.fileno(), ANSWER_LIMIT_S):
                raise ServerError(f"it did not answer for {self.limit_s + ANSWER_LIMIT_S:g} s")
        self.limit_s = ANSWER_LIMIT_S
        with suppress(OSError):
            content, descriptors, _, _ = socket.recv_fds(self.socket, ANSWER_BYTES, 1)  # type: ignore[attr-defined,unused-ignore]
            if content:
                return json.loads(content), descriptors
        raise ServerError("it has ended")

    def begun(self) -> list[int]:
        """Wait until a run has begun; return its pidfd, in a list. Raises `ServerError`."""
        answer, descriptors = self.answer()
        if not descriptors:
            raise ServerError(answer["error"])
        return descriptors

    def kill(self) -> None:
        """Kill the server, and with it its run."""
        self._process.kill()

    def end(self) -> None:
        """End the server, which has no run."""
        self.socket.close()
        try:
            self._process.wait(ANSWER_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class ForkedChild:
    """A run that a start server forks, with those parts of `subprocess.Popen` that `run_child` uses.

    `stdout` yields lines as soon as the run has begun. `fail` is called with the reason if the server fails.
    """

    def __init__(
        self, server: _Server, words: Sequence[str], *, reads_stderr: bool, apart: bool, fail: Callable[[str], None]
    ) -> None:
        self._server, self._fail = server, fail
        # Signals that came before the run had begun.
        self._waiting = deque[int]()
        self._pidfd: int | None = None
        self._code: int | None = None
        request = json.dumps({"words": words, "folder": os.getcwd(), "apart": apart})  # noqa: PTH109 - text
        with ExitStack() as theirs:
            pipes = [os.pipe() for _ in range(3 if reads_stderr else 2)]
            (stdin, to_stdin), (from_stdout, stdout), *error = pipes
            self.stdin = os.fdopen(to_stdin, "wb", buffering=0)
            self._output = os.fdopen(from_stdout, errors="replace")
            self.stderr = os.fdopen(error[0][0], errors="replace") if error else None
            for descriptor in (stdin, stdout, *(pair[1] for pair in error)):
                theirs.callback(os.close, descriptor)
            descriptors = [stdin, stdout, error[0][1] if error else STDERR]
            socket.send_fds(server.socket, [request.encode()], descriptors)  # type: ignore[attr-defined,unused-ignore]
        self.stdout = self._lines()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self.stdin, self._output, self.stderr):
            if stream:
                stream.close()
        self.wait()

    def send_signal(self, number: int) -> None:
        """Send a signal to the run, at its beginning if it has not begun."""
        if self._pidfd is None and number == SIGKILL:
            self._server.kill()
        self._waiting.append(number)
        self._pass_on()

    def wait(self) -> int | None:
        """Wait for the end; return the exit code as `subprocess.Popen` does, or None if the run has never begun."""
        if self._pidfd is None or self._code is not None:
            return self._code
        _is_readable(self._pidfd)
        try:
            answer, _ = self._server.answer()
            self._code = int(answer["code"])
        except ServerError as error:
            # The kernel kills the run of a server that was killed.
            self._code = -SIGKILL
            self._fail(str(error))
        return self._code

    def _lines(self) -> Iterator[str]:
        try:
            descriptors = self._server.begun()
        except ServerError as error:
            self._fail(str(error))
            # A run that somebody has interrupted meanwhile must not start again.
            self._code = -self._waiting[0] if self._waiting else None
            return
        # Closed when nobody can send a signal any more: a signal to a process that has ended does nothing.
        weakref.finalize(self, os.close, descriptors[0])
        self._pidfd = descriptors[0]
        self._pass_on()
        yield from self._output

    def _pass_on(self) -> None:
        while self._pidfd is not None and self._waiting:
            with suppress(ProcessLookupError, IndexError):
                signal.pidfd_send_signal(self._pidfd, self._waiting.popleft())  # type: ignore[attr-defined,unused-ignore]


def _is_readable(descriptor: int, limit_s: float | None = None) -> bool:
    poll = select.poll()  # type: ignore[attr-defined,unused-ignore]
    poll.register(descriptor, select.POLLIN)  # type: ignore[attr-defined,unused-ignore]
    return bool(poll.poll(None if limit_s is None else limit_s * 1000))


# --- the context of a run, as one JSON argument


class KeptCeilings(StrEnum):
    """Stored ceilings, beside the bundles, that a run may use instead of measuring them.

    `hour`: ceilings of the last hour. `none`: no ceilings. `block`: ceilings of any age, so that a later run of a block
    uses the ceilings of the block's first run.
    """

    HOUR = "hour"
    NONE = "none"
    BLOCK = "block"


@dataclass(frozen=True, kw_only=True)
class Context:
    """Facts that a launcher knows and the trainer cannot; passed as one JSON argument and kept in the bundle.

    `outside`: facts by section of run.json's `environment`, collected outside the container, where they are visible.
    `profile_later`: the launcher profiles the bundle itself after the timing runs. `job` (name, task, block, position)
    and `run_key` are set for a run of a sweep. `settles`: let the device cool down before the warm-up, to `settle_to_c`
    degrees Celsius; None for the first run of a task, because its start temperature is the target of later runs.
    `cpu_shares`: number of equal shares into which the CPUs are divided, if more than the run has devices. A run of one
    device then has as many CPUs as each device in the task's runs of several devices. `script_commit`: commit of the
    folder that a script was copied from, with `-dirty` if the folder had changes. `keeps_losses`: record a script's
    first losses, to compare them with those of another run.
    """

    backend: str = "local"
    runtime: str = "process"
    runtime_reason: str | None = None
    place: str | None = None
    repeat: int = 1
    repeats: int = 1
    spec_origin: Mapping[str, str] = field(default_factory=dict)
    outside: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    profile_later: bool = False
    job: Mapping[str, Any] | None = None
    run_key: str = ""
    kept_ceilings: str = KeptCeilings.HOUR
    settles: bool = False
    settle_to_c: float | None = None
    cpu_shares: int = 1
    script_commit: str = ""
    keeps_losses: bool = False

    def place_on(self, device: str) -> str:
        """Name of the place of a run on this device: the launcher's, or `local-cpu`."""
        return self.place or f"local-{device}"

    def to_argument(self) -> str:
        """JSON, in one line, of the fields that differ from their defaults."""
        defaults = Context()
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return json.dumps({name: value for name, value in values.items() if value != getattr(defaults, name)})

    @classmethod
    def from_argument(cls, text: str) -> "Context":
        """Parse the output of `to_argument`. Raises `UsageError` for anything else."""
        try:
            return cls(**json.loads(text))
        except (TypeError, ValueError) as error:
            raise UsageError(f"--context is only for launchers; got '{text}'", hint="leave --context out") from error

"""Handles Ctrl-C, SIGTERM and a closed terminal: this process and its child save their work. Standard library only.

A signal raises `InterruptedRunError` wherever the main thread is. A library may catch the error, and Python itself
drops errors inside a `__del__` or a weakref callback. Therefore the signal is also remembered:
`raise_if_interrupted` raises the error again between two steps, and `never_dropped` soon repeats an error that Python
dropped.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Protocol

from workload.contract.errors import (
    ExitCode,
    InterruptedRunError,
    OutOfDeviceMemoryError,
    RooflaunchError,
    RunFailedError,
)
from workload.contract.operating_system import (
    CAUSES,
    LEAST_CRASH,
    PIPE_ENCODING,
    SIGKILL,
    SIGNALS,
    signal_main_thread,
    signals_blocked,
    start_child,
    unblock_signals,
    wait_until_stdin_closes,
)

RUN_HINT = "run again; the unfinished bundle keeps its steps"
# Environment variable of a child whose stdin is a pipe from its parent. The child ends when the pipe is closed.
LIFELINE = "ROOFLAUNCH_LIFELINE"
# Users may press Ctrl-C twice, and a closing window sends two signals. A third signal kills the child.
SIGNALS_UNTIL_KILLED = 3
# A trainer whose launcher is gone is killed after this time, even if its bundle is not sealed yet: somebody who
# kills the launcher needs the machine. On a busy machine the trainer then ends within 15 s.
ORPHAN_LIMIT_S = 11.0
# After this time the callback that dropped the interruption has returned.
AGAIN_S = 0.05


class _Watch:
    """State of one `stoppable` block: the first signal in the block, and the hint of the error.

    `dropped`: Python dropped the error; the next signal raises the error again. `deferrals`: number of
    `interruption_deferred` blocks around the running code; a signal raises the error only if this is 0.
    """

    def __init__(self, hint: str) -> None:
        self.process, self.hint = os.getpid(), hint
        self.signal: int | None = None
        self.dropped = False
        self.deferrals = 0

    def handle(self, number: int, _: object) -> None:
        # Ignore signals in data workers, which are forks of this process: the trainer ends its workers itself.
        if os.getpid() != self.process or (self.signal is not None and not self.dropped):
            return
        self.signal, self.dropped = self.signal or number, False
        if not self.deferrals:
            raise interruption(self.signal, self.hint)


_watch: _Watch | None = None
_parent_is_gone = False


def interruption(number: int, hint: str = RUN_HINT) -> InterruptedRunError:
    """Error for the signal `number`; its message names the cause of the signal."""
    is_orphan = number == signal.SIGTERM and _parent_is_gone
    cause = CAUSES.get(number) or f"interrupted by {signal.Signals(number).name}"  # torchrun handles SIGQUIT too
    cause = "interrupted: the process that started this run has ended" if is_orphan else cause
    return InterruptedRunError(cause, hint=hint)


@contextmanager
def stoppable(hint: str = RUN_HINT) -> Iterator[None]:
    """Raise `InterruptedRunError` on the first signal; later signals change nothing, so that the bundle gets sealed.

    `hint`: hint of the error. Signals that `run_child` blocked while this process started are delivered now.
    """
    global _watch  # noqa: PLW0603 - a signal handler is the process's too
    outer, _watch = _watch, _Watch(hint)
    try:
        with handled_by(_watch.handle), never_dropped():
            unblock_signals()
            yield
    finally:
        _watch = outer


def raise_if_interrupted() -> None:
    """Raise `InterruptedRunError` if a signal has come since `stoppable` began."""
    if _watch is not None and _watch.signal is not None and not _watch.deferrals:
        raise interruption(_watch.signal, _watch.hint)


def pending_interruption() -> InterruptedRunError | None:
    """Error for the signal since `stoppable` began, even if it was raised and caught; None without a signal."""
    return None if _watch is None or _watch.signal is None else interruption(_watch.signal, _watch.hint)


@contextmanager
def interruption_deferred() -> Iterator[None]:
    """Delay interruptions until the block ends, so that measurements get written completely."""
    if _watch is None:
        with handled_by(lambda *_: None):
            yield
        return
    watch = _watch
    watch.deferrals += 1
    try:
        yield
    finally:
        watch.deferrals -= 1


def ignore_signals() -> None:
    """Ignore signals until the process ends: a signal during Python's own exit would show a traceback."""
    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            # Not SIG_IGN: Python would report an error for a signal that arrived before and was not handled yet.
            signal.signal(number, lambda *_: None)


@contextmanager
def never_dropped() -> Iterator[None]:
    """Raise an interruption again if Python dropped it, in a `__del__` or a weakref callback."""
    before = sys.unraisablehook
    timers: list[threading.Timer] = []

    def interrupt_again() -> None:
        if _watch is not None:
            _watch.dropped = True
        signal_main_thread((_watch and _watch.signal) or signal.SIGINT)

    def hook(dropped: "sys.UnraisableHookArgs") -> None:
        if not isinstance(dropped.exc_value, InterruptedRunError | KeyboardInterrupt):
            before(dropped)
            return
        timers.append(threading.Timer(AGAIN_S, interrupt_again))
        timers[-1].daemon = True
        timers[-1].start()

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before
        for timer in timers:
            timer.cancel()


@dataclass(frozen=True, kw_only=True)
class ChildEnd:
    """End of a child process.

    `code`: exit status, or -N if signal N killed the child. `signal`: first signal that this process received, if any.
    `out_of_memory`: the kernel killed a process for lack of memory while the child ran.
    """

    code: int
    signal: int | None
    out_of_memory: bool

    def error(self) -> RooflaunchError | None:
        """Error of a child that was interrupted or killed.

        None for a trainer that ended by itself: it has reported its own errors.
        """
        if self.signal is not None and self.code != ExitCode.INTERRUPTED:
            return interruption(self.signal)
        if self.code == -SIGKILL and self.out_of_memory:
            return OutOfDeviceMemoryError(
                "the trainer was killed because memory ran out",
                hint="a smaller --batch-size, fewer --workers, or a machine with more memory",
            )
        if self.code >= LEAST_CRASH:
            return RunFailedError(
                f"the trainer crashed (Windows status {self.code:#010x}); its bundle keeps the steps so far",
                hint="try a smaller --batch-size; 0xc0000135 and 0xc000007b: install the Visual C++ Redistributable",
            )
        return killed_error(-self.code) if self.code < 0 else None


@dataclass(frozen=True, kw_only=True)
class Follower:
    """Receiver of a child's messages, in place of the terminal; it must also handle the signals.

    `on_message` is called with each line of stderr, in a thread. `on_started` is called with the child when it runs.
    `apart`: start the child in its own process group, which Ctrl-C in our terminal does not reach.
    """

    on_message: Callable[[str], None]
    on_started: Callable[["Child"], None]
    apart: bool = False


class Child(Protocol):
    """A process that `run_child` follows; `subprocess.Popen` is one. `wait` returns None if it has never begun."""

    @property
    def stdin(self) -> IO[Any] | None: ...

    @property
    def stdout(self) -> Iterable[str] | None: ...

    @property
    def stderr(self) -> Iterable[str] | None: ...

    def __enter__(self) -> object: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

    def send_signal(self, sig: int, /) -> None: ...

    def wait(self) -> int | None: ...


class Forking(Protocol):
    """Starts a command as a fork; None if it must be a fresh process. See `workload.contract.forks.Forks.child`."""

    def __call__(self, command: Sequence[str], *, reads_stderr: bool, apart: bool) -> Child | None: ...


def run_child(
    command: Sequence[str],
    *,
    on_line: Callable[[str], None],
    follower: Follower | None = None,
    folder: Path | None = None,
    variables: Mapping[str, str] | None = None,
    forking: Forking | None = None,
) -> ChildEnd:
    """Run `python -m workload …`, pass signals on to it, and wait for its end; `on_line` gets its stdout by line.

    `folder`: the child's working folder, by default that of this process; `variables`: environment variables to add.
    `forking`: starts the child as a fork if it can.

    The child starts with signals blocked, until it can save its work. It ends if this process ends, even by SIGKILL.
    """
    signals: list[int] = []
    kills_before = _out_of_memory_kills()
    child: Child | None = None
    reads_stderr, apart = follower is not None, bool(follower and follower.apart)

    def pass_on(number: int, _: object) -> None:
        signals.append(number)
        if child is None:
            return
        if number == signal.SIGTERM and _parent_is_gone and child.stdin is not None:
            # The child ends when its stdin closes, and can report why.
            child.stdin.close()
        else:
            # Repeated SIGTERM does not kill: programs may repeat SIGTERM, and can send SIGKILL themselves.
            impatient = len(signals) >= SIGNALS_UNTIL_KILLED and number != signal.SIGTERM
            child.send_signal(SIGKILL if impatient else number)

    def fork() -> Child | None:
        can_fork = forking is not None and folder is None and not variables
        return forking(command, reads_stderr=reads_stderr, apart=apart) if forking and can_fork else None

    def fresh() -> Child:
        return start_child(
            command,
            apart=apart,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if reads_stderr else None,
            text=True,
            encoding=PIPE_ENCODING,
            errors="replace",
            cwd=folder,
            env={**os.environ, **(variables or {}), LIFELINE: "stdin"},
        )

    code: int | None = None
    with nullcontext() if follower else handled_by(pass_on):
        for start in (fork, fresh):
            with signals_blocked():
                child = start()
            if child is None:
                continue
            with child, _messages_passed_on(child, follower):
                for line in child.stdout or ():
                    on_line(line.rstrip("\n"))
                code = child.wait()
            if code is not None:
                break
    assert code is not None
    out_of_memory = _out_of_memory_kills() > kills_before
    return ChildEnd(code=code, signal=signals[0] if signals else None, out_of_memory=out_of_memory)


@contextmanager
def _messages_passed_on(child: Child, follower: Follower | None) -> Iterator[None]:
    """Pass the child to its follower, and then every line of the child's stderr until stderr is closed."""
    if follower is None:
        yield
        return

    def pass_on() -> None:
        for line in child.stderr or ():
            follower.on_message(line.rstrip("\n"))

    reader = threading.Thread(target=pass_on)
    reader.start()
    follower.on_started(child)
    try:
        yield
    finally:
        reader.join()


def _out_of_memory_kills() -> int:
    """Number of processes that Linux has killed since boot because a container or the machine ran out of memory."""
    with suppress(OSError):
        for line in Path("/proc/vmstat").read_text(encoding="utf-8").splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def end_with_parent() -> None:
    """Interrupt this process when its parent ends; do nothing without the environment variable `LIFELINE`.

    The end of the parent closes this process's stdin. `ORPHAN_LIMIT_S` seconds after the interruption, this process and
    its descendants are killed.
    """
    if os.environ.pop(LIFELINE, None) is None:
        return

    def watch() -> None:
        global _parent_is_gone  # noqa: PLW0603 - see `_watch`
        wait_until_stdin_closes()
        _parent_is_gone = True
        signal_main_thread(signal.SIGTERM)
        time.sleep(ORPHAN_LIMIT_S)
        kill_descendants()
        os.kill(os.getpid(), SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def kill_descendants() -> None:
    """Kill the descendants of this process."""
    for process in _descendants(os.getpid()):
        with suppress(ProcessLookupError):
            os.kill(process, SIGKILL)


def _descendants(process: int) -> list[int]:
    """Process ids of a process's descendants; empty on a system without /proc."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[1]
            children.setdefault(int(parent), []).append(int(stat.parent.name))
    family = [process]
    for member in family:
        family += children.get(member, [])
    return family[1:]


def killed_error(number: int) -> RunFailedError:
    """Error for a trainer that a signal killed before it could seal its bundle."""
    name = signal.Signals(number).name
    cure = "if `dmesg` shows that memory ran out, try a smaller --batch-size" if number == SIGKILL else "run again"
    return RunFailedError(f"the trainer was killed by {name}; its bundle keeps the steps so far", hint=cure)


@contextmanager
def handled_by(handler: Callable[[int, Any], object]) -> Iterator[None]:
    """Call `handler(number, frame)` for signals during the block; SIGHUP stays ignored under `nohup`."""
    closed = SIGNALS[2]
    ignored = signal.getsignal(closed) is signal.SIG_IGN
    handled = [number for number in SIGNALS if not (ignored and number is closed)]
    before = [signal.signal(number, handler) for number in handled]
    try:
        yield
    finally:
        for number, previous in zip(handled, before, strict=True):
            signal.signal(number, previous)

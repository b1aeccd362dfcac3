"""Ctrl-C, SIGTERM and a closed terminal: the work ends in order, and so does that of a child. Standard library only.

A signal raises `InterruptedRunError` wherever the main thread is. Libraries may catch it there, and Python itself drops
what is raised inside a `__del__` or a weakref callback: so it is also remembered, `check()` raises it again between
two steps, and the second kind is raised again at once.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workload.contract.errors import (
    ExitCode,
    InterruptedRunError,
    OutOfDeviceMemoryError,
    RooflaunchError,
    RunFailedError,
)

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
CAUSES: Mapping[int, str] = {
    signal.SIGINT: "interrupted by Ctrl-C",
    signal.SIGTERM: "interrupted by SIGTERM",
    signal.SIGHUP: "interrupted: the terminal was closed",
}
RUN_HINT = "run again; a bundle that was open keeps its steps"
# Set for a child whose standard input is a pipe that only its parent holds open: it ends once the parent is gone.
LIFELINE = "ROOFLAUNCH_LIFELINE"
# Ctrl-C once more may be impatience, and a closing window sends two signals; a third one wants it to end now.
SIGNALS_UNTIL_KILLED = 3
# A trainer without a launcher is killed after so long, sealed or not. With what a busy machine adds it has ended 15 s
# after its launcher: whoever killed the launcher wants the machine.
ORPHAN_LIMIT_S = 11.0
# Long enough for the callback that dropped the interruption to have returned.
AGAIN_S = 0.05


class _Watch:
    """What one `stoppable` has heard. `hint`: what to do after the interruption."""

    def __init__(self, hint: str) -> None:
        self.process, self.hint = os.getpid(), hint
        self.signal: int | None = None
        self.dropped = False
        self.undisturbed = 0

    def hear(self, number: int, _: object) -> None:
        # A data worker is a copy of this process, and its end is the trainer's business.
        if os.getpid() != self.process or (self.signal is not None and not self.dropped):
            return
        self.signal, self.dropped = self.signal or number, False
        if not self.undisturbed:
            raise interruption(self.signal, self.hint)


_watch: _Watch | None = None
_parent_is_gone = False


def interruption(number: int, hint: str = RUN_HINT) -> InterruptedRunError:
    """The error that says what the user did."""
    gone = number == signal.SIGTERM and _parent_is_gone
    return InterruptedRunError(
        "interrupted: the process that started this run is gone" if gone else CAUSES[number],
        hint=hint,
    )


@contextmanager
def stoppable(hint: str = RUN_HINT) -> Iterator[None]:
    """Raise `InterruptedRunError` on the first signal; later ones change nothing, so that the bundle gets sealed.

    `hint` is that of the error. Signals that were held back while this process started, as `run_child` does, come now.
    """
    global _watch  # noqa: PLW0603 - a signal handler is the process's too
    outer, _watch = _watch, _Watch(hint)
    try:
        with handled_by(_watch.hear), never_dropped():
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            yield
    finally:
        _watch = outer


def check() -> None:
    """Raise the interruption that has come since `stoppable` began, if any."""
    if _watch is not None and _watch.signal is not None and not _watch.undisturbed:
        raise interruption(_watch.signal, _watch.hint)


def asked() -> InterruptedRunError | None:
    """The interruption that has come since `stoppable` began, whatever became of it."""
    return None if _watch is None or _watch.signal is None else interruption(_watch.signal, _watch.hint)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Raise nothing meanwhile: what has been measured gets written down whole."""
    if _watch is None:
        with handled_by(lambda *_: None):
            yield
        return
    watch = _watch
    watch.undisturbed += 1
    try:
        yield
    finally:
        watch.undisturbed -= 1


def ignore_signals() -> None:
    """From here on a signal changes nothing: the exit code is decided, and Python's own end would show a traceback."""
    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            # Not SIG_IGN: Python would complain of a signal that has come already.
            signal.signal(number, lambda *_: None)


@contextmanager
def never_dropped() -> Iterator[None]:
    """Interrupt again where Python has dropped the interruption: in a `__del__` or a weakref callback."""
    before = sys.unraisablehook
    timers: list[threading.Timer] = []

    def interrupt_again() -> None:
        if _watch is not None:
            _watch.dropped = True
        number = (_watch and _watch.signal) or signal.SIGINT
        signal.pthread_kill(threading.main_thread().ident or 0, number)

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
    """How a child ended: its exit status, -N when signal N killed it, and the first signal that we were sent.

    `out_of_memory`: the kernel killed a process for want of memory meanwhile.
    """

    code: int
    signal: int | None
    out_of_memory: bool

    def error(self) -> RooflaunchError | None:
        """What to say of it; None for a trainer that came to its own end, and has said what there was to say."""
        if self.signal is not None and self.code != ExitCode.INTERRUPTED:
            return interruption(self.signal)
        if self.code == -signal.SIGKILL and self.out_of_memory:
            return OutOfDeviceMemoryError(
                "the trainer was killed for want of memory",
                hint="a smaller --batch-size, fewer --workers, or a machine with more memory",
            )
        return killed_error(-self.code) if self.code < 0 else None


@dataclass(frozen=True, kw_only=True)
class Follower:
    """Who follows a child in place of the terminal: gets its messages by line, from a thread, and handles signals.

    `on_started` is given the child as soon as it runs. `apart`: in a process group of its own, which Ctrl-C in our
    terminal does not reach.
    """

    on_message: Callable[[str], None]
    on_started: Callable[["subprocess.Popen[str]"], None]
    apart: bool = False


def run_child(
    command: Sequence[str],
    *,
    on_line: Callable[[str], None],
    follower: Follower | None = None,
    folder: Path | None = None,
    variables: Mapping[str, str] | None = None,
) -> ChildEnd:
    """Run `python -m workload …`, pass signals on to it, and await its end; `on_line` gets its stdout by line.

    `folder`: its working folder, where that is not ours; `variables`: what it has beside ours, or in place of them.

    It starts with signals held back until it can end in order, and ends when this process is gone, also by SIGKILL.
    """
    signals: list[int] = []
    kills_before = _out_of_memory_kills()
    child: subprocess.Popen[str] | None = None

    def pass_on(number: int, _: object) -> None:
        signals.append(number)
        if child is None:
            return
        if number == signal.SIGTERM and _parent_is_gone and child.stdin is not None:
            # The child loses its lifeline too, and so says why it ended.
            child.stdin.close()
        else:
            # SIGTERM comes from programs, which may repeat it: they use SIGKILL themselves where they mean it.
            impatient = len(signals) >= SIGNALS_UNTIL_KILLED and number != signal.SIGTERM
            child.send_signal(signal.SIGKILL if impatient else number)

    with nullcontext() if follower else handled_by(pass_on):
        with _held_back():
            child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE if follower else None,
                text=True,
                errors="replace",
                cwd=folder,
                env={**os.environ, **(variables or {}), LIFELINE: "stdin"},
                process_group=0 if follower and follower.apart else None,
            )
        with child, _heard(child, follower):
            for line in child.stdout or ():
                on_line(line.rstrip("\n"))
            code = child.wait()
    out_of_memory = _out_of_memory_kills() > kills_before
    return ChildEnd(code=code, signal=signals[0] if signals else None, out_of_memory=out_of_memory)


@contextmanager
def _heard(child: "subprocess.Popen[str]", follower: Follower | None) -> Iterator[None]:
    """The child is given to its follower, which gets every message until there are no more."""
    if follower is None:
        yield
        return

    def hear() -> None:
        for line in child.stderr or ():
            follower.on_message(line.rstrip("\n"))

    reader = threading.Thread(target=hear)
    reader.start()
    follower.on_started(child)
    try:
        yield
    finally:
        reader.join()


def _out_of_memory_kills() -> int:
    """How many processes Linux has killed since its start, at the machine's limit or that of a control group."""
    with suppress(OSError):
        for line in Path("/proc/vmstat").read_text(encoding="utf-8").splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


@contextmanager
def _held_back() -> Iterator[None]:
    """Signals wait meanwhile; a child that is started now has them wait until its `stoppable`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_with_parent() -> None:
    """Interrupt this process once its parent is gone, if the parent holds our standard input for that.

    After `ORPHAN_LIMIT_S` it is killed with the processes that it has started, whatever it does.
    """
    if os.environ.pop(LIFELINE, None) is None:
        return

    def watch() -> None:
        global _parent_is_gone  # noqa: PLW0603 - see `_watch`
        with suppress(OSError):
            while os.read(0, 1):
                pass
        _parent_is_gone = True
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(ORPHAN_LIMIT_S)
        for process in (*_descendants(os.getpid()), os.getpid()):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def _descendants(process: int) -> list[int]:
    """The processes that a process has started, and those have; none where the system has no /proc."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[1]
            children.setdefault(int(parent), []).append(int(stat.parent.name))
    found = [process]
    for one in found:
        found += children.get(one, [])
    return found[1:]


def killed_error(number: int) -> RunFailedError:
    """What to say of a trainer that a signal ended before it could seal its bundle."""
    name = signal.Signals(number).name
    cure = "out of memory? `dmesg` tells; try a smaller --batch-size" if number == signal.SIGKILL else "run again"
    return RunFailedError(f"the trainer was killed by {name}; its bundle keeps the steps so far", hint=cure)


@contextmanager
def handled_by(handler: Callable[[int, Any], object]) -> Iterator[None]:
    """Call `handler(number, frame)` for the signals meanwhile; one that `nohup` has us ignore stays ignored."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    handled = [number for number in SIGNALS if not (ignored and number is signal.SIGHUP)]
    before = [signal.signal(number, handler) for number in handled]
    try:
        yield
    finally:
        for number, previous in zip(handled, before, strict=True):
            signal.signal(number, previous)

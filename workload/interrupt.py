"""Ctrl-C and SIGTERM: the work ends in order, and so does that of a child process. Standard library only."""

import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

from workload.errors import InterruptedRunError, RunFailedError

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stoppable() -> Iterator[None]:
    """Raise `InterruptedRunError` on the first signal; ignore a second one, so that the bundle gets sealed."""

    def stop(number: int, _: object) -> NoReturn:
        for each in SIGNALS:
            # Not SIG_IGN: Python would print a traceback for a second signal that has come already.
            signal.signal(each, lambda *_: None)
        raise InterruptedRunError(
            f"interrupted by {signal.Signals(number).name}",
            hint="run again; a bundle that was open keeps its steps",
        )

    with handled_by(stop):
        yield


@contextmanager
def undisturbed() -> Iterator[None]:
    """Ignore signals meanwhile: what has been measured gets written down whole."""
    with handled_by(lambda *_: None):
        yield


def run_child(command: Sequence[str], *, on_line: Callable[[str], None] | None = None) -> int:
    """Run a command with our standard streams, pass a signal on to it, and await its end; returns its exit status.

    With `on_line` its stdout is read line by line instead. A child killed by signal N returns -N.
    """
    stdout = subprocess.PIPE if on_line else None
    with subprocess.Popen(command, stdout=stdout, text=True) as child, handled_by(lambda *_: child.terminate()):
        for line in child.stdout or ():
            assert on_line is not None
            on_line(line.rstrip("\n"))
        return child.wait()


def killed_error(number: int) -> RunFailedError:
    """What to say of a trainer that a signal ended before it could seal its bundle."""
    name = signal.Signals(number).name
    cure = "out of memory? `dmesg` tells; try a smaller --batch-size" if number == signal.SIGKILL else "run again"
    return RunFailedError(f"the trainer was killed by {name}; its bundle keeps the steps so far", hint=cure)


@contextmanager
def handled_by(handler: Callable[[int, object], object]) -> Iterator[None]:
    """Call `handler(number, frame)` for Ctrl-C and SIGTERM meanwhile."""
    before = [signal.signal(each, handler) for each in SIGNALS]
    try:
        yield
    finally:
        for each, previous in zip(SIGNALS, before, strict=True):
            signal.signal(each, previous)

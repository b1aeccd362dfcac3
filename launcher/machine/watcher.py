"""Callbacks with the progress of a run, for programs such as the agent that show it elsewhere than on a terminal."""

import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from workload.contract.operating_system import SIGKILL
from workload.contract.process import SIGNALS_UNTIL_KILLED, Follower
from workload.contract.text import LINE_EVERY_S

# Number of a trainer's last output lines to keep, for an error message.
LAST_LINES = 40


class Trainer(Protocol):
    """A running trainer, in a container or as a process."""

    def send_signal(self, number: int, /) -> None:
        """Send a signal such as `signal.SIGTERM`; ignored if the trainer has already ended."""


class Trainers:
    """Passes signals on to the trainers that run, and to those that start later. Safe to share between threads.

    `signals`: the user's signals, in order.
    """

    def __init__(self) -> None:
        self.signals: list[int] = []
        # Reentrant, because a signal's handler may interrupt these methods and call `send`.
        self._lock = threading.RLock()
        self._running: list[Trainer] = []
        self._sent: list[int] = []

    def send(self, number: int) -> None:
        """Send a signal to every trainer."""
        with self._lock:
            self._sent.append(number)
            running = list(self._running)
        for trainer in running:
            trainer.send_signal(number)

    def pass_on(self, number: int, _: object) -> None:
        """Handle a signal from the user: pass it on, or kill the trainers after repeated signals."""
        self.signals.append(number)
        self.send(SIGKILL if len(self.signals) >= SIGNALS_UNTIL_KILLED else number)

    def started(self, trainer: Trainer) -> None:
        """Register a trainer that runs now."""
        with self._lock:
            self._running.append(trainer)
            sent = dict.fromkeys(self._sent)
        for number in sent:
            trainer.send_signal(number)

    def ended(self) -> None:
        """Forget the trainers, which have ended."""
        with self._lock:
            self._running.clear()

    @contextmanager
    def ended_after(self, left_s: float, until_killed_s: float) -> Iterator[threading.Event]:
        """End the trainers after `left_s` seconds by SIGTERM, and `until_killed_s` later by SIGKILL.

        Yields an event that is set when the time is up.
        """
        is_over, is_late = threading.Event(), threading.Event()

        def end_in_time() -> None:
            for wait_s, number in ((max(0.0, left_s), signal.SIGTERM), (until_killed_s, SIGKILL)):
                if is_over.wait(wait_s):
                    return
                is_late.set()
                self.send(number)

        threading.Thread(target=end_in_time, daemon=True).start()
        try:
            yield is_late
        finally:
            is_over.set()


@dataclass(frozen=True, kw_only=True)
class Watcher(Follower):
    """Callbacks that receive a run's messages, and the trainer as an object that can be sent signals.

    The caller that gives a watcher handles signals. `on_started` and `on_ended` are called for the timing run. A run in
    a container has its profile pass in a second container, for which both are called again. `on_bundle` is called as
    soon as the bundle's folder exists. For a run in a process, messages come from a thread of their own; all other
    calls come from the caller's thread.
    """

    on_started: Callable[[Trainer], None]
    on_ended: Callable[[], None]
    on_bundle: Callable[[Path], None] = lambda _: None

    def with_other(self, other: "Watcher") -> "Watcher":
        """Watcher that calls both, this one first; the other gets no messages."""

        def started(trainer: Trainer) -> None:
            self.on_started(trainer)
            other.on_started(trainer)

        def ended() -> None:
            self.on_ended()
            other.on_ended()

        return replace(self, on_started=started, on_ended=ended, on_bundle=other.on_bundle)


class Printed(deque[str]):
    """Last lines that a trainer has printed, for the error of a run without a record. Safe to share between threads."""

    def __init__(self) -> None:
        super().__init__(maxlen=LAST_LINES)

    def message(self, kind: str) -> str:
        """Text of the last line `error: …` or `hint: …`; empty if there is none."""
        return next((line.partition(": ")[2] for line in reversed(self) if line.startswith(f"{kind}: ")), "")

    @property
    def last(self) -> str:
        """Last line that is no message of our trainer; for a script, the last line of its own."""
        own = (line.strip() for line in reversed(self) if not line.startswith(("error: ", "hint: ")))
        return next(filter(None, own), "")


@contextmanager
def repeated_every(call: Callable[[float], None], *, every_s: float = LINE_EVERY_S) -> Iterator[None]:
    """Call `call` with the elapsed seconds at a fixed interval until the block ends."""
    is_over, began_s = threading.Event(), time.monotonic()

    def repeat() -> None:
        while not is_over.wait(every_s):
            call(time.monotonic() - began_s)

    threading.Thread(target=repeat, daemon=True).start()
    try:
        yield
    finally:
        is_over.set()

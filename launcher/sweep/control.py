"""The user's wish for a sweep, which all its threads read: continue, or end in one of three ways."""

import signal
import threading
import time
from collections.abc import Callable
from enum import IntEnum

from launcher.machine.watcher import Trainer
from workload.contract.operating_system import SIGKILL


class Wish(IntEnum):
    """Wish of the user; a stronger wish replaces a weaker one, never the reverse.

    `FINISH`: runs under way come to their end, and nothing new is started. `LEAVE`: rented machines go on by
    themselves, and a run on this machine is interrupted. `STOP`: rented machines are ended too.
    """

    GO = 0
    FINISH = 1
    LEAVE = 2
    STOP = 3


class Control:
    """Wish and time limit; every thread reads both before it starts a run. `until_s`: seconds from now to the limit."""

    def __init__(self, *, until_s: float | None = None, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._end_s = None if until_s is None else monotonic() + until_s
        self._wish = Wish.GO
        self._changed = threading.Condition()
        self._trainers: list[Trainer] = []

    @property
    def wish(self) -> Wish:
        return self._wish

    @property
    def out_of_time(self) -> bool:
        """Whether the sweep's time is over."""
        return self._end_s is not None and self._monotonic() >= self._end_s

    @property
    def why_not(self) -> str:
        """Reason why no new run may be started; empty if runs may be started."""
        if self._wish is not Wish.GO:
            return "the sweep was interrupted"
        return "the time of --max-time has passed" if self.out_of_time else ""

    @property
    def is_leaving(self) -> bool:
        """Whether the sweep no longer waits for its runs."""
        return self._wish >= Wish.LEAVE

    def ask(self, wish: Wish) -> None:
        """Set a wish and wake all waiting threads; `leave` and `stop` interrupt the run on this machine."""
        with self._changed:
            was_leaving = self.is_leaving
            self._wish = max(self._wish, wish)
            self._changed.notify_all()
            trainers = list(self._trainers) if self.is_leaving and not was_leaving else []
        for trainer in trainers:
            trainer.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """Kill the run on this machine at once (SIGKILL)."""
        with self._changed:
            trainers = list(self._trainers)
        for trainer in trainers:
            trainer.send_signal(SIGKILL)

    def wait(self, seconds: float) -> None:
        """Wait for this many seconds, or until the wish changes."""
        with self._changed:
            before = self._wish
            self._changed.wait_for(lambda: self._wish is not before, timeout=seconds)

    def started(self, trainer: Trainer) -> None:
        """Register a trainer on this machine; interrupt it at once if the user is leaving already."""
        with self._changed:
            self._trainers.append(trainer)
        if self.is_leaving:
            trainer.send_signal(signal.SIGINT)

    def ended(self) -> None:
        """Forget the trainer that has ended; only one runs at a time on this machine."""
        with self._changed:
            self._trainers.clear()

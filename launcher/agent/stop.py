"""Stops a run early in an orderly way, for whatever reason."""

import signal
import threading
from enum import StrEnum

from launcher.machine.watcher import Trainer
from workload.contract.operating_system import SIGKILL

PRESS_EVERY_S = 2.0
# Time for the trainer to finish its step and to seal its bundle. A spot VM ends 30 s after the notice of its end.
SEAL_S = 12.0


class Why(StrEnum):
    """Reason why a run is stopped early."""

    PREEMPTED = "preempted"
    TIMED_OUT = "timed out"
    ASKED = "asked"
    TAKEN_OVER = "taken over"


class Stop:
    """Sends SIGTERM to the trainer repeatedly, and finally SIGKILL.

    The trainer is process 1 of its container. Such a process ignores SIGTERM until it has installed a handler, so a
    single SIGTERM could be lost.
    """

    def __init__(self, *, press_every_s: float = PRESS_EVERY_S, seal_s: float = SEAL_S) -> None:
        self.why: Why | None = None
        self._press_every_s, self._presses = press_every_s, seal_s / press_every_s
        self._trainer: Trainer | None = None
        self._over, self._asked = threading.Event(), threading.Event()

    def ask(self, why: Why) -> None:
        """Stop the run. The first reason is kept, except that a preemption replaces `ASKED`."""
        if self.why is None:
            self.why = why
            self._asked.set()
            threading.Thread(target=self._press, daemon=True).start()
        elif self.why is Why.ASKED and why is Why.PREEMPTED:
            self.why = why

    def started(self, trainer: Trainer) -> None:
        """Register the running trainer, which a stop would end."""
        self._trainer = trainer

    def ended(self) -> None:
        """Forget the trainer, which has ended."""
        self._trainer = None

    def close(self) -> None:
        """End all waiting: nothing runs any more, and nothing will be started."""
        self._over.set()

    def is_over(self, wait_s: float) -> bool:
        """Wait at most `wait_s` seconds; return whether this object is closed."""
        return self._over.wait(wait_s)

    def is_asked(self, wait_s: float) -> bool:
        """Wait at most `wait_s` seconds; return whether a stop was requested."""
        return self._asked.wait(wait_s)

    def _press(self) -> None:
        presses = 0
        while True:
            if trainer := self._trainer:
                trainer.send_signal(signal.SIGTERM if presses < self._presses else SIGKILL)
            presses += 1
            if self.is_over(self._press_every_s):
                return

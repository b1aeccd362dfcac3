"""Ends a run in order before it ends by itself, whoever asks for it."""

import threading
from enum import StrEnum

from launcher.machine.watcher import Trainer

PRESS_EVERY_S = 2.0
# Of the 30 s that a spot VM has left: the trainer seals its bundle after the step that it is in.
SEAL_S = 12.0


class Why(StrEnum):
    """Why a run is ended before it ends by itself."""

    PREEMPTED = "preempted"
    TIMED_OUT = "timed out"
    ASKED = "asked"
    TAKEN_OVER = "taken over"


class Stop:
    """Sends the trainer SIGTERM again and again, at last SIGKILL.

    Again, because the trainer is process 1 of its container, which ignores signals until it handles them.
    """

    def __init__(self, *, press_every_s: float = PRESS_EVERY_S, seal_s: float = SEAL_S) -> None:
        self.why: Why | None = None
        self._press_every_s, self._presses = press_every_s, seal_s / press_every_s
        self._trainer: Trainer | None = None
        self._over, self._asked = threading.Event(), threading.Event()

    def ask(self, why: Why) -> None:
        """The first reason counts; but that somebody asked is explained by a preemption."""
        if self.why is None:
            self.why = why
            self._asked.set()
            threading.Thread(target=self._press, daemon=True).start()
        elif self.why is Why.ASKED and why is Why.PREEMPTED:
            self.why = why

    def started(self, trainer: Trainer) -> None:
        """A trainer runs, and is what a stop would end."""
        self._trainer = trainer

    def ended(self) -> None:
        """It has ended."""
        self._trainer = None

    def close(self) -> None:
        """Nothing is running any more, nor will be."""
        self._over.set()

    def is_over(self, wait_s: float) -> bool:
        """Whether it is closed within `wait_s`."""
        return self._over.wait(wait_s)

    def is_asked(self, wait_s: float) -> bool:
        """Whether a stop is asked for within `wait_s`."""
        return self._asked.wait(wait_s)

    def _press(self) -> None:
        presses = 0
        while True:
            if trainer := self._trainer:
                trainer.signal("SIGTERM" if presses < self._presses else "SIGKILL")
            presses += 1
            if self.is_over(self._press_every_s):
                return

"""What the user of a sweep wants from here on, for all its threads: go on, or end in one of three ways."""

import threading
import time
from collections.abc import Callable
from enum import IntEnum

from launcher.machine.watcher import Trainer


class Wish(IntEnum):
    """A later one is stronger and stays.

    `finish`: what runs now comes to its end, and nothing new is started. `leave`: rented machines go on by themselves,
    and what runs here is interrupted. `stop`: rented machines are ended too.
    """

    GO = 0
    FINISH = 1
    LEAVE = 2
    STOP = 3


class Control:
    """Asked by every thread before it starts something, and waited on. `until_s`: no new work after so long a time."""

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
        """Whether the time that the sweep may take is over."""
        return self._end_s is not None and self._monotonic() >= self._end_s

    @property
    def why_not(self) -> str:
        """Why nothing new is to be started; empty where it is."""
        if self._wish is not Wish.GO:
            return "the sweep was interrupted"
        return "the time of --max-time is over" if self.out_of_time else ""

    @property
    def is_leaving(self) -> bool:
        """Whether nobody waits for anything any more."""
        return self._wish >= Wish.LEAVE

    def ask(self, wish: Wish) -> None:
        """Have it known; who leaves interrupts what runs on this machine."""
        with self._changed:
            was_leaving = self.is_leaving
            self._wish = max(self._wish, wish)
            self._changed.notify_all()
            trainers = list(self._trainers) if self.is_leaving and not was_leaving else []
        for trainer in trainers:
            trainer.signal("SIGINT")

    def kill(self) -> None:
        """End what runs on this machine without a word."""
        with self._changed:
            trainers = list(self._trainers)
        for trainer in trainers:
            trainer.signal("SIGKILL")

    def wait(self, seconds: float) -> None:
        """Wait so long, or until a wish changes."""
        with self._changed:
            before = self._wish
            self._changed.wait_for(lambda: self._wish is not before, timeout=seconds)

    def started(self, trainer: Trainer) -> None:
        """A trainer runs on this machine; one that came too late is interrupted at once."""
        with self._changed:
            self._trainers.append(trainer)
        if self.is_leaving:
            trainer.signal("SIGINT")

    def ended(self) -> None:
        """It has come to its end: of the trainers here one runs at a time."""
        with self._changed:
            self._trainers.clear()

"""Connections that the steps of one command share, and the events that they report."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from launcher.protocol.backend import Machines
from workload.storage.store import Store


class EventKind(StrEnum):
    """Kind of an event: a phase, a newer line of progress, or a note."""

    PHASE = "phase"
    PROGRESS = "progress"
    NOTE = "note"


@dataclass(frozen=True, kw_only=True)
class Event:
    """An event to show. `at_s`: seconds since 1970 if the event has a time of its own."""

    kind: EventKind
    text: str
    at_s: float | None = None


OnEvent = Callable[[Event], None]


def _silent(_: Event) -> None:
    """Ignore the event."""


@dataclass(frozen=True, kw_only=True)
class Session:
    """Machines, store, how to wait, and the receiver of events. Safe to share between threads."""

    machines: Machines
    store: Store
    sleep: Callable[[float], None] = time.sleep
    on_event: OnEvent = _silent

    def now_s(self) -> float:
        """Seconds since 1970 by the clock of the machines' place; this computer's own may be hours off."""
        return self.machines.now_s()

    def note(self, text: str) -> None:
        """Report a note."""
        self.on_event(Event(kind=EventKind.NOTE, text=text))

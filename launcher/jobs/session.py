"""What the steps of one command share, and what they say on their way."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from launcher.backends.door import Machines
from workload.storage.store import Store


class EventKind(StrEnum):
    """What an event is: a step of the way, a newer line of progress, or something to know."""

    PHASE = "phase"
    PROGRESS = "progress"
    NOTE = "note"


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something to show; `at_s` in seconds since 1970 where the event has a time of its own."""

    kind: EventKind
    text: str
    at_s: float | None = None


OnEvent = Callable[[Event], None]


def _silent(_: Event) -> None:
    """Nobody listens."""


@dataclass(frozen=True, kw_only=True)
class Session:
    """Where the machines are, where records and bundles lie, how to wait, and whom to tell. Threads may share it."""

    machines: Machines
    store: Store
    sleep: Callable[[float], None] = time.sleep
    on_event: OnEvent = _silent

    def now_s(self) -> float:
        """Seconds since 1970 by the clock of the machines' place: this machine's may be hours off."""
        return self.machines.now_s()

    def note(self, text: str) -> None:
        """Tell something to know."""
        self.on_event(Event(kind=EventKind.NOTE, text=text))

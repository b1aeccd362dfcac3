"""State shown while a sweep runs: one state for each place, and messages. Safe to share between threads."""

import threading
from collections import deque
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, kw_only=True)
class PlaceState:
    """State of one place. `blocks_done`, `done`: blocks and runs with nothing left to run.

    `usd`, `left_s`: None if unknown. `now`: what runs there, or why nothing does. `images_per_s`: rate of the run that
    ended last.
    """

    name: str
    blocks_done: int = 0
    blocks: int = 0
    done: int = 0
    runs: int = 0
    now: str = ""
    images_per_s: float | None = None
    usd: float | None = None
    left_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Line:
    """Message about a place, or about all places if `place` is empty."""

    place: str
    text: str


class Board:
    """States by place, in order, and the messages that have not been shown yet."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._states: dict[str, PlaceState] = {}
        self._lines: deque[Line] = deque()

    def update(self, name: str, **changes: Any) -> None:
        """Change fields of a place's state."""
        with self._lock:
            self._states[name] = replace(self._states.get(name, PlaceState(name=name)), **changes)

    def say(self, place: str, text: str) -> None:
        """Add a message about a place."""
        with self._lock:
            self._lines.append(Line(place=place, text=text))

    @property
    def states(self) -> tuple[PlaceState, ...]:
        with self._lock:
            return tuple(self._states.values())

    def take_lines(self) -> list[Line]:
        """Remove and return the messages since the last call."""
        with self._lock:
            lines = list(self._lines)
            self._lines.clear()
            return lines

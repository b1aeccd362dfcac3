"""Progress of a sweep on stderr: a state for each place, and messages.

On a terminal, messages appear above a table that is redrawn. Elsewhere, messages are printed, and after 30 s
without a message a line for each place.
"""

import os
import shutil
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TextIO

from workload.contract.invocation import as_typed
from workload.contract.text import LINE_EVERY_S, duration, plain, printable

COLUMNS = ("place", "block", "done", "per s", "USD", "left", "now")
# The table is redrawn by moving the cursor up. More rows than this would not fit into a small terminal.
MOST_ROWS = 12


@dataclass(frozen=True, kw_only=True)
class PlaceState:
    """State of one place. `blocks_done`, `done`: blocks and runs with nothing left to run.

    `usd`, `left_s`: None if unknown. `now`: what runs at the place, or why nothing runs. `images_per_s`: rate of the
    run that ended last.
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


class Progress:
    """State of each place, in the order of first updates, and the messages that have not been shown yet."""

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


class LiveTable:
    """Draws a `Progress`. Call `clear` before printing anything else."""

    def __init__(self, progress: Progress, stream: TextIO, now: Callable[[], float]) -> None:
        self._progress, self._stream, self._now = progress, stream, now
        self._began_s = self._printed_s = now()
        # Jupyter gives the commands of a notebook a terminal in which the cursor cannot move up.
        self._is_terminal = stream.isatty() and "JPY_PARENT_PID" not in os.environ
        self._drawn = 0
        self._shown = ""

    def draw(self) -> None:
        """Print new messages and redraw the table; without a terminal, print progress if there are no messages."""
        lines = self._progress.take_lines()
        if not self._is_terminal:
            self._print_lines(lines)
            return
        table = rows_of(self._progress.states, shutil.get_terminal_size().columns - 1)
        text = "\n".join(table)
        if not lines and text == self._shown:
            return
        self.clear()
        self._stream.write("".join(f"{self._text(line)}\n" for line in lines) + (f"{text}\n" if table else ""))
        self._stream.flush()
        self._drawn, self._shown = len(table), text

    def _print_lines(self, lines: Sequence[Line]) -> None:
        """Print the lines; if there are none for a while, print the progress of each place."""
        if not lines and self._now() - self._printed_s >= LINE_EVERY_S:
            for state in self._progress.states:
                left = "" if state.left_s is None else f", about {duration(state.left_s)} left"
                text = f"{state.done}/{state.runs}  {state.now or 'begins'}{left}"
                lines = [*lines, Line(place=state.name, text=text)]
        for line in lines:
            print(self._text(line), file=self._stream, flush=True)
        self._printed_s = self._now() if lines else self._printed_s

    def clear(self) -> None:
        """Erase the table."""
        if self._is_terminal and self._drawn:
            self._stream.write(f"\033[{self._drawn}A\033[J")
            self._stream.flush()
        self._drawn, self._shown = 0, ""

    def _text(self, line: Line) -> str:
        place = f"{line.place}: " if line.place else ""
        return printable(as_typed(f"{'+' + duration(self._now() - self._began_s):>10}  {place}{line.text}"))


def rows_of(states: Sequence[PlaceState], width: int) -> list[str]:
    """Table of the places as lines of at most `width` characters."""
    rows = [COLUMNS, *map(_row, states[:MOST_ROWS])]
    widths = [max(len(row[index]) for row in rows) for index in range(len(COLUMNS))]
    lines = [
        "  ".join(f"{cell:<{wide}}" for cell, wide in zip(row, widths, strict=True)).rstrip()[:width] for row in rows
    ]
    return [*lines, *([f"and {len(states) - MOST_ROWS} places more"] if len(states) > MOST_ROWS else [])]


def _row(state: PlaceState) -> tuple[str, ...]:
    return (
        printable(state.name),
        f"{state.blocks_done}/{state.blocks}",
        f"{state.done}/{state.runs}",
        "" if state.images_per_s is None else plain(state.images_per_s, 4),
        "" if state.usd is None else f"{state.usd:.2f}",
        "" if state.left_s is None else duration(state.left_s),
        printable(state.now),
    )

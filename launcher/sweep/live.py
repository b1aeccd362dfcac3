"""Shows a sweep on stderr: on a terminal, messages above a table that is redrawn; elsewhere lines, one every 30 s."""

import shutil
from collections.abc import Callable, Sequence
from typing import TextIO

from launcher.sweep.progress import Board, Line, PlaceState
from workload.contract.invocation import as_typed
from workload.contract.text import LINE_EVERY_S, duration, plain, printable

COLUMNS = ("place", "block", "done", "per s", "USD", "left", "now")
# The table is redrawn by moving the cursor up. More rows than this would not fit into a small terminal.
MOST_ROWS = 12


class LiveTable:
    """Draws a board. Call `clear` before printing anything else."""

    def __init__(self, board: Board, stream: TextIO, now: Callable[[], float]) -> None:
        self._board, self._stream, self._now = board, stream, now
        self._began_s = self._told_s = now()
        self._is_terminal = stream.isatty()
        self._drawn = 0
        self._shown = ""

    def draw(self) -> None:
        """Print new messages and redraw the table; without a terminal, print progress if there are no messages."""
        lines = self._board.take_lines()
        if not self._is_terminal:
            self._tell(lines)
            return
        table = rows_of(self._board.states, shutil.get_terminal_size().columns - 1)
        text = "\n".join(table)
        if not lines and text == self._shown:
            return
        self.clear()
        self._stream.write("".join(f"{self._text(line)}\n" for line in lines) + (f"{text}\n" if table else ""))
        self._stream.flush()
        self._drawn, self._shown = len(table), text

    def _tell(self, lines: Sequence[Line]) -> None:
        """Print the lines; if there are none for a while, print the progress of each place."""
        if not lines and self._now() - self._told_s >= LINE_EVERY_S:
            lines = [Line(place=state.name, text=_progress(state)) for state in self._board.states]
        for line in lines:
            print(self._text(line), file=self._stream, flush=True)
        self._told_s = self._now() if lines else self._told_s

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


def _progress(state: PlaceState) -> str:
    left = "" if state.left_s is None else f", about {duration(state.left_s)} left"
    return f"{state.done}/{state.runs}  {state.now or 'begins'}{left}"


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

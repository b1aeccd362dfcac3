"""Progress of a launch on stderr: a line for each phase.

Between phases: a live line on a terminal, else a line every 30 s.
"""

import shutil
from collections.abc import Callable
from typing import TextIO

from launcher.jobs.session import Event, EventKind
from workload.contract.invocation import as_typed
from workload.contract.text import LINE_EVERY_S, duration, printable


class LaunchProgress:
    """Printer of events: call it with each event, and call `clear` before something else is printed."""

    def __init__(self, stream: TextIO, now: Callable[[], float]) -> None:
        self._stream, self._now = stream, now
        self._is_terminal = stream.isatty()
        self._began_s = self._told_s = now()

    def __call__(self, event: Event) -> None:
        """Show one event. Without a terminal progress is a line every 30 s."""
        match event.kind:
            case EventKind.PHASE:
                self._line(f"{self._after(event):>10}  {event.text.replace('_', ' ')}")
            case EventKind.NOTE:
                self._line(f"{self._after(event):>10}  {as_typed(event.text)}")
            case EventKind.PROGRESS if self._is_terminal:
                self._live(f"{self._after(event):>10}  {event.text}")
            case EventKind.PROGRESS if self._now() - self._told_s >= LINE_EVERY_S:
                self._line(f"{self._after(event):>10}  {event.text}")
            case EventKind.PROGRESS:
                pass

    def clear(self) -> None:
        """Erase the live line."""
        if self._is_terminal:
            self._stream.write("\r\033[K")
            self._stream.flush()

    def _after(self, event: Event) -> str:
        at_s = self._now() if event.at_s is None else event.at_s
        # The machine's clock may be a little behind ours.
        return "+" + duration(max(0.0, at_s - self._began_s))

    def _line(self, text: str) -> None:
        self.clear()
        print(printable(text), file=self._stream, flush=True)
        if not self._is_terminal:
            self._told_s = self._now()

    def _live(self, text: str) -> None:
        width = shutil.get_terminal_size().columns - 1
        self._stream.write(f"\r\033[K{text[:width]}")
        self._stream.flush()

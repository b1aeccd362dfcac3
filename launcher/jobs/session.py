"""Connections that the steps of one command share, and the events that they report and show.

Events are shown on stderr, a line for each phase. Between phases, a terminal shows one line that is updated in
place; elsewhere a line is printed every 30 s.
"""

import itertools
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TextIO

from launcher.protocol.backend import Condition, Machine, Machines
from workload.contract.invocation import as_typed
from workload.contract.text import LINE_EVERY_S, duration, printable
from workload.storage.store import Store

OUTPUT_EVERY_S = 5.0
# Largest number of parts of a machine's output that are read at once; a serial port keeps 1 MB.
MAX_PARTS = 64
# Polls without new output after which to ask whether the machine still exists.
QUIET_POLLS = 3


class EventKind(StrEnum):
    """Kind of an event: a phase, a newer line of progress, or a note."""

    PHASE = "phase"
    PROGRESS = "progress"
    NOTE = "note"


@dataclass(frozen=True, kw_only=True)
class Event:
    """An event to show. `at_s`: time of the event in seconds since 1970; None for the time of showing."""

    kind: EventKind
    text: str
    at_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Session:
    """Machines, store, how to wait, and the receiver of events. Safe to share between threads."""

    machines: Machines
    store: Store
    sleep: Callable[[float], None] = time.sleep
    on_event: Callable[[Event], None] = lambda _: None

    def now_s(self) -> float:
        """Seconds since 1970 by the clock of the machines' place; this computer's own may be hours off."""
        return self.machines.now_s()

    def note(self, text: str) -> None:
        """Send `text` to the receiver of events, as a note."""
        self.on_event(Event(kind=EventKind.NOTE, text=text))

    def printed(self, machine: Machine, *, follow: bool = False) -> Iterator[str]:
        """Output of a machine as it printed it, part by part; with `follow` until the machine is gone."""
        start = quiet_polls = 0
        for number in itertools.count(1):
            part = self.machines.output(machine, start)
            if part.text:
                yield part.text
            if not follow and (not part.text or part.next_start <= start or number == MAX_PARTS):
                return
            start, quiet_polls = max(start, part.next_start), 0 if part.text else quiet_polls + 1
            if follow:
                seen = self.machines.look({machine.name: (machine.zone,)}) if quiet_polls >= QUIET_POLLS else ()
                if any(each.condition is Condition.GONE for each in seen):
                    return
                self.sleep(OUTPUT_EVERY_S)


class LaunchProgress:
    """Printer of events: call it with each event, and call `clear` before something else is printed."""

    def __init__(self, stream: TextIO, now: Callable[[], float]) -> None:
        self._stream, self._now = stream, now
        self._is_terminal = stream.isatty()
        self._began_s = self._printed_s = now()

    def __call__(self, event: Event) -> None:
        """Show one event. Without a terminal, progress is printed only every 30 s."""
        match event.kind:
            case EventKind.PHASE:
                self._line(f"{self._after(event):>10}  {event.text.replace('_', ' ')}")
            case EventKind.NOTE:
                self._line(f"{self._after(event):>10}  {as_typed(event.text)}")
            case EventKind.PROGRESS if self._is_terminal:
                width = shutil.get_terminal_size().columns - 1
                self._stream.write("\r\033[K" + f"{self._after(event):>10}  {event.text}"[:width])
                self._stream.flush()
            case EventKind.PROGRESS if self._now() - self._printed_s >= LINE_EVERY_S:
                self._line(f"{self._after(event):>10}  {event.text}")
            case EventKind.PROGRESS:
                pass

    def clear(self) -> None:
        """Erase the line that is updated in place, if there is one."""
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
            self._printed_s = self._now()

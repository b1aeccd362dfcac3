"""State that the threads of a sweep share: the wish to stop, the money left, the progress shown, worker threads."""

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import partial
from queue import SimpleQueue
from typing import Any, ParamSpec, TextIO, TypeVar

from launcher.machine.watcher import Trainers
from launcher.protocol.backend import Plan
from workload.contract.errors import UsageError
from workload.contract.invocation import as_typed
from workload.contract.operating_system import SIGKILL
from workload.contract.text import LINE_EVERY_S, duration, plain, printable

COLUMNS = ("place", "block", "done", "per s", "USD", "left", "now")
# The table is redrawn by moving the cursor up. More rows than this would not fit into a small terminal.
MOST_ROWS = 12
P = ParamSpec("P")
T = TypeVar("T")


class Wish(IntEnum):
    """Wish of the user; a stronger wish replaces a weaker one, never the reverse.

    `FINISH`: runs under way come to their end, and nothing new is started. `LEAVE`: rented machines go on by
    themselves, and a run on this machine is interrupted. `STOP`: rented machines are ended too.
    """

    GO = 0
    FINISH = 1
    LEAVE = 2
    STOP = 3


class Control:
    """Wish and time limit; every thread reads both before it starts a run. `until_s`: seconds from now to the limit.

    `trainers`: trainers on this machine.
    """

    def __init__(self, *, until_s: float | None = None, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._end_s = None if until_s is None else monotonic() + until_s
        self._wish = Wish.GO
        self._changed = threading.Condition()
        self.trainers = Trainers()

    @property
    def wish(self) -> Wish:
        return self._wish

    @property
    def why_not(self) -> str:
        """Reason why no new run may be started; empty if runs may be started."""
        if self._wish is not Wish.GO:
            return "the sweep was interrupted"
        is_out_of_time = self._end_s is not None and self._monotonic() >= self._end_s
        return "the time of --max-time has passed" if is_out_of_time else ""

    @property
    def is_leaving(self) -> bool:
        """Whether the sweep ends without waiting for runs that are under way."""
        return self._wish >= Wish.LEAVE

    def ask(self, wish: Wish) -> None:
        """Set a wish and wake all waiting threads; `leave` and `stop` interrupt the run on this machine."""
        with self._changed:
            was_leaving = self.is_leaving
            self._wish = max(self._wish, wish)
            self._changed.notify_all()
        if self.is_leaving and not was_leaving:
            self.trainers.send(signal.SIGINT)

    def kill(self) -> None:
        """Kill the run on this machine at once (SIGKILL)."""
        self.trainers.send(SIGKILL)

    def wait(self, seconds: float) -> None:
        """Wait for this many seconds, or until the wish changes."""
        with self._changed:
            before = self._wish
            self._changed.wait_for(lambda: self._wish is not before, timeout=seconds)


# Money. The machines' time limits add up to no more than --max-cost. The clouds themselves enforce the time limits, so
# the cost stays below the limit even if this process dies.


def highest_usd(plan: Plan) -> float | None:
    """Highest cost of a plan's machine, in USD; None if no price is known."""
    own: float | None = getattr(plan, "highest_usd", None)
    if own is not None:
        return own
    request = plan.request
    prices = [request.price(zone) for zone in (*request.zones, "")]
    return max((price.usd(request.limit_s) for price in prices if price is not None), default=None)


class Budget:
    """Money that may still be spent; unlimited if `most_usd` is None. Safe to share between threads."""

    def __init__(self, most_usd: float | None) -> None:
        self._most_usd = most_usd
        self._lock = threading.Lock()
        self._reserved: dict[str, float] = {}
        self._expected: dict[str, int] = {}

    def expect(self, place: str, machines: int) -> None:
        """Set how many machines a place will still request."""
        with self._lock:
            self._expected[place] = machines

    @property
    def share_usd(self) -> float | None:
        """Highest cost of each machine still to be requested, in USD; None: unlimited."""
        if self._most_usd is None:
            return None
        with self._lock:
            return self._remaining_usd() / max(1, sum(self._expected.values()))

    def reserve(self, plan: Plan) -> None:
        """Reserve a machine's highest cost. Raises `UsageError` if this cost exceeds the remaining money.

        A machine without a known price, such as a host of the user's own, reserves nothing: a cloud with `--max-cost`
        refuses a plan without a price.
        """
        usd = highest_usd(plan) or 0.0
        with self._lock:
            # The tolerance of a millionth covers rounding errors of floating point.
            if self._most_usd is not None and usd > self._remaining_usd() + 1e-6:
                raise UsageError(
                    f"a machine may cost {usd:.2f} USD, which is more than is left of --max-cost "
                    f"{self._most_usd:g}: {self._remaining_usd():.2f} USD",
                    hint="a larger --max-cost, or a shorter max_run_time of the place",
                )
            self._reserved[plan.request.name] = usd

    def spent(self, name: str, usd: float | None) -> None:
        """Replace the reserved cost of a machine that has ended by its real cost, if known."""
        with self._lock:
            if usd is not None and name in self._reserved:
                self._reserved[name] = usd

    def _remaining_usd(self) -> float:
        return max(0.0, (self._most_usd or 0.0) - sum(self._reserved.values()))


# Progress. On a terminal, messages appear above a table that is redrawn. Elsewhere, messages are printed, and after
# 30 s without a message a line for each place.


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


class Progress:
    """State of each place, in the order of first updates, and the messages that have not been shown yet.

    A message is a pair: the name of its place, or "" for all places, and its text.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._states: dict[str, PlaceState] = {}
        self._lines: list[tuple[str, str]] = []

    def update(self, name: str, **changes: Any) -> None:
        """Change fields of a place's state."""
        with self._lock:
            self._states[name] = replace(self._states.get(name, PlaceState(name=name)), **changes)

    def say(self, place: str, text: str) -> None:
        """Add a message about a place."""
        with self._lock:
            self._lines.append((place, text))

    @property
    def states(self) -> tuple[PlaceState, ...]:
        with self._lock:
            return tuple(self._states.values())

    def take_lines(self) -> list[tuple[str, str]]:
        """Remove and return the messages since the last call."""
        with self._lock:
            lines, self._lines = self._lines, []
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
        """Print new messages, and draw the table again.

        Without a terminal there is no table: print the messages or, if there are none, the progress.
        """
        lines = self._progress.take_lines()
        if not self._is_terminal:
            self._print_lines(lines)
            return
        table = rows_of(self._progress.states, shutil.get_terminal_size().columns - 1)
        text = "\n".join(table)
        if not lines and text == self._shown:
            return
        self.clear()
        self._stream.write("".join(f"{self._text(*line)}\n" for line in lines) + (f"{text}\n" if table else ""))
        self._stream.flush()
        self._drawn, self._shown = len(table), text

    def _print_lines(self, lines: list[tuple[str, str]]) -> None:
        if not lines and self._now() - self._printed_s >= LINE_EVERY_S:
            for state in self._progress.states:
                left = "" if state.left_s is None else f", about {duration(state.left_s)} left"
                lines.append((state.name, f"{state.done}/{state.runs}  {state.now or 'begins'}{left}"))
        for line in lines:
            print(self._text(*line), file=self._stream, flush=True)
        self._printed_s = self._now() if lines else self._printed_s

    def clear(self) -> None:
        """Erase the table."""
        if self._is_terminal and self._drawn:
            self._stream.write(f"\033[{self._drawn}A\033[J")
            self._stream.flush()
        self._drawn, self._shown = 0, ""

    def _text(self, place: str, text: str) -> str:
        where = f"{place}: " if place else ""
        return printable(as_typed(f"{'+' + duration(self._now() - self._began_s):>10}  {where}{text}"))


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


# Threads for work that waits for a network. A sweep that ends does not wait for them.


class Workers:
    """Daemon threads. The threads of a `ThreadPoolExecutor` would keep the interpreter from exiting."""

    def __init__(self, count: int) -> None:
        self._most = count
        self._threads: list[threading.Thread] = []
        self._waiting: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()

    def submit(self, work: Callable[P, T], *args: P.args, **options: P.kwargs) -> Future[T]:
        """Queue `work(*args, **options)` and return its future."""
        future: Future[T] = Future()
        if len(self._threads) < self._most:
            self._threads.append(threading.Thread(target=self._serve, daemon=True))
            self._threads[-1].start()
        self._waiting.put((future, partial(work, *args, **options)))
        return future

    def run_all(self, tasks: Sequence[Callable[[], T]]) -> list[T]:
        """Run the tasks, wait for all of them, and return their results in order."""
        return [future.result() for future in [self.submit(task) for task in tasks]]

    def close(self) -> None:
        """End the threads once the queue is empty."""
        for _ in self._threads:
            self._waiting.put(None)

    def _serve(self) -> None:
        while (item := self._waiting.get()) is not None:
            future, work = item
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001 - `Future.result` raises it again
                future.set_exception(error)

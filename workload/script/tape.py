"""What timed steps did, written down in a moment and told to the session later, many steps at once.

After a step of tens of milliseconds nothing of ours is left in the processor's caches, and each line of Python that is
run between its parts takes about ten times as long as in a loop. So between the parts of a step only the clock is read.
"""

from collections.abc import Callable
from threading import get_ident
from time import perf_counter
from typing import Any

from torch import Size, Tensor

from workload.recorder import FLUSH_EVERY_S
from workload.script.batches import Batch
from workload.script.hooks import Site
from workload.script.session import Session

# More optimizer steps than this are not kept waiting.
MOST_STEPS = 64
# A validation loop has many batches and no step.
MOST_EVENTS = 4096


class Tape:
    """Hears a script for its session, which is told at once except of timed steps.

    See `workload.script.hooks.Observer`.
    """

    def __init__(self, session: Session) -> None:
        self.active = True
        self._session = session
        self._events: list[tuple[str, Any, tuple[Any, ...]]] = []
        self._mark: Callable[[], Any] | None = None
        self._thread: int | None = None
        self._steps, self._most, self._due_s = 0, 1, 0.0
        # What came last: its loader, the shape of its first tensor, what throughput counts of it.
        self._loader: int | None = None
        self._is_in_stretch = False
        # In a backward pass or an optimizer's step, which turn gradients off for themselves.
        self._is_inside = False
        # Those that have stepped, by identity.
        self._optimizers: set[int] = set()
        self._shape: Size | None = None
        self._batch: Batch | None = None

    def silence(self) -> None:
        """This process is a copy of the measured one: nothing of it is heard."""
        self.active, self._mark = False, None
        self._session.silence()

    # What happens in every step is written out: a call more, cold, takes some microseconds.

    def fetch_began(self) -> None:
        """A batch is asked for."""
        if self._mark is not None and get_ident() == self._thread:
            self._events.append(("fetch_began", self._mark(), ()))
        else:
            self._session.fetch_began()

    def fetched(self, loader: Any, batch: Any) -> None:
        """It is there. The batch itself is not kept: by the time when this is told it may be gone."""
        if self._mark is not None and get_ident() == self._thread:
            mark = self._mark()
            first = batch[0] if type(batch) in (list, tuple) and batch else batch
            # Nearly every batch: like the one before.
            if id(loader) != self._loader or type(first) is not Tensor or first.shape != self._shape:
                self._batch = self._session.batch_of(loader, batch)
                self._loader, self._shape = id(loader), first.shape if type(first) is Tensor else None
            self._events.append(("came", mark, (self._batch,)))
            if len(self._events) >= MOST_EVENTS:
                self.catch_up()
        else:
            self._session.fetched(loader, batch)

    def backward_began(self) -> None:
        """A backward pass begins."""
        self._is_inside = True
        if self._mark is not None:
            self._events.append(("backward_began", self._mark(), ()))
        else:
            self._session.backward_began()

    def backward_ended(self) -> None:
        """It is over."""
        self._is_inside = False
        if self._mark is not None:
            self._events.append(("backward_ended", self._mark(), ()))
        else:
            self._session.backward_ended()

    def gradient_taken(self) -> None:
        """Called when a gradient was taken without a backward pass; in a timed step it belongs to a penalty."""
        if self._mark is None:
            self._session.gradient_taken()

    def stepping(self, optimizer: Any) -> None:
        """An optimizer is about to step."""
        self._is_inside = True
        if self._mark is not None:
            self._events.append(("stepping", None, (optimizer,)))
        else:
            self._session.stepping(optimizer)

    def stepped(self, optimizer: Any) -> None:
        """It has."""
        self._is_inside = False
        self._hear_of_end("stepped", optimizer)
        if id(optimizer) not in self._optimizers:
            # Steps of another one may be of another kind.
            self._optimizers.add(id(optimizer))
            self.catch_up()

    def left_out(self, optimizer: Any) -> None:
        """A GradScaler has left its step out."""
        self._hear_of_end("left_out", optimizer)

    def step_done(self) -> None:
        """The script says that a step is over."""
        self._hear_of_end("step_done")

    def step_began(self) -> None:
        """The script says that one begins."""
        self._hear("step_began")

    def stretch_began(self, site: Site) -> None:
        """Called when gradients are switched off; passed on if the place is an evaluation, or not classified yet."""
        session = self._session
        if self._is_inside:
            return
        if self._mark is None or get_ident() != self._thread:
            session.stretch_began(site)
            return
        is_evaluation = session.sites.get(site)
        if is_evaluation:
            self._events.append(("stretch_began", self._mark(), (site,)))
            self._is_in_stretch = True
        elif is_evaluation is None:
            self.catch_up()
            session.stretch_began(site)
            self._settle()

    def stretch_ended(self) -> None:
        """Called when gradients are switched on again."""
        if self._mark is None or get_ident() != self._thread:
            self._session.stretch_ended()
        elif self._is_in_stretch:
            self._events.append(("stretch_ended", self._mark(), ()))
            self._is_in_stretch = False

    def saving(self) -> None:
        """A checkpoint is written."""
        self._hear("saving")

    def saved(self) -> None:
        """It is."""
        self._hear("saved")

    def _hear(self, name: str) -> None:
        if self._mark is not None and get_ident() == self._thread:
            self._events.append((name, self._mark(), ()))
        else:
            getattr(self._session, name)()

    def _hear_of_end(self, name: str, *details: Any) -> None:
        if self._mark is not None and get_ident() == self._thread:
            self._events.append((name, self._mark(), details))
            self._steps += 1
            if self._steps >= self._most or perf_counter() >= self._due_s:
                self.catch_up()
            return
        try:
            getattr(self._session, name)(*details)
        finally:
            self._settle()

    def _settle(self) -> None:
        """How to go on: at once, or later until as many steps more have been taken or some time has passed."""
        session = self._session
        self._mark = session.instant
        if self._mark is not None:
            self._thread = session.thread
            most, until_s = session.patience()
            self._steps, self._most = 0, min(MOST_STEPS, most)
            self._due_s = min(perf_counter() + FLUSH_EVERY_S, until_s)

    def catch_up(self, *, is_over: bool = False) -> None:
        """Tell the session everything; it may end the script then, unless that `is_over` anyway."""
        if self._mark is None or get_ident() != self._thread:
            return
        events, self._events = self._events, []
        try:
            self._session.hear_again(events, is_over=is_over)
        finally:
            self._settle()

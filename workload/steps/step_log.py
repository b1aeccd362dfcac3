"""Buffers the events of timed steps with their time stamps, and passes many steps at once to the session later.

During a step of tens of milliseconds, our code and data are displaced from the processor's caches. Each line of Python
between two parts of the step then takes about ten times as long as in a loop. Therefore only the clock is read there.
"""

import weakref
from collections.abc import Callable
from threading import get_ident
from time import perf_counter
from typing import Any

from torch import Size, Tensor

from workload.measure.recorder import FLUSH_EVERY_S
from workload.steps.session import Event, Session
from workload.steps.step import Batch
from workload.steps.step_work import Site

# Largest number of optimizer steps in the buffer.
MOST_STEPS = 64
# Largest number of events in the buffer: a validation loop has many batches and no step.
MOST_EVENTS = 4096


def _recorded(event: Callable[[Session], None], *, is_inside: bool | None = None) -> Callable[..., None]:
    """Method that buffers an event of a timed step with its time stamp, and passes any other event on at once.

    Details are passed on at once, or not at all: they hold tensors.

    `is_inside`: whether a backward pass or an optimizer's step runs from now on; both turn gradients off themselves.
    """

    # Without helper functions: an additional cold call takes some microseconds.
    def record(self: "StepLog", *details: Any) -> None:
        if is_inside is not None:
            self._is_inside = is_inside
        if self._mark is not None and get_ident() == self._thread:
            self._events.append((event, self._mark(), ()))
        else:
            event(self._session, *details)

    return record


class StepLog:
    """Observer of a script that buffers the events of timed steps for its session, and passes on all others at once.

    The hooks of `workload.steps.hooks` call its methods, which have the names of the session's.
    """

    fetch_began = _recorded(Session.fetch_began)
    backward_began = _recorded(Session.backward_began, is_inside=True)
    backward_ended = _recorded(Session.backward_ended, is_inside=False)
    step_began = _recorded(Session.step_began)
    saving = _recorded(Session.saving)
    saved = _recorded(Session.saved)

    def __init__(self, session: Session) -> None:
        self.active = True
        self._session = session
        self._events: list[Event] = []
        self._mark: Callable[[], Any] | None = None
        self._thread: int | None = None
        self._steps, self._most, self._due_s = 0, 1, 0.0
        # The last batch: its loader, the shape of its first tensor, its contents.
        self._loader: Callable[[], Any] = lambda: None
        self._shape: Size | None = None
        self._batch: Batch | None = None
        self._is_in_evaluation = self._is_inside = False
        # Optimizers that have stepped, by identity.
        self._optimizers: set[int] = set()

    def silence(self) -> None:
        """Stop observing: this process is a forked copy of the measured one."""
        self.active, self._mark = False, None
        self._session.silence()

    def fetched(self, loader: Any, batch: Any) -> None:
        """Record that a batch has arrived.

        Only the batch's numbers, see `Batch`, are kept, because the batch may be gone when the event is passed on.
        """
        if self._mark is not None and get_ident() == self._thread:
            mark = self._mark()
            first = batch[0] if type(batch) in (list, tuple) and batch else batch
            # Nearly every batch is like the previous one.
            if self._loader() is not loader or type(first) is not Tensor or first.shape != self._shape:
                self._batch = self._session.batch_of(loader, batch)
                self._loader = weakref.ref(self if loader is None else loader)
                self._shape = first.shape if type(first) is Tensor else None
            self._events.append((Session.batch_arrived, mark, (self._batch,)))
            if len(self._events) >= MOST_EVENTS:
                self.flush_events()
        else:
            self._session.fetched(loader, batch)

    def stepping(self, optimizer: Any) -> None:
        """Record that an optimizer is about to step."""
        self._is_inside = True
        if self._mark is not None:
            self._events.append((Session.stepping, None, (optimizer,)))
        else:
            self._session.stepping(optimizer)

    def stepped(self, optimizer: Any) -> None:
        """Record that an optimizer has stepped."""
        self._is_inside = False
        self._record_end(Session.stepped, optimizer)
        if id(optimizer) not in self._optimizers:
            # A new optimizer may begin steps of another kind.
            self._optimizers.add(id(optimizer))
            self.flush_events()

    def left_out(self, optimizer: Any) -> None:
        """Record that a GradScaler skipped an optimizer's step."""
        self._record_end(Session.left_out, optimizer)

    def step_done(self) -> None:
        """Record that the script marks the end of a step."""
        self._record_end(Session.step_done)

    def _record_end(self, event: Callable[..., None], *details: Any) -> None:
        if self._mark is not None and get_ident() == self._thread:
            self._events.append((event, self._mark(), details))
            self._steps += 1
            if self._steps >= self._most or perf_counter() >= self._due_s:
                self.flush_events()
            return
        try:
            event(self._session, *details)
        finally:
            self._choose_buffering()

    def gradients_off(self, site: Site) -> None:
        """Record that gradients are switched off for an evaluation; pass on a `site` that is not classified yet."""
        session = self._session
        if self._is_inside:
            return
        if self._mark is None or get_ident() != self._thread:
            session.gradients_off(site)
            return
        is_evaluation = session.evaluations.sites.get(site)
        if is_evaluation:
            self._events.append((Session.gradients_off, self._mark(), (site,)))
            self._is_in_evaluation = True
        elif is_evaluation is None:
            self.flush_events()
            session.gradients_off(site)
            self._choose_buffering()

    def gradients_on(self) -> None:
        """Record that gradients are switched on again."""
        if self._mark is None or get_ident() != self._thread:
            self._session.gradients_on()
        elif self._is_in_evaluation:
            self._events.append((Session.gradients_on, self._mark(), ()))
            self._is_in_evaluation = False

    # In a timed step these events mean nothing: the gradient is of a penalty, and the work of a replayed CUDA graph was
    # counted earlier.

    def gradient_taken(self) -> None:
        """Pass on that `torch.autograd.grad` has returned."""
        if self._mark is None:
            self._session.gradient_taken()

    def replayed(self) -> None:
        """Pass on that a CUDA graph was replayed."""
        if self._mark is None:
            self._session.replayed()

    def capture_began(self) -> None:
        """Pass on all buffered events, and then that a CUDA graph is about to be captured."""
        if self._mark is None or get_ident() == self._thread:
            self.flush_events()
            self._mark = None
            self._session.capture_began()

    def capture_ended(self) -> None:
        """Pass on that the capture has ended."""
        if self._mark is None:
            self._session.capture_ended()
            self._choose_buffering()

    def _choose_buffering(self) -> None:
        """Decide whether to buffer the next events, and for how many optimizer steps and seconds at most."""
        session = self._session
        self._mark = session.instant
        if self._mark is not None:
            self._thread = session.thread
            most, until_s = session.buffer_limits()
            self._steps, self._most = 0, min(MOST_STEPS, most)
            self._due_s = min(perf_counter() + FLUSH_EVERY_S, until_s)

    def flush_events(self, *, is_over: bool = False) -> None:
        """Pass all buffered events to the session. The session may then end the script.

        `is_over`: the script has ended anyway.
        """
        if self._mark is None or get_ident() != self._thread:
            return
        events, self._events = self._events, []
        try:
            self._session.replay(events, is_over=is_over)
        finally:
            self._choose_buffering()

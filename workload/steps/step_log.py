"""Buffers the events of timed steps with their time stamps, and passes many steps at once to the session later.

During a step of tens of milliseconds, our code and data are displaced from the processor's caches. Each line of Python
between two parts of the step then takes about ten times as long as in a loop. Therefore only the clock is read there.
"""

from collections.abc import Callable
from threading import get_ident
from time import perf_counter
from typing import Any

from torch import Size, Tensor

from workload.measure.recorder import FLUSH_EVERY_S
from workload.steps.batches import Batch
from workload.steps.session import Session
from workload.steps.step_work import Site

# Largest number of optimizer steps in the buffer.
MOST_STEPS = 64
# Largest number of events in the buffer: a validation loop has many batches and no step.
MOST_EVENTS = 4096


class StepLog:
    """Observer of a script that buffers the events of timed steps for its session, and passes on all others at once.

    The hooks of `workload.steps.hooks` call its methods.
    """

    def __init__(self, session: Session) -> None:
        self.active = True
        self._session = session
        self._events: list[tuple[str, Any, tuple[Any, ...]]] = []
        self._mark: Callable[[], Any] | None = None
        self._thread: int | None = None
        self._steps, self._most, self._due_s = 0, 1, 0.0
        # The last batch: its loader, the shape of its first tensor, its contents.
        self._loader: int | None = None
        self._is_in_evaluation = False
        # Whether a backward pass or an optimizer's step is running: both turn gradients off themselves.
        self._is_inside = False
        # Optimizers that have stepped, by identity.
        self._optimizers: set[int] = set()
        self._shape: Size | None = None
        self._batch: Batch | None = None

    def silence(self) -> None:
        """Stop observing: this process is a forked copy of the measured one."""
        self.active, self._mark = False, None
        self._session.silence()

    # Events of every step are handled without helper functions: an additional cold call takes some microseconds.

    def fetch_began(self) -> None:
        """Record that a batch is requested."""
        if self._mark is not None and get_ident() == self._thread:
            self._events.append(("fetch_began", self._mark(), ()))
        else:
            self._session.fetch_began()

    def fetched(self, loader: Any, batch: Any) -> None:
        """Record that a batch has arrived.

        Only the batch's numbers, see `Batch`, are kept, because the batch may be gone when the event is passed on.
        """
        if self._mark is not None and get_ident() == self._thread:
            mark = self._mark()
            first = batch[0] if type(batch) in (list, tuple) and batch else batch
            # Nearly every batch is like the previous one.
            if id(loader) != self._loader or type(first) is not Tensor or first.shape != self._shape:
                self._batch = self._session.batch_of(loader, batch)
                self._loader, self._shape = id(loader), first.shape if type(first) is Tensor else None
            self._events.append(("batch_arrived", mark, (self._batch,)))
            if len(self._events) >= MOST_EVENTS:
                self.flush_events()
        else:
            self._session.fetched(loader, batch)

    def backward_began(self) -> None:
        """Record that a backward pass begins."""
        self._is_inside = True
        if self._mark is not None:
            self._events.append(("backward_began", self._mark(), ()))
        else:
            self._session.backward_began()

    def backward_ended(self) -> None:
        """Record that the backward pass has ended."""
        self._is_inside = False
        if self._mark is not None:
            self._events.append(("backward_ended", self._mark(), ()))
        else:
            self._session.backward_ended()

    def gradient_taken(self) -> None:
        """Pass on that `torch.autograd.grad` has returned. In a timed step do nothing: the gradient is of a penalty."""
        if self._mark is None:
            self._session.gradient_taken()

    def stepping(self, optimizer: Any) -> None:
        """Record that an optimizer is about to step."""
        self._is_inside = True
        if self._mark is not None:
            self._events.append(("stepping", None, (optimizer,)))
        else:
            self._session.stepping(optimizer)

    def stepped(self, optimizer: Any) -> None:
        """Record that an optimizer has stepped."""
        self._is_inside = False
        self._record_end("stepped", optimizer)
        if id(optimizer) not in self._optimizers:
            # A new optimizer may begin steps of another kind.
            self._optimizers.add(id(optimizer))
            self.flush_events()

    def left_out(self, optimizer: Any) -> None:
        """Record that a GradScaler skipped an optimizer's step."""
        self._record_end("left_out", optimizer)

    def step_done(self) -> None:
        """Record that the script marks the end of a step."""
        self._record_end("step_done")

    def step_began(self) -> None:
        """Record that the script marks the beginning of a step."""
        self._record("step_began")

    def gradients_off(self, site: Site) -> None:
        """Record that gradients are switched off for an evaluation; pass on a `site` that is not classified yet."""
        session = self._session
        if self._is_inside:
            return
        if self._mark is None or get_ident() != self._thread:
            session.gradients_off(site)
            return
        is_evaluation = session.sites.get(site)
        if is_evaluation:
            self._events.append(("gradients_off", self._mark(), (site,)))
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
            self._events.append(("gradients_on", self._mark(), ()))
            self._is_in_evaluation = False

    def saving(self) -> None:
        """Record that a checkpoint is being written."""
        self._record("saving")

    def saved(self) -> None:
        """Record that the checkpoint was written."""
        self._record("saved")

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

    def replayed(self) -> None:
        """Pass on that a CUDA graph was replayed. In a timed step do nothing: its work was counted earlier."""
        if self._mark is None:
            self._session.replayed()

    def _record(self, name: str) -> None:
        if self._mark is not None and get_ident() == self._thread:
            self._events.append((name, self._mark(), ()))
        else:
            getattr(self._session, name)()

    def _record_end(self, name: str, *details: Any) -> None:
        if self._mark is not None and get_ident() == self._thread:
            self._events.append((name, self._mark(), details))
            self._steps += 1
            if self._steps >= self._most or perf_counter() >= self._due_s:
                self.flush_events()
            return
        try:
            getattr(self._session, name)(*details)
        finally:
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

"""Session of a script that runs in several ranks: all ranks time the same steps."""

import math
import time
from collections.abc import Callable

from workload.contract.errors import RooflaunchError
from workload.contract.spec import Device
from workload.measure.clock import clock_for
from workload.steps.agreement import Agreement, Word
from workload.steps.program import Program
from workload.steps.session import Session, Stage
from workload.steps.step import Limits, Step, StepReceiver
from workload.steps.step_finder import Seen
from workload.steps.step_work import Work, chosen


class RankSession(Session):
    """Observer of a script in one of several ranks. Ranks begin and end their timed steps at the same events.

    An event is a step of an optimizer, or the end of a step that the script marks.
    """

    def __init__(
        self,
        limits: Limits,
        program: Program,
        open_receiver: Callable[[Step, Work | None, Device], StepReceiver],
        finish: Callable[[], None],
        *,
        goes_on: bool,
        agreement: Agreement,
    ) -> None:
        super().__init__(limits, program, self._open_together, finish, goes_on=goes_on)
        self._agreement = agreement
        self._open_own = open_receiver

    def buffer_limits(self) -> tuple[int, float]:
        """Buffer one step only: if another rank fails, this process may be killed at any time."""
        return 1, math.inf

    def _unjoined(self) -> RooflaunchError | None:
        return self._agreement.join(self._name)

    def _follow_mark(self) -> None:
        if error := self._unjoined():
            self.refuse(error)
        self._agreement.event += 1
        super()._follow_mark()
        self._agree()

    def _follow(self, seen: Seen) -> None:
        self._agreement.event += 1
        super()._follow(seen)
        self._agree()

    def _agree(self) -> None:
        """Before the first timed step: begin to time steps if rank 0 has begun at this event."""
        if self.stage in (Stage.WARMUP, Stage.MEASURED, Stage.OVER):
            return
        if self._agreement.rank == 0:
            self._agreement.tell(Word.WAIT)
        elif self._agreement.is_begun():
            if self._counter is None:
                raise self._agreement.differs()
            self._counter.stop()
            self._counter = None
            self._start_receiver(chosen(self._works) if self._works else None)

    def _has_counted_enough(self) -> bool:
        return self._agreement.rank == 0 and super()._has_counted_enough()

    def _open_together(self, step: Step, work: Work | None, used: Device) -> StepReceiver:
        receiver = self._open_own(step, work, used)
        self._agreement.meet_at_start(self.optimizers.gpus())
        return receiver

    def _enter(self, stage: Stage) -> None:
        super()._enter(stage)
        warmup, iterations, _ = self._limits.filled(self._device)
        self._plan(warmup if stage is Stage.WARMUP else iterations)

    def _plan(self, steps: int) -> None:
        pattern = self.step.pattern if self.step else None
        self._agreement.until = self._agreement.event + steps * (len(pattern.segments) if pattern else 1)

    def _is_phase_over(self, receiver: StepReceiver) -> bool:  # noqa: ARG002 - only a profiler wants more
        """Whether the phase has all of its steps, counted by events: a rank may have left out a step of its own."""
        if self._agreement.event < self._agreement.until:
            return False
        if self.stage is Stage.WARMUP:
            return True
        _, iterations, least_s = self._limits.filled(self._device)
        passed_s = time.perf_counter() - self._began_s
        if passed_s < least_s:
            # The host has only queued the steps.
            with self._on_gpu:
                clock_for(self._device).synchronize()
            passed_s = time.perf_counter() - self._began_s
        by_time = math.ceil(self._taken * (least_s / passed_s - 1)) if passed_s < least_s else 0
        more = self._agreement.more_steps(max(iterations - self._taken, by_time))
        self._plan(more)
        return more == 0

"""What becomes of a script's steps once they are known: they are timed, or profiled."""

from collections.abc import Callable
from typing import Any, Protocol

from workload.recorder import Aside, StepPart, StepPhase


class Marks(Protocol):
    """Takes the parts of a step; see `workload.recorder.Recorder`."""

    def mark(self, part: StepPart | Aside, mark: Any = None) -> int:
        """The time since the last mark was this; returns how many parts the step has.

        Up to now, or to a mark that was taken then.
        """

    def relabel(self, parts: int, aside: Aside, *, but: StepPart | None = None) -> None:
        """The first parts were something else."""


class StepTaker(Protocol):
    """What is done with the steps after the counted ones: they are timed, or profiled."""

    phase: StepPhase
    is_open: bool

    @property
    def wants_more(self) -> bool:
        """More than the measured steps that were asked for."""

    @property
    def recorder(self) -> Marks:
        """Hears the parts while `is_open`."""

    def enter(self, phase: StepPhase) -> None:
        """The steps of a phase begin."""

    @property
    def instant(self) -> Callable[[], Any] | None:
        """Takes a mark of something that is told later; None: the steps must be told as they happen."""

    def begin(self, mark: Any = None) -> None:
        """A step begins, now or at a mark that was taken then."""

    def end(self, images: int, *, is_step: bool) -> None:
        """It is over."""

    def leave(self) -> None:
        """The phase is over."""

    def close(self) -> None:
        """No step will follow."""

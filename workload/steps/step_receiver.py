"""Interfaces for the receiver of a script's steps: a receiver times the steps, or profiles them."""

from collections.abc import Callable
from typing import Any, Protocol

from workload.measure.recorder import Aside, StepPart, StepPhase


class Marks(Protocol):
    """Records the parts of a step; see `workload.measure.recorder.Recorder`."""

    def mark(self, part: StepPart | Aside, mark: Any = None) -> int:
        """Assign the time since the last mark to `part`; return the number of parts of the step.

        The time ends now, or at `mark`, which was taken earlier.
        """

    def relabel(self, parts: int, aside: Aside, *, but: StepPart | None = None) -> None:
        """Reassign the first `parts` parts of the open step to `aside`, except parts of kind `but`."""


class StepReceiver(Protocol):
    """Receives the steps after the counted ones, and times or profiles them."""

    phase: StepPhase
    is_open: bool

    @property
    def wants_more(self) -> bool:
        """Whether more steps are needed than the measured steps requested."""

    @property
    def recorder(self) -> Marks:
        """Recorder of the parts of a step while `is_open`."""

    def enter(self, phase: StepPhase) -> None:
        """Begin a phase of steps."""

    @property
    def instant(self) -> Callable[[], Any] | None:
        """Function that takes a mark of an event reported later; None if events must be reported as they happen."""

    def begin(self, mark: Any = None) -> None:
        """Begin a step, now or at `mark`, which was taken earlier."""

    def end(self, images: int, *, is_step: bool) -> None:
        """End the step. `images`: samples that it trained on; `is_step`: False if it was no training step."""

    def leave(self) -> object:
        """End the phase."""

    def close(self) -> None:
        """Finish: no step will follow."""

"""Marks for the steps of a training script, under a name that no user's module has. Standard library only.

In a script that `python -m rooflaunch script` runs, `with rooflaunch.step():` around the work of a step, or
`rooflaunch.step_done()` after it, says what a step is. In a script that is not measured both do nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class StepListener(Protocol):
    """Receiver of the marks: the part of the trainer that measures the script."""

    def step_began(self) -> None:
        """Called when `with rooflaunch.step():` is entered."""

    def step_done(self) -> None:
        """Called when the step is over."""


_listener: StepListener | None = None


def listen(listener: StepListener | None) -> None:
    """Set the listener that is told of steps; None removes it."""
    global _listener  # noqa: PLW0603 - one script to a process
    _listener = listener


@contextmanager
def step() -> Iterator[None]:
    """Context manager: the block is one training step."""
    if _listener:
        _listener.step_began()
    yield
    if _listener:
        _listener.step_done()


def step_done() -> None:
    """Mark the end of a training step and the beginning of the next."""
    if _listener:
        _listener.step_done()

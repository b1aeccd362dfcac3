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
        """`with rooflaunch.step():` is entered."""

    def step_done(self) -> None:
        """The step is over."""


_listener: StepListener | None = None


def listen(listener: StepListener | None) -> None:
    """Tell `listener` of steps from now on; None: nobody."""
    global _listener  # noqa: PLW0603 - one script to a process
    _listener = listener


@contextmanager
def step() -> Iterator[None]:
    """Everything inside is one training step."""
    if _listener:
        _listener.step_began()
    yield
    if _listener:
        _listener.step_done()


def step_done() -> None:
    """A training step ends here, and the next one begins."""
    if _listener:
        _listener.step_done()

"""The instrumented trainer, and what a training script may say of itself: `python -m workload train|script|ceilings|…`.

In a script that `python -m workload script` runs, `with workload.step():` around the work of a step, or
`workload.step_done()` after it, says what a step is. In a script that is not measured both do nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

__version__ = "0.2.0"


class StepListener(Protocol):
    """Who measures the script."""

    def step_began(self) -> None:
        """`with workload.step():` is entered."""

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

"""Who follows a run from outside, in place of a terminal."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from workload.contract.text import LINE_EVERY_S


class Trainer(Protocol):
    """A trainer that runs, in a container or as a process."""

    def signal(self, name: str) -> None:
        """Send it a signal, `SIGTERM` say; one that has ended already is past it."""


@dataclass(frozen=True, kw_only=True)
class Watcher:
    """Hears what a run says, gets hold of its trainer to stop it, and handles signals itself.

    `on_started` and `on_ended` come for the timing run and for the profile pass of a container, which is one of its
    own; a process profiles itself. `on_bundle` comes as soon as there is a folder. A process's messages come from a
    thread of their own, all else in the caller's.
    """

    on_message: Callable[[str], None]
    on_bundle: Callable[[Path], None]
    on_started: Callable[[Trainer], None]
    on_ended: Callable[[], None]
    apart: bool = False


@contextmanager
def said_every(say: Callable[[float], None], *, every_s: float = LINE_EVERY_S) -> Iterator[None]:
    """Call `say` with the elapsed seconds at a fixed interval until the block ends."""
    over, began_s = threading.Event(), time.monotonic()

    def repeat() -> None:
        while not over.wait(every_s):
            say(time.monotonic() - began_s)

    threading.Thread(target=repeat, daemon=True).start()
    try:
        yield
    finally:
        over.set()

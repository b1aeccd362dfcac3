"""Records the beginning of each phase of a run, in seconds since the process started."""

import time
from collections.abc import Callable
from datetime import UTC, datetime


class Timeline:
    """Beginnings of phases: `enter(name)` records one. The first phase is `start`, at 0 s."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self.started_s = now()
        self.started_at = datetime.now(UTC)
        self.began_s: dict[str, float] = {"start": 0.0}

    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return self._now() - self.started_s

    def enter(self, phase: str) -> None:
        """Record that `phase` begins now."""
        self.began_s[phase] = self.elapsed_s()

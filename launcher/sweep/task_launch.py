"""Launch of a sweep, with all that is known of it."""

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from launcher.jobs.watch import WatchedLaunch
from launcher.protocol.backend import Machine
from launcher.protocol.task import Task


@dataclass(kw_only=True)
class TaskLaunch(WatchedLaunch):
    """Launch of a task. `is_over`: nothing runs or costs any more; `is_settled`: its runs' outcome has been handled."""

    task: Task
    submitting: Future[Any] | None = None
    ended_s: float | None = None
    fetching: list[Future[None]] = field(default_factory=list)
    # Bundles that are fetched, being fetched, or given up.
    fetched: set[str] = field(default_factory=set)
    is_over: bool = False
    is_settled: bool = False
    usd: float | None = None

    def is_on(self, machine: Machine) -> None:
        """Note the machine that was submitted for the launch: its boot begins at the next poll."""
        self.machine, self.zones, self.boots_from_s = machine, (machine.zone,), None

"""One launch of a sweep, and what its driver knows of it."""

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from launcher.backends.door import Machine
from launcher.jobs.launches import Launch
from launcher.jobs.records import Heartbeat, Request, Result
from workload.contract.task import Task
from workload.storage.names import why_unsafe


@dataclass(kw_only=True)
class Rental:
    """One launch and what is known of it. `is_ours`: this process has submitted it; `gone_looks`: without its machine.

    `is_over`: nothing runs and nothing costs any more; `is_settled`: what became of its runs has been looked at.
    """

    task: Task
    request: Request
    zones: tuple[str, ...] = ()
    submitting: Future[Any] | None = None
    is_ours: bool = True
    versions: dict[str, str] = field(default_factory=dict)
    heartbeat: Heartbeat | None = None
    result: Result | None = None
    problems: tuple[str, ...] = ()
    machine: Machine | None = None
    judged: Launch | None = None
    gone_looks: int = 0
    ended_s: float | None = None
    why: str = ""
    bringing: list[Future[None]] = field(default_factory=list)
    # Bundles that are here, on their way, or given up.
    brought: set[str] = field(default_factory=set)
    is_over: bool = False
    is_settled: bool = False
    usd: float | None = None

    @property
    def name(self) -> str:
        return self.request.name

    @property
    def named_runs(self) -> list[str]:
        """The bundles that its machine says it has uploaded, by id."""
        source = self.result or self.heartbeat
        return [run_id for run_id in (source.runs if source else ()) if not why_unsafe(run_id) and "/" not in run_id]

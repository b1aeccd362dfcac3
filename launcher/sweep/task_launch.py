"""Launch of a sweep, with all that is known of it."""

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from launcher.jobs.launches import Launch
from launcher.protocol.backend import Machine
from launcher.protocol.records import Heartbeat, Request, Result
from launcher.protocol.task import Task
from workload.storage.names import why_unsafe


@dataclass(kw_only=True)
class TaskLaunch:
    """Launch and its state. `is_ours`: submitted by this process; `gone_looks`: polls that found its machine gone.

    `is_over`: nothing runs or costs any more; `is_settled`: the outcome of its runs has been handled.
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
    fetching: list[Future[None]] = field(default_factory=list)
    # Bundles that are fetched, being fetched, or given up.
    fetched: set[str] = field(default_factory=set)
    is_over: bool = False
    is_settled: bool = False
    usd: float | None = None

    @property
    def name(self) -> str:
        return self.request.name

    def is_on(self, machine: Machine) -> None:
        """Note the machine that was submitted for the launch."""
        self.machine, self.zones = machine, (machine.zone,)

    @property
    def named_runs(self) -> list[str]:
        """Ids of the bundles that the machine has reported as uploaded."""
        source = self.result or self.heartbeat
        return [run_id for run_id in (source.runs if source else ()) if not why_unsafe(run_id) and "/" not in run_id]

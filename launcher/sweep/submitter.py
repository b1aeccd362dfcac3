"""Launches of one rented place of a sweep: each is planned, reserves its cost, and is submitted."""

import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from launcher.jobs import cleanup
from launcher.jobs.run import Launcher, prepared
from launcher.jobs.session import Session
from launcher.jobs.watch import WatchedLaunch
from launcher.protocol.backend import Backend, Job, Machine, Plan
from launcher.protocol.task import Task
from launcher.sweep.budget import Budget
from launcher.sweep.work import PlaceWork
from launcher.sweep.workers import Workers
from workload.contract.errors import RooflaunchError
from workload.contract.spec import Resolved

# Fields of a request that differ between tasks: a task's draft overrides them in the prepared plan.
TASK_FIELDS = ("name", "launched_at", "spec", "spec_origin", "task", "limit_s")


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

    def set_machine(self, machine: Machine) -> None:
        """Record the machine that was requested for the launch; its boot time is counted from the next poll on."""
        self.machine, self.zones, self.boots_from_s = machine, (machine.zone,), None


PlannedLaunch = tuple[TaskLaunch, Plan]


class Submitter:
    """Submits launches in threads of `workers`, because a submission may take minutes."""

    def __init__(
        self,
        work: PlaceWork,
        backend: Backend,
        settings: Any,
        session: Session,
        budget: Budget,
        workers: Workers,
        *,
        output: Path,
    ) -> None:
        self._work, self._backend, self._settings, self._session = work, backend, settings, session
        self._budget, self._workers, self._place = budget, workers, work.plan.place
        script = self._place.script
        self._script_files = script.script_files if script else None
        self._launcher = Launcher(session, output=output, script_files=self._script_files)
        # Plan of the first launch, which prepared the place for all launches; None before the first.
        self._prepared: Plan | None = None

    def plan(self, task: Task) -> PlannedLaunch:
        """Plan a launch for a task and reserve its cost. Raises `RooflaunchError` if the task cannot be launched."""
        plan = self._plan(task)
        self._budget.reserve(plan)
        return TaskLaunch(task=task, request=plan.request, zones=tuple(plan.request.zones)), plan

    def _plan(self, task: Task) -> Plan:
        options = self._place.options
        share = self._budget.share_usd
        names = {item.name for item in fields(options)}
        if share is not None and "max_cost_usd" in names:
            own = options.max_cost_usd
            options = replace(options, max_cost_usd=share if own is None else min(own, share))
        resolved = Resolved(spec=replace(task.runs[0].spec, repeats=1), origin=self._work.plan.origin)
        job = Job(resolved=resolved, token=secrets.token_hex(3), task=task)
        now = datetime.fromtimestamp(self._session.now_s(), UTC)
        draft = self._backend.plan(job, options, self._settings, now=now)
        if self._prepared is None:
            if self._script_files:
                draft = draft.renamed(replace(draft.request, script=self._script_files.facts()))
            self._prepared = prepared(self._backend, draft, self._session.machines, self._script_files)
            return self._prepared
        own_fields = {name: getattr(draft.request, name) for name in TASK_FIELDS}
        return self._prepared.renamed(replace(self._prepared.request, **own_fields))

    def submit(self, planned: Sequence[PlannedLaunch]) -> None:
        """Record and submit launches, in one request if the place supports this. Sets `submitting` of each launch."""
        together = getattr(self._session.machines, "submit_together", None)
        if together is not None and len(planned) > 1:
            future = self._workers.submit(self._submit_together, planned, together)
            for launch, _ in planned:
                launch.submitting = future
            return
        for launch, plan in planned:
            launch.submitting = self._workers.submit(self._submit, launch, plan)

    def submit_again(self, launch: TaskLaunch) -> None:
        """Submit a recorded launch whose submitting process died."""
        if self._prepared is None:
            self._plan(launch.task)
        assert self._prepared is not None
        launch.is_ours = True
        plan = self._prepared.renamed(launch.request)
        launch.submitting = self._workers.submit(self._submit, launch, plan, is_recorded=True)

    def _submit(self, launch: TaskLaunch, plan: Plan, *, is_recorded: bool = False) -> None:
        """Record a launch and submit it. Raises if the machine cannot be created."""
        if not is_recorded:
            self._launcher.record(plan)
        launch.set_machine(self._launcher.submit(plan).machines[0])

    def _submit_together(self, planned: Sequence[PlannedLaunch], together: Callable[..., Any]) -> None:
        """Record all launches, then submit them together."""
        for _, plan in planned:
            self._launcher.record(plan)
        try:
            for _, plan in planned:
                self._launcher.send_script_files(plan)
            submitted = together([plan for _, plan in planned], self._session.note)
        except RooflaunchError as error:
            for launch, _ in planned:
                now_s = self._session.now_s()
                cleanup.settle(self._session.store, launch.name, "", error.exit_code, str(error), now_s=now_s)
            raise
        machines: dict[str, Machine] = {machine.name: machine for machine in submitted.machines}
        for launch, _ in planned:
            if launch.name in machines:
                launch.set_machine(machines[launch.name])

"""Run the runs of a task on this machine, in order, each in a process or a container of its own.

The caller gets each outcome when its run has ended, before the next run starts. A failing run does not stop the others.
The outcome of a run that is not started tells the reason, so that another machine can do the run.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import median
from types import MappingProxyType

from launcher.machine import local
from launcher.machine.local import LocalOutcome, LocalPlan
from launcher.machine.watcher import Watcher
from launcher.protocol.records import Task, TaskRun
from workload.contract.bundle import Bundle
from workload.contract.errors import ExitCode, InterruptedRunError, RooflaunchError
from workload.contract.record import Status
from workload.contract.spec import RunSpec
from workload.contract.text import duration
from workload.contract.trainer import Context, Forks, KeptCeilings

# Makes the plan of a run from its options and from the facts on the task for its trainer.
PlanOf = Callable[[RunSpec, Context], LocalPlan]
# Makes the watcher of a run from the run's number in its task (from 1) and the run; None: show the run on the terminal.
WatcherOf = Callable[[int, TaskRun], Watcher | None]
# A run with one of these states in the store is not measured again.
FINAL = frozenset({Status.COMPLETED, Status.OUT_OF_MEMORY})
NOTHING_DONE: Mapping[str, str] = MappingProxyType({})


class End(StrEnum):
    """How a run of a task ended, or why it was not started.

    `skipped`: nothing is left to measure; `not started`: the run still has to be measured.
    """

    COMPLETED = "completed"
    FAILED = "failed"
    OUT_OF_MEMORY = "out of memory"
    INTERRUPTED = "interrupted"
    SKIPPED = "skipped"
    NOT_STARTED = "not started"


ENDS = {Status.COMPLETED: End.COMPLETED, Status.OUT_OF_MEMORY: End.OUT_OF_MEMORY, Status.INTERRUPTED: End.INTERRUPTED}
ENDS_BY_CODE: Mapping[int, End] = {ExitCode.OUT_OF_MEMORY: End.OUT_OF_MEMORY, ExitCode.INTERRUPTED: End.INTERRUPTED}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Outcome of one run. `number`: the run's position in the task, from 1. `why`: empty for a completed run.

    `code`: the trainer's exit code, 0 for a run that was not started. `out_of_time`: the run would not have fitted into
    the time left.
    """

    run: TaskRun
    number: int
    end: End
    why: str = ""
    hint: str = ""
    code: int = ExitCode.DONE
    seconds: float = 0.0
    bundle: Bundle | None = None
    error: RooflaunchError | None = None
    out_of_time: bool = False

    @property
    def was_started(self) -> bool:
        """Whether the run was started at all."""
        return self.end not in (End.SKIPPED, End.NOT_STARTED)


def work_through(
    task: Task,
    plan_of: PlanOf,
    *,
    done: Mapping[str, str] = NOTHING_DONE,
    time_left_s: Callable[[], float] = lambda: math.inf,
    stopped: Callable[[], str] = lambda: "",
    watcher_of: WatcherOf = lambda *_: None,
    now_s: Callable[[], float] = time.monotonic,
    settle_to_c: float | None = None,
    forks: Forks | None = None,
) -> Iterator[Outcome]:
    """Yield the outcome of every run of the task, in order; the next run begins when the next outcome is requested.

    `done`: status by run_key of the sealed bundles in the store; a completed or out-of-memory run among them is
    skipped. `time_left_s`: returns the seconds in which runs are still possible here. `stopped`: returns why no further
    run is wanted; empty if more are wanted. `settle_to_c`: the device cools to this temperature in °C before each run;
    None: to the temperature that it had before the first run. Runs that all have one configuration need no cooling.
    `forks`: starts our trainer's runs as forks. A launch that is not part of a sweep ends with the first of its repeats
    that fails, as the next repeats would fail too.
    """
    work = _Work(task, done, settle_to_c)
    for number, run in enumerate(task.runs, 1):
        outcome = work.left_out(number, run, time_left_s, stopped)
        if outcome is None:
            began_s = now_s()
            ended = _carried_out(number, run, plan_of, work.context(number, run), watcher_of, forks)
            outcome = replace(ended, seconds=now_s() - began_s)
            work.note(outcome)
        yield outcome


def repeated(spec: RunSpec, plan_of: PlanOf) -> LocalOutcome:
    """Run the repeats of one configuration, each in a process or a container of its own; return one outcome for all.

    No repeat is started after one that fails.
    """
    outcomes = list(work_through(Task.of_repeats(spec), plan_of))
    failed = next((outcome for outcome in outcomes if outcome.code), None)
    return LocalOutcome(
        exit_code=failed.code if failed else ExitCode.DONE,
        bundles=tuple(outcome.bundle for outcome in outcomes if outcome.bundle),
        error=failed.error if failed else None,
    )


class _Work:
    """State of a task: the results so far that matter for the runs to come."""

    def __init__(self, task: Task, done: Mapping[str, str], settle_to_c: float | None) -> None:
        self._task, self._done = task, done
        # Reason why no further run is started; empty if runs may be started.
        self._over = ""
        self._completed_s: list[tuple[RunSpec, float]] = []
        self._measured_blocks = set[int]()
        # Settling matters between different configurations; repeats of the same configuration are alike already.
        self._settles = any(run.spec != task.runs[0].spec for run in task.runs)
        self._settle_to_c = settle_to_c
        self._did_not_fit = [run.spec for run in task.runs if done.get(run.run_key) == Status.OUT_OF_MEMORY]

    def left_out(
        self, number: int, run: TaskRun, time_left_s: Callable[[], float], stopped: Callable[[], str]
    ) -> Outcome | None:
        """Outcome of a run that must not be started; None for a run to start."""
        if run.run_key and (status := self._done.get(run.run_key)) in FINAL:
            ended = "out of memory" if status == Status.OUT_OF_MEMORY else "completed"
            return Outcome(run=run, number=number, end=End.SKIPPED, why=f"already in the store, {ended}")
        if (wanted := run.spec.batch_size) is not None:
            alike = (spec for spec in self._did_not_fit if replace(spec, batch_size=wanted) == run.spec)
            smaller = next((spec.batch_size for spec in alike if spec.batch_size and spec.batch_size < wanted), None)
            if smaller is not None:
                why = f"batch {smaller} of the same configuration ran out of memory"
                return Outcome(run=run, number=number, end=End.SKIPPED, why=why)
        if why := stopped() or self._over:
            return Outcome(run=run, number=number, end=End.NOT_STARTED, why=why)
        of_all = [seconds for _, seconds in self._completed_s]
        of_configuration = [seconds for other, seconds in self._completed_s if other == run.spec]
        needed_s = max(of_configuration) if of_configuration else median(of_all) if of_all else 0.0
        left_s = time_left_s()
        if left_s <= needed_s:
            why = f"{duration(left_s)} are left, and the run takes about {duration(needed_s)}"
            why = why if needed_s and left_s > 0 else "no time is left"
            return Outcome(run=run, number=number, end=End.NOT_STARTED, why=why, out_of_time=True)
        return None

    def context(self, number: int, run: TaskRun) -> Context:
        """Facts on the task for the trainer of a run."""
        task = self._task
        place = {"name": task.job, "task": task.number, "block": run.block, "position": run.position}
        in_block = KeptCeilings.BLOCK if run.block in self._measured_blocks else KeptCeilings.NONE
        return Context(
            repeat=run.block,
            repeats=max(item.block for item in task.runs),
            job=place if task.job else None,
            run_key=run.run_key,
            # The first of the repeats has the profile.
            profile_later=not task.job and number > 1,
            # Measured ceilings are reused in a sweep only within a block, in other launches for an hour.
            kept_ceilings=in_block if task.job else KeptCeilings.HOUR,
            settles=self._settles,
            settle_to_c=self._settle_to_c,
            cpu_shares=task.devices,
        )

    def note(self, outcome: Outcome) -> None:
        """Record the result of a run that was started."""
        if outcome.bundle and outcome.bundle.record.ceilings:
            self._measured_blocks.add(outcome.run.block)
        if outcome.bundle and outcome.bundle.record.settling and self._settle_to_c is None:
            self._settle_to_c = outcome.bundle.record.settling.target_c
        if outcome.end is End.COMPLETED:
            self._completed_s.append((outcome.run.spec, outcome.seconds))
        if outcome.end is End.OUT_OF_MEMORY:
            self._did_not_fit.append(outcome.run.spec)
        if outcome.end is End.INTERRUPTED or outcome.code == ExitCode.INTERRUPTED:
            self._over = "the work was interrupted"
        elif outcome.end is not End.COMPLETED and not self._task.job:
            self._over = f"run {outcome.number} of {len(self._task.runs)} of the same configuration failed"


def _carried_out(
    number: int, run: TaskRun, plan_of: PlanOf, context: Context, watcher_of: WatcherOf, forks: Forks | None
) -> Outcome:
    try:
        ended = local.run(plan_of(run.spec, context), watcher=watcher_of(number, run), forks=forks)
    except RooflaunchError as error:
        ended = LocalOutcome(exit_code=error.exit_code, bundles=(), error=error)
    sealed = ended.bundles[-1] if ended.bundles else None
    by_code = End.COMPLETED if ended.exit_code == ExitCode.DONE else ENDS_BY_CODE.get(ended.exit_code, End.FAILED)
    end = by_code if sealed is None else ENDS.get(sealed.record.status, End.FAILED)
    why, hint = "", ""
    if isinstance(ended.error, InterruptedRunError) and end is not End.COMPLETED:
        end = End.INTERRUPTED
    if end is not End.COMPLETED:
        recorded = (sealed and sealed.record.error) or f"the trainer ended with exit code {ended.exit_code}"
        advice = (sealed and sealed.record.hint) or ""
        why, hint = (str(ended.error), ended.error.hint) if ended.error else (recorded, advice)
    return Outcome(
        run=run, number=number, end=end, why=why, hint=hint, code=ended.exit_code, bundle=sealed, error=ended.error
    )

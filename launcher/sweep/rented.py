"""Place of a sweep with rented machines: one launch for each task; `launcher.jobs.watch` polls all of them at once.

Requests and results are in the store, so that this process may end at any moment: the next one adopts the launches that
still run, fetches the sealed bundles and requests what is missing.
"""

import secrets
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from launcher.jobs import launches, watch
from launcher.jobs.launches import Seen
from launcher.jobs.liveness import TO_BE_REMOVED, Liveness
from launcher.jobs.run import SELF_DELETION_S, Launcher, fetched, prepared
from launcher.jobs.session import Session
from launcher.jobs.watch import Watch, WatchedLaunch, settle_watched
from launcher.machine.task import FINAL
from launcher.protocol.backend import Backend, Job, Machine, Plan
from launcher.protocol.records import LAUNCHES, RUNS, Request, Task, TaskRun, epoch_s, request_object
from launcher.sweep.shared import Budget, Control, Progress, Wish, Workers
from launcher.sweep.work import PlaceWork, progress_text, rate_text
from workload.contract import bundle
from workload.contract.bundle import Bundle
from workload.contract.errors import BundleError, ExitCode, NoCapacityError, RooflaunchError, UsageError
from workload.contract.record import KEY_LABEL, STATUS_LABEL, Status, why_other_labels
from workload.contract.spec import Resolved
from workload.contract.text import counted
from workload.storage.inventory import SealedRun, sealed_runs
from workload.storage.store import Store

# Give up a task after this many launches in a row that completed none of its runs.
MOST_IN_VAIN = 3
# Concurrent requests to a cloud or a store.
AT_A_TIME = 16
# How often to try fetching a bundle that its machine has announced.
FETCH_TRIES = 3
# Fields of a request that differ between tasks: a task's draft overrides them in the prepared plan.
TASK_FIELDS = ("name", "launched_at", "spec", "spec_origin", "task", "limit_s")


@dataclass(kw_only=True)
class TaskLaunch(WatchedLaunch):
    """The launch of one task.

    `is_over`: nothing runs or costs money any more. `is_settled`: the sweep has recorded how the launch's runs ended.
    """

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

    def must_be_removed(self, now_s: float) -> bool:
        """Whether to remove the machine: it does no work any more, or still exists long after its result."""
        if self.machine is None or self.is_gone:
            return False
        if self.result is not None:
            return now_s - (self.ended_s or now_s) > SELF_DELETION_S
        return self.liveness in TO_BE_REMOVED


class Collector:
    """Fetcher of bundles from the store into the folder of results; `workers` are its threads."""

    def __init__(self, work: PlaceWork, store: Store, output: Path, progress: Progress, workers: Workers) -> None:
        self._work, self._store, self._output, self._progress, self._workers = work, store, output, progress, workers
        self._tries: dict[str, int] = {}
        # Runs in the store whose labels contradict their run.json.
        self._mislabelled: set[str] = set()

    def fetch_announced(self, launch: TaskLaunch) -> None:
        """Start fetching the bundles that the launch's machine has announced, each once."""
        for run_id in launch.announced_runs:
            if run_id not in launch.fetched:
                launch.fetched.add(run_id)
                launch.fetching.append(self._workers.submit(self._fetch_one, launch, run_id))

    def is_collected(self, launch: TaskLaunch) -> bool:
        """Whether every announced bundle of the launch is in the folder of results, or was given up."""
        if not all(future.done() for future in launch.fetching):
            return False
        while launch.fetching:
            launch.fetching.pop().result()  # raises unexpected exceptions of the thread
        return set(launch.announced_runs) <= launch.fetched

    def fetch_sealed(self, keys: Collection[str] | None = None) -> None:
        """Fetch sealed runs of the place that are in the store and not in the folder of results; lists the store once.

        `keys`: fetch only these runs; None: all.
        """
        waiting: list[Future[None]] = []
        damaged: list[SealedRun] = []
        for sealed in sealed_runs(self._store, compared=lambda run: run.status in FINAL and self._is_missing(run)):
            is_wanted = self._work.has(sealed.run_key) and (keys is None or sealed.run_key in keys)
            if not is_wanted or sealed.run_id in self._mislabelled:
                continue
            if sealed.damage:
                damaged.append(sealed)
                continue
            is_new = sealed.status in FINAL and self._work.status(sealed.run_key) is None
            if is_new:
                self._work.settle(sealed.run_key, Status(sealed.status))
            if is_new or (sealed.status in (*FINAL, Status.FAILED) and self._is_missing(sealed)):
                waiting.append(self._workers.submit(self._fetch_stored, sealed))
        for future in waiting:
            future.result()
        for sealed in damaged:
            if self._work.status(sealed.run_key) is None:
                self._say_damaged(sealed.run_id, sealed.damage)

    def _is_missing(self, sealed: SealedRun) -> bool:
        is_here = (self._output / sealed.run_id / bundle.MANIFEST).is_file()
        return self._work.has(sealed.run_key) and not is_here

    def _say_damaged(self, run_id: str, why: str) -> None:
        address = self._store.locate(f"{RUNS}{run_id}")
        self._progress.say(self._work.name, f"{address} is damaged, so its run is repeated: {why}")

    def _fetch_one(self, launch: TaskLaunch, run_id: str) -> None:
        try:
            sealed = self._fetched(run_id)
        except RooflaunchError as error:
            tries = self._tries[run_id] = self._tries.get(run_id, 0) + 1
            if tries < FETCH_TRIES:
                launch.fetched.discard(run_id)
            else:
                self._progress.say(self._work.name, f"{run_id} could not be collected: {error}")
            return
        record = sealed.record
        is_new = self._work.status(record.run_key or "") is None
        run = self._work.take(record, sealed.path)
        if run is None or not is_new:
            return
        rate = record.timing.images_per_s if record.timing else None
        is_completed = record.status is Status.COMPLETED
        result = rate_text(record) if is_completed and rate else record.status.replace("_", " ")
        why = f": {record.error}" if record.error and record.status is Status.FAILED else ""
        self._progress.say(self._work.name, progress_text(self._work, run, f"{result}{why}"))
        if is_completed:
            self._progress.update(self._work.name, images_per_s=rate)

    def _fetch_stored(self, stored: SealedRun) -> None:
        """Fetch a bundle that is in the store already.

        Failed runs stay missing, and so do runs whose bundle is damaged, or is labelled as another run.
        """
        try:
            sealed = self._fetched(stored.run_id)
            why = why_other_labels({STATUS_LABEL: stored.status, KEY_LABEL: stored.run_key}, sealed.document)
            if why:
                self._mislabelled.add(stored.run_id)
            elif sealed.record.status in FINAL:
                self._work.take(sealed.record, sealed.path)
        except BundleError as error:
            why = str(error)
        except RooflaunchError as error:
            self._progress.say(self._work.name, f"{stored.run_id} could not be collected: {error}")
            return
        if why:
            self._work.lose(stored.run_key)
            self._say_damaged(stored.run_id, why)

    def _fetched(self, run_id: str) -> Bundle:
        """Fetch a bundle unless the folder has it, and read its record. Raises `RooflaunchError` if either fails."""
        is_here = (self._output / run_id / bundle.MANIFEST).is_file()
        sealed = bundle.read(self._output / run_id) if is_here else fetched(self._store, run_id, self._output, jobs=1)
        _ = sealed.record
        return sealed


class RentedPlace:
    """Machines of one place. `was_killed`: an earlier process worked on this sweep in this folder, and has ended."""

    def __init__(
        self,
        work: PlaceWork,
        backend: Backend,
        *,
        sweep: str,
        output: Path,
        control: Control,
        progress: Progress,
        budget: Budget,
        sleep: Callable[[float], None] | None = None,
        is_busy_elsewhere: Callable[[], bool] = lambda: False,
        was_killed: bool = False,
    ) -> None:
        self.work, self._backend, self._sweep, self._output = work, backend, sweep, output
        self._control, self._progress, self._budget, self._was_killed = control, progress, budget, was_killed
        self._sleep, self._is_busy_elsewhere = sleep or control.wait, is_busy_elsewhere
        self.place = work.plan.place
        # Separate threads, because submissions may take minutes and bundles are large: neither may delay a poll.
        self._readers, self._submitters, self._fetchers = Workers(AT_A_TIME), Workers(AT_A_TIME), Workers(AT_A_TIME)
        self._launches: list[TaskLaunch] = []
        self._waiting: list[Task] = []
        self._in_vain: dict[int, int] = {}
        self._session: Session | None = None
        self._settings: Any = None
        # Plan of the first launch, which prepared the place for all launches; None before the first.
        self._prepared: Plan | None = None
        self._last_launch_s = 0.0
        self._noun = "machine"
        # The last refusal for lack of capacity, and whether a machine has ended since.
        self._refusal: NoCapacityError | None = None
        self._freed = False

    @property
    def usd(self) -> float | None:
        """Cost of all machines so far, in USD; None if no cost is known."""
        known = [launch.usd for launch in self._launches if launch.usd is not None]
        return sum(known) if known else None

    def report(self) -> None:
        """Note in the place's work what the machines have cost, their uploads, and the number of requests by kind."""
        ended = ((launch.request, launch.result) for launch in self._launches if launch.result)
        self.work.uploads = [launches.upload_of(request, result.zone, result.phases) for request, result in ended]
        self.work.usd, self.work.calls = self.usd, dict(self._session.machines.calls) if self._session else {}

    @property
    def _connected(self) -> Session:
        assert self._session is not None
        return self._session

    @property
    def is_busy(self) -> bool:
        """Whether the place has a machine, or has requested one."""
        return bool(self._under_way())

    def run(self) -> None:
        """Work until each run has a result or a reason for its failure, or until the user leaves.

        An error of the place ends this place alone.
        """
        try:
            self._connect()
            self._adopt_earlier()
            adopted = {run.run_key for launch in self._under_way() for run in launch.task.runs}
            self._waiting = list(self.work.open_tasks(adopted))
            while True:
                self._work_off()
                if self._control.why_not or not self.work.add_blocks():
                    break
                if decision := self.work.decision:
                    self._say(decision.reason)
                self._waiting = list(self.work.open_tasks())
            self._show(self._control.why_not or "done")
        except RooflaunchError as error:
            runs = self.work.remaining(self.work.runs)
            self.work.fail(runs, why=str(error), hint=error.hint, code=error.exit_code)
            self._show(str(error))
            self._say(f"{error}; to solve this: {error.hint}")
            running = [launch.name for launch in self._under_way() if launch.machine is not None]
            if running:
                self._say(f"still running: {', '.join(running)}; the same command follows them")
        finally:
            for workers in (self._readers, self._submitters, self._fetchers):
                workers.close()

    def _say(self, text: str) -> None:
        self._progress.say(self.place.name, text)

    def _work_off(self) -> None:
        while self._control.wish < Wish.LEAVE:
            self._start_waiting()
            self._collect_submitted()
            if not (self._under_way() or self._waiting):
                return
            self._show()
            self._sleep(self._watch.pause_s(self._connected.now_s() - self._last_launch_s))
            self._poll()
        if self._control.wish is Wish.STOP:
            self._stop_all()

    def _under_way(self) -> list[TaskLaunch]:
        return [launch for launch in self._launches if not (launch.is_over and launch.is_settled)]

    # Methods that are called before the first machine is requested.

    def _connect(self) -> None:
        self._settings = self._backend.settings(self.place.where, self.place.options)
        machines, store = self._backend.machines(self._settings), self._backend.store(self._settings)
        self._session = Session(
            machines=machines,
            store=store,
            sleep=self._sleep,
            on_event=lambda event: self._say(event.text) if event.kind == "note" else None,
        )
        self._noun = machines.noun
        self._watch = Watch(self._session, run_all=self._readers.run_all)
        self._script_files = self.place.script.script_files if self.place.script else None
        self._launcher = Launcher(self._session, output=self._output, script_files=self._script_files)
        self._collector = Collector(self.work, store, self._output, self._progress, self._fetchers)

    def _adopt_earlier(self) -> None:
        self._show("checks what is done")
        watch.erase_variables(self._connected.store, self._connected.machines)
        self._collector.fetch_sealed()
        # A launch under way has a request, and no result.
        parts = [stored.name.removeprefix(LAUNCHES).split("/") for stored in self._connected.store.objects(LAUNCHES)]
        have = {(part[0], part[1]) for part in parts if len(part) == 2}  # noqa: PLR2004 - a launch, and its record
        requested = sorted({name for name, record in have if record == "request.json"})
        names = [name for name in requested if (name, "result.json") not in have]
        read = self._readers.run_all([partial(self._read_request, name) for name in names])
        adopted = [launch for launch in read if launch is not None]
        self._launches += adopted
        self._poll()
        for launch in adopted:
            if launch.liveness is Liveness.REQUESTED and self._was_killed:
                # The submitting process died: submit again under the same name.
                self._submit_again(launch)
                self._say(f"'{launch.name}' was requested but never started: requesting it again")
            elif not launch.is_over:
                self._say(f"'{launch.name}' of an earlier start is still running: following it")

    def _read_request(self, name: str) -> TaskLaunch | None:
        request = launches.read(self._connected.store, request_object(name), Request.from_bytes, [])
        if request is None or request.name != name or request.task.get("job") != self._sweep:
            return None
        try:
            task = request.work
        except UsageError:
            return None
        if not any(self.work.has(run.run_key) for run in task.runs):
            return None
        return TaskLaunch(task=task, request=request, zones=tuple(request.zones), is_ours=False)

    # Launching.

    def _may_start(self) -> bool:
        """Whether to submit the waiting tasks now. After a refusal for lack of capacity, a machine must end first."""
        if self._control.why_not:
            self._waiting = []
        if self._waiting and self._refusal is not None:
            if self._under_way() or self._is_busy_elsewhere():
                return False
            if not self._freed:
                self._fail(self._waiting, str(self._refusal), self._refusal.hint, self._refusal.exit_code)
                self._waiting = []
            self._refusal = None
        return bool(self._waiting)

    def _start_waiting(self) -> None:
        if not self._may_start():
            return
        tasks, self._waiting = self._waiting, []
        planned: list[tuple[TaskLaunch, Plan]] = []
        for index, task in enumerate(tasks):
            self._budget.expect(self.place.name, len(tasks) - index)
            remaining = replace(task, runs=self.work.remaining(task.runs))
            if not remaining.runs:
                continue
            try:
                plan = self._plan(remaining)
                self._budget.reserve(plan)
                launch = TaskLaunch(task=remaining, request=plan.request, zones=tuple(plan.request.zones))
                planned.append((launch, plan))
            except RooflaunchError as error:
                why = str(error)
                if isinstance(error, UsageError) and (share_usd := self._budget.share_usd) is not None:
                    why += f" (a machine's share of the sweep's --max-cost is {share_usd:.2f} USD)"
                self._fail([remaining], why, error.hint, error.exit_code)
        self._budget.expect(self.place.name, 0)
        self._launches += [launch for launch, _ in planned]
        self._submit(planned)
        self._last_launch_s = self._connected.now_s()

    def _plan(self, task: Task) -> Plan:
        options, session = self.place.options, self._connected
        share = self._budget.share_usd
        if share is not None and "max_cost_usd" in {item.name for item in fields(options)}:
            own = options.max_cost_usd
            options = replace(options, max_cost_usd=share if own is None else min(own, share))
        resolved = Resolved(spec=replace(task.runs[0].spec, repeats=1), origin=self.work.plan.origin)
        job = Job(resolved=resolved, token=secrets.token_hex(3), task=task)
        now = datetime.fromtimestamp(session.now_s(), UTC)
        draft = self._backend.plan(job, options, self._settings, now=now)
        if self._prepared is None:
            if self._script_files:
                draft = draft.renamed(replace(draft.request, script=self._script_files.facts()))
            self._prepared = prepared(self._backend, draft, session.machines, self._script_files)
            return self._prepared
        own_fields = {name: getattr(draft.request, name) for name in TASK_FIELDS}
        return self._prepared.renamed(replace(self._prepared.request, **own_fields))

    def _submit(self, planned: Sequence[tuple[TaskLaunch, Plan]]) -> None:
        """Record and submit launches, in one request if the place supports this, in threads: it may take minutes."""
        together = getattr(self._connected.machines, "submit_together", None)
        if together is not None and len(planned) > 1:
            future = self._submitters.submit(self._submit_together, planned, together)
            for launch, _ in planned:
                launch.submitting = future
            return
        for launch, plan in planned:
            launch.submitting = self._submitters.submit(self._submit_one, launch, plan)

    def _submit_again(self, launch: TaskLaunch) -> None:
        if self._prepared is None:
            self._plan(launch.task)
        assert self._prepared is not None
        launch.is_ours = True
        plan = self._prepared.renamed(launch.request)
        launch.submitting = self._submitters.submit(self._submit_one, launch, plan, is_recorded=True)

    def _submit_one(self, launch: TaskLaunch, plan: Plan, *, is_recorded: bool = False) -> None:
        if not is_recorded:
            self._launcher.record(plan)
        launch.set_machine(self._launcher.submit(plan).machines[0])

    def _submit_together(self, planned: Sequence[tuple[TaskLaunch, Plan]], together: Callable[..., Any]) -> None:
        for _, plan in planned:
            self._launcher.record(plan)
        try:
            for _, plan in planned:
                self._launcher.send_script_files(plan)
            submitted = together([plan for _, plan in planned], self._connected.note)
        except RooflaunchError as error:
            for launch, _ in planned:
                now_s = self._connected.now_s()
                watch.settle(self._connected.store, launch.name, "", error.exit_code, str(error), now_s=now_s)
            raise
        machines: dict[str, Machine] = {machine.name: machine for machine in submitted.machines}
        for launch, _ in planned:
            if launch.name in machines:
                launch.set_machine(machines[launch.name])

    def _collect_submitted(self) -> None:
        """Handle the ended submissions.

        After a refusal for lack of capacity, the task waits; after any other error, its runs count as failed.
        """
        for launch in self._launches:
            future = launch.submitting
            if future is None or not future.done():
                continue
            launch.submitting = None
            error = future.exception()
            if error is None:
                continue
            if not isinstance(error, RooflaunchError):
                raise error
            launch.is_over = launch.is_settled = True
            self._budget.spent(launch.name, 0.0)
            if isinstance(error, NoCapacityError):
                if self._refusal is None:
                    self._say(f"{error}; further machines wait until another has ended")
                self._refusal, self._freed = error, False
                self._waiting.append(launch.task)
            else:
                self._fail([launch.task], str(error), error.hint, error.exit_code)

    def _fail(self, tasks: Collection[Task], why: str, hint: str, code: int) -> None:
        runs = self.work.remaining(run for task in tasks for run in task.runs)
        self.work.fail(runs, why=why, hint=hint, code=code)
        if runs:
            self._say(f"{counted(len(runs), 'run')} left out: {why}")

    # Polling.

    def _poll(self) -> None:
        watched = [launch for launch in self._under_way() if launch.submitting is None]
        if not watched:
            return
        with self._watch.outlasting(watched):
            self._watch.poll(watched)
            now_s = self._connected.now_s()
            if stale := [launch for launch in watched if launch.must_be_removed(now_s)]:
                self._watch.remove(stale)
            for launch in watched:
                self._collector.fetch_announced(launch)
                self._note_end(launch, now_s)
            self._settle([launch for launch in watched if launch.ended_s is not None and not launch.is_settled])
        for launch in watched:
            if launch.liveness is Liveness.GIVEN_UP:
                launch.is_over = launch.is_settled = True
                self._fail([launch.task], f"the {self._noun} {launch.why}", launch.hint, ExitCode.TOOL)

    def _note_end(self, launch: TaskLaunch, now_s: float) -> None:
        if launch.is_over:
            return
        seen = Seen(name=launch.name, request=launch.request, result=launch.result, machine=launch.machine)
        if (cost := launches.cost_of(seen, now_s)) is not None:
            launch.usd = cost.usd
        if not launch.has_ended or launch.liveness is Liveness.GIVEN_UP:
            return
        launch.ended_s = launch.ended_s or now_s
        launch.is_over = launch.is_gone
        if launch.is_over:
            self._freed = True
            self._budget.spent(launch.name, launch.usd)
            if launch.result is None:
                self._fetchers.submit(settle_watched, self._connected, launch, f"the {self._noun} {launch.why}")

    # Missing runs.

    def _settle(self, ended: Sequence[TaskLaunch]) -> None:
        """Handle ended launches whose bundles are fetched: request another machine for their missing runs."""
        ready = [launch for launch in ended if self._collector.is_collected(launch)]
        # A machine may have sealed a bundle after its last heartbeat.
        if any(launch.result is None and self.work.remaining(launch.task.runs) for launch in ready):
            lost = [launch for launch in ready if launch.result is None]
            self._collector.fetch_sealed({run.run_key for launch in lost for run in launch.task.runs})
        for launch in ready:
            launch.is_settled = True
            if remaining := self.work.remaining(launch.task.runs):
                self._requeue(launch, remaining)

    def _requeue(self, launch: TaskLaunch, runs: tuple[TaskRun, ...]) -> None:
        """Queue again, for another machine, the runs that a launch did not complete.

        The runs fail instead after a usage error, or if `MOST_IN_VAIN` machines in a row completed none of them.
        """
        result, number = launch.result, launch.task.number
        why = (result.error or "it ended before") if result else f"the {self._noun} {launch.why}"
        made_progress = len(runs) < len(launch.task.runs)
        in_vain = self._in_vain[number] = 0 if made_progress else self._in_vain.get(number, 0) + 1
        task = replace(launch.task, runs=runs)
        is_hopeless = result is not None and result.exit_code == ExitCode.USAGE
        if is_hopeless or in_vain >= MOST_IN_VAIN:
            hint = (result.hint if result else "") or f"launch logs {launch.name}"
            tries = "" if is_hopeless else f" ({counted(in_vain, 'machine')} in a row had no result)"
            code = result.exit_code if result and result.exit_code else ExitCode.RUN_FAILED
            self._fail([task], f"{why}{tries}", hint.replace("launch logs RUN", f"launch logs {launch.name}"), code)
            return
        self._waiting.append(task)
        if not self._control.why_not:
            remedy = f"another {self._noun} runs the remaining {counted(len(runs), 'run')}"
            self._say(f"'{launch.name}': {why}; {remedy}")

    # The end.

    def _stop_all(self) -> None:
        for launch in self._under_way():
            if launch.submitting is not None and launch.submitting.exception() is not None:
                launch.is_over = True
        running = {launch.name: launch for launch in self._under_way() if launch.machine and not launch.is_over}
        removals = self._connected.machines.stop([launch.machine for launch in running.values() if launch.machine])
        now_s = self._connected.now_s()
        gone = [removal for removal in removals if removal.gone]
        for removal in gone:
            running[removal.name].is_over = running[removal.name].is_settled = True
            error = f"the launch's {self._noun} was ended together with the sweep, by Ctrl-C"
            store = self._connected.store
            watch.settle(store, removal.name, removal.zone, ExitCode.INTERRUPTED, error, now_s=now_s)
        self._say(f"{counted(len(gone), self._noun)} ended")
        self._collector.fetch_sealed({run.run_key for launch in self._launches for run in launch.task.runs})
        watch.require_gone(removals)

    def _show(self, now: str = "") -> None:
        under_way = self._under_way()
        running = [launch for launch in under_way if launch.heartbeat is not None and not launch.result]
        starting = [launch for launch in under_way if launch.heartbeat is None and not launch.result]
        words = f"{counted(len(running), self._noun)} at work" if running else ""
        if len(running) == 1 and running[0].heartbeat and running[0].heartbeat.last_line:
            words = launches.plain(running[0].heartbeat.last_line)
        words = ", ".join(filter(None, (words, f"{len(starting)} starting" if starting else "")))
        left_s: float | None = None
        if self.work.to_do and self.work.new_runs and running:
            # At the rate of the runs that have ended.
            first_s = min(epoch_s(launch.request.launched_at) or 0.0 for launch in self._launches)
            left_s = (self._connected.now_s() - first_s) / self.work.new_runs * self.work.to_do
        self._progress.update(
            self.place.name,
            **self.work.counts(),
            usd=self.usd,
            left_s=left_s,
            now=now or words or (str(self._refusal) if self._refusal else ""),
        )

"""Work of a rented machine for a launch: do the requested runs, upload their bundles, and report the result.

A second start for the same launch uploads the bundles that the first start has left. In a launch with several runs, the
second start then does the missing runs, if there is time.
"""

import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from launcher.agent.home import Home, HostFacts, WorkEnd, iso
from launcher.agent.lease import CostShares, Delivery, HeartbeatWriter, Stop, Why
from launcher.duel.referee import Losses
from launcher.machine import local
from launcher.machine.containers import DRIVER_PARAMETERS, ContainerLimits
from launcher.machine.runtime import Workplace, choose
from launcher.machine.task import FINAL, End, Outcome, work_through
from launcher.machine.watcher import Printed, Trainer, Watcher
from launcher.protocol import records
from launcher.protocol.records import LaunchPhase, Request, Result, Task, epoch_s
from launcher.script import files as script_files
from launcher.tune import report, session
from launcher.tune.evidence import FILE
from launcher.tune.tune import Row
from launcher.values import Runtime
from workload.contract import bundle
from workload.contract.errors import (
    BundleError,
    ExitCode,
    InterruptedRunError,
    RooflaunchError,
    RunFailedError,
    UsageError,
)
from workload.contract.record import Status
from workload.contract.script_words import HIDDEN
from workload.contract.spec import Resolved, RunSpec
from workload.contract.text import counted
from workload.contract.trainer import Context
from workload.environment.cloud import outside_facts
from workload.environment.machine import HostSystem
from workload.storage.address import is_bucket
from workload.storage.inventory import SealedRun, sealed_runs
from workload.storage.store import Store

ROOT = Path("/")
# Time to seal a bundle and to upload it before the machine is deleted.
MARGIN_S = 90.0
# Give up a run that was broken off this often: the run itself may be the cause.
MOST_BROKEN_OFF = 2
# Option that sets the time limit, by backend.
USUAL_LIMIT_FLAG, LIMIT_FLAGS = "--max-run-time", {"slurm": "--time"}
BROKEN_OFF = "the job was broken off: its machine was restarted, or its processes were killed"
# A shorter value of --env, such as `INFO`, is no secret, and would hide other words of a log.
SHORTEST_SECRET = 8
# Time limit of a start that only saves bundles.
SAVING_S = 600.0


class Agent:
    """Does one launch on this machine; `root`: folder at which the machine's file system is mounted.

    `is_lost`: returns whether another agent has taken over the launch; if so, this agent stops.
    """

    def __init__(
        self,
        request: Request,
        host: HostFacts,
        store: Store,
        home: Path,
        *,
        root: Path = ROOT,
        now: Callable[[], float] = time.time,
        stop: Stop | None = None,
        is_lost: Callable[[], bool] = lambda: False,
    ) -> None:
        self.request, self.host, self.store, self.zone = request, host, store, host.zone
        self.home, self.root, self.now, self.stop = Home(path=home), root, now, stop or Stop()
        self.heartbeats = HeartbeatWriter(
            request.name,
            self.zone,
            home=self.home,
            host=host,
            store=store,
            now=now,
            is_lost=is_lost,
            on_lost=lambda: self.stop.ask(Why.TAKEN_OVER),
        )
        # Costs begin when the machine is requested or, if the cloud does not tell the time of the request, at the boot.
        self._created_s = host.created_s()
        booted_s = epoch_s(self.home.phases().get(LaunchPhase.BOOTED)) or now()
        self.costs = CostShares(min(self._created_s or booted_s, booted_s))
        self.delivery = Delivery(
            request, self.zone, home=self.home, store=store, costs=self.costs, stop=self.stop, now=now
        )
        # What the trainer of the current run has printed, and the run's number, as `run 2 of 3: `.
        self._printed = Printed()
        self._run_number = ""
        # Lines of the values of --env.
        self._secrets: list[str] = []
        # Number of bundles that belong to ended runs.
        self._settled = 0

    def work(self) -> Result:
        """Do the whole launch and write its result into the store, even after a bug of ours.

        No result is written if another agent has taken over, or if the launch resumes after a preemption.
        """
        with ThreadPoolExecutor(max_workers=1) as uploads:
            with self.heartbeats.beating(), self._watched():
                ended = self._guarded(lambda: self._run_or_save(uploads))
            self.stop.close()
            ended = self._explained(ended)
            if self.heartbeats.is_lost:
                # Another agent now writes the launch's records; this agent only uploads the bundles measured here.
                return self._result(self._guarded(lambda: self._deliver_all(ended)))
            # A preempted launch that is started again is not over: it then does the missing runs.
            was_preempted = self.stop.why is Why.PREEMPTED and ended.exit_code != ExitCode.DONE
            comes_back = was_preempted and self.host.comes_back()
            if not comes_back:
                ended = self._guarded(lambda: self.home.note_ended(ended))
            with self.heartbeats.beating():
                ended = self._guarded(lambda: self._deliver_all(ended))
        if self.delivery.is_complete:
            self.heartbeats.enter(LaunchPhase.UPLOADED)
        self.heartbeats.enter(LaunchPhase.FINISHED)
        result = self._result(ended)
        if not (comes_back or self.heartbeats.is_lost):
            if self.request.script.get("env"):
                self.store.write(records.variables_object(self.request.name), records.NO_VARIABLES, is_private=True)
            # An existing result is kept. Only a start that saves bundles replaces the result that the launcher wrote.
            if_absent = not self.home.only_saves()
            self.store.write(records.result_object(self.request.name), result.to_bytes(), if_absent=if_absent)
        return result

    def _guarded(self, part: Callable[[], WorkEnd]) -> WorkEnd:
        try:
            return part()
        except RooflaunchError as error:
            print(error.report(), file=sys.stderr, flush=True)
            return WorkEnd.of_error(error)
        except Exception as bug:  # noqa: BLE001 - it is printed, and the machine must come to its end
            traceback.print_exc()
            message = f"{type(bug).__name__}: {bug}"
            return WorkEnd(exit_code=ExitCode.BUG, error=message, hint="startup.log has the traceback: launch logs RUN")

    def _run_or_save(self, uploads: ThreadPoolExecutor) -> WorkEnd:
        if self.home.only_saves():
            self.delivery.take_up()
            return self.home.ended() or self._recorded_end()
        if self.home.has_begun():
            self.delivery.take_up()
            if ended := self.home.ended():
                return ended
            if not (self.request.task or self.host.comes_back()):
                raise RunFailedError(BROKEN_OFF, hint="launch logs RUN; then launch again")
            # Bundles that cannot be uploaded now are tried again at the end.
            self.delivery.deliver_all(BROKEN_OFF)
        else:
            self.home.note_begun()
        return self._tune() if self.request.tuning else self._work_through(self.request.work, uploads)

    def _tune(self) -> WorkEnd:
        """Tune the script. Each bundle is uploaded as its run ends, and what is proved after each decision."""
        asked, workplace, outside = self.request.tuning, self._workplace(), self._outside()
        base, rows = RunSpec.from_json(self.request.spec), list[Row]()

        def plan_of(words: Sequence[str], change: str | None, ceilings: bool) -> local.LocalPlan:
            spec = replace(base, script=tuple(words), change=change, ceilings=ceilings)
            return self._plan(spec, Context(keeps_losses=True), outside, workplace)

        def on_run(folder: Path) -> None:
            self.costs.charge(folder, self.now())
            with suppress(RooflaunchError):  # `deliver` has printed the error; the bundle is tried again at the end
                self.delivery.deliver(folder)

        def show(row: Row) -> None:
            rows.append(row)
            print(report.line(row), flush=True)
            self._send_tuning(rows)

        tuned = session.tune(
            session.Asked(
                words=base.script,
                folder=workplace.folder,
                output=self.home.output,
                plan_of=plan_of,
                margin=asked["margin"],
                max_time_s=min(asked["max_time_s"], self._deadline_s() - self.now()),
                losses=Losses(asked["losses"]),
                tries=tuple(asked["tries"]),
                watcher=self._watcher(0, 0),
                on_run=on_run,
            ),
            tell=self._hear,
            show=show,
        )
        self._send_tuning(tuned.rows, tuned)
        self.heartbeats.enter(LaunchPhase.RUN_ENDED)
        return WorkEnd.of_error(tuned.interrupted) if tuned.interrupted else WorkEnd(exit_code=ExitCode.DONE)

    def _send_tuning(self, rows: Sequence[Row], tuned: report.Tuned | None = None) -> None:
        """Write evidence, rows and, at the end, the patch of a tuning into the store."""
        files = {records.TUNED: report.sent(rows, tuned), FILE: (self.home.output / FILE).read_bytes()}
        if tuned and tuned.patch_file:
            files[tuned.patch_file.name] = tuned.patch_file.read_bytes()
        with suppress(RooflaunchError):  # the next decision, or the end of the tuning, writes them again
            for name, content in files.items():
                self.store.write(records.tuning_object(self.request.name, name), content)

    def _recorded_end(self) -> WorkEnd:
        with suppress(BundleError):  # raised for an unreadable result
            if (content := self.store.read(records.result_object(self.request.name))) is not None:
                result = Result.from_bytes(content)
                return WorkEnd(exit_code=result.exit_code, error=result.error, hint=result.hint)
        return WorkEnd(exit_code=RunFailedError.exit_code, error=BROKEN_OFF, hint="launch logs RUN; then launch again")

    def _work_through(self, task: Task, uploads: ThreadPoolExecutor) -> WorkEnd:
        broken_off = self._broken_off()
        outcomes = [
            Outcome(run=run, number=number, end=End.NOT_STARTED, why=f"the run was interrupted {MOST_BROKEN_OFF} times")
            for number, run in enumerate(task.runs, 1)
            if run.run_key and broken_off[run.run_key] >= MOST_BROKEN_OFF
        ]
        given_up = [outcome.run for outcome in outcomes]
        rest = replace(task, runs=tuple(run for run in task.runs if run not in given_up))
        deadline_s, outside = self._deadline_s(), self._outside()
        workplace = self._workplace() if self.request.script else None
        deliveries: list[Future[None]] = []
        self._settled = len(self.delivery.folders)
        for outcome in work_through(
            rest,
            lambda spec, context: self._plan(spec, context, outside, workplace),
            done=self._in_store(rest),
            time_left_s=lambda: deadline_s - self.now(),
            stopped=lambda: self._reason(self.stop.why)[0] if self.stop.why else "",
            watcher_of=lambda number, _: self._watcher(number, len(rest.runs)),
            now_s=self.now,
        ):
            is_last = outcome.number == len(rest.runs)
            deliveries += self._settle(outcome, uploads, is_last=is_last)
            if outcome.was_started and outcome.end is not End.COMPLETED and not outcome.hint:
                # Without a record the trainer's own message tells more than its exit code.
                why = self._printed.message("error") or outcome.why
                hint = self._printed.message("hint") or "launch logs RUN"
                outcome = replace(outcome, why=why, hint=hint)  # noqa: PLW2901 - the same outcome, with more to tell
            outcomes.append(outcome)
            if len(task.runs) > 1:
                why = f": {outcome.why}" if outcome.why else ""
                print(f"run {outcome.number} of {len(rest.runs)}: {outcome.end}{why}", flush=True)
        if LaunchPhase.RUN_STARTED in self.home.phases():
            is_profiled = LaunchPhase.PROFILE_STARTED in self.home.phases()
            self.heartbeats.enter(LaunchPhase.PROFILE_ENDED if is_profiled else LaunchPhase.RUN_ENDED)
        for delivery in deliveries:
            with suppress(RooflaunchError):  # `deliver` has printed the error; the bundle is tried again at the end
                delivery.result()
        return self._end_of(task, outcomes)

    def _workplace(self) -> Workplace:
        workplace = script_files.unpack(self.request, self.store, self.home.path)
        lines = {line for value in workplace.variables.values() for line in value.splitlines()}
        self._secrets = sorted((line for line in lines if len(line) >= SHORTEST_SECRET), key=len, reverse=True)
        return replace(workplace, data=data_of(self.request, self.home, self.root, lambda: self.stop.why is not None))

    def _in_store(self, task: Task) -> dict[str, str]:
        keys = {run.run_key for run in task.runs} - {""}
        if not keys:
            return {}
        done: dict[str, str] = {}
        final = sealed_runs(self.store, compared=lambda run: _is_final(run, keys), by_content=True)
        for sealed in (run for run in final if _is_final(run, keys)):
            if sealed.damage:
                print(f"'{sealed.run_id}' in {self.store} is damaged: {sealed.damage}; it runs again", flush=True)
            else:
                done[sealed.run_key] = sealed.status
        return done

    def _broken_off(self) -> Counter[str]:
        """Number of failed or interrupted attempts on this machine, by run_key.

        Attempts that ran out of memory or were preempted do not count.
        """
        keys = Counter[str]()
        for folder in self.delivery.folders:
            with suppress(BundleError):
                record = bundle.read(folder).record
                keys[record.run_key or ""] += record.status not in (*FINAL, Status.PREEMPTED)
        return keys

    def _settle(self, outcome: Outcome, uploads: ThreadPoolExecutor, *, is_last: bool) -> list[Future[None]]:
        """Charge a started run for its time, and upload its bundle in the background; return the uploads.

        The last bundle, and every bundle after a stop, is left for the upload at the end of the work.
        """
        if not outcome.was_started:
            return []
        folders = self.delivery.folders
        if outcome.bundle and outcome.bundle.path not in folders:  # made here: the trainer ended without a bundle
            folders.append(outcome.bundle.path)
        own = folders[self._settled :]
        self._settled = len(folders)
        for folder in own:
            self.costs.charge(folder, self.now())
        if is_last or self.stop.why:
            return []
        return [uploads.submit(self.delivery.deliver, folder, outcome.why) for folder in own]

    def _end_of(self, task: Task, outcomes: Sequence[Outcome]) -> WorkEnd:
        """End of the whole task: exit code 0 if no run is missing.

        If runs are missing, error and hint are those of the first missing run that was started or, if no missing run
        was started, of the first missing run. In a sweep, a run that ran out of memory is not missing.
        """
        settled = {End.COMPLETED, End.SKIPPED, *([End.OUT_OF_MEMORY] if task.job else [])}
        # A completed run may have been interrupted during its profile.
        missing = [item for item in outcomes if item.end not in settled or item.code == ExitCode.INTERRUPTED]
        if not missing:
            return WorkEnd(exit_code=ExitCode.DONE)
        first = next((outcome for outcome in missing if outcome.was_started), missing[0])
        code = first.code if first.was_started else RunFailedError.exit_code
        if not task.job and first.was_started:
            return WorkEnd(exit_code=code, error=first.why, hint=first.hint)
        timed_out = not first.was_started and first.out_of_time
        why = f"the launch reached its time limit of {self.request.limit_s} s" if timed_out else first.why
        error = f"{len(missing)} of {counted(len(task.runs), 'run')} are missing: {why}"
        hint = first.hint or ("a longer --max-run-time" if timed_out else "launch logs RUN")
        return WorkEnd(exit_code=code, error=error, hint=hint, timed_out=timed_out)

    def _plan(
        self, spec: RunSpec, context: Context, outside: Mapping[str, Mapping[str, Any]], workplace: Workplace | None
    ) -> local.LocalPlan:
        spec = spec.checked()
        if spec.download:  # the user's data folder does not exist on this machine
            spec = replace(spec, data_dir=str(self.home.data))
        runtime = Runtime(self.request.runtime)
        # With runtime process, any image is the one in which this agent already runs, so no image is named here.
        image = self.request.image if runtime is Runtime.DOCKER else ""
        plan = local.make_plan(
            Resolved(spec=spec, origin=self.request.spec_origin),  # type: ignore[arg-type] # a StrEnum's values
            choose(runtime, spec, image=image or None),
            output=self.home.output,
            limits=ContainerLimits(),
            outside=outside,
            backend=self.request.backend,
            place="-".join(filter(None, (self.request.place, self.zone))),
            driver_parameters=self.root / DRIVER_PARAMETERS.relative_to("/"),
            context=context,
            workplace=workplace,
            gpu_index=self.request.options.get("gpu_index"),
        )
        print(plan.text(), flush=True)
        return plan

    def _outside(self) -> dict[str, Mapping[str, Any]]:
        facts: dict[str, Mapping[str, Any]] = dict(outside_facts(HostSystem(root=self.root)))
        if cloud := {**facts.get("cloud", {}), **self.host.facts(self.request)}:
            facts["cloud"] = cloud
        return facts

    def _watcher(self, number: int, count: int) -> Watcher:
        """Watcher of run `number` of `count`, which records the phases of the whole task.

        The profile pass is a phase of its own only in a task of one run.
        """
        self._printed.clear()
        self._run_number = f"run {number} of {count}: " if count > 1 else ""

        passes: list[Trainer] = []

        def started(trainer: Trainer) -> None:
            passes.append(trainer)
            if LaunchPhase.RUN_STARTED not in self.home.phases():
                self.heartbeats.enter(LaunchPhase.RUN_STARTED)
            elif len(passes) > 1 and count == 1:
                self.heartbeats.enter(LaunchPhase.RUN_ENDED)
                self.heartbeats.enter(LaunchPhase.PROFILE_STARTED)
            self.stop.started(trainer)

        return Watcher(
            on_message=self._hear, on_bundle=self.delivery.folders.append, on_started=started, on_ended=self.stop.ended
        )

    def _hear(self, line: str) -> None:
        for secret in self._secrets:
            line = line.replace(secret, HIDDEN)
        print(line, file=sys.stderr, flush=True)
        self.heartbeats.last_line = f"{self._run_number}{line}"
        self._printed.append(line)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Context in which the run is stopped in time if the machine is being taken away, or is about to be deleted."""

        def await_preemption() -> None:
            if self.host.await_preemption(self.stop.is_over):
                self.stop.ask(Why.PREEMPTED)

        threading.Thread(target=await_preemption, daemon=True).start()
        timer = threading.Timer(max(0.0, self._deadline_s() - self.now()), self.stop.ask, [Why.TIMED_OUT])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _deadline_s(self) -> float:
        """Time when the run must end, in seconds since 1970: shortly before the machine is deleted.

        The margin is `MARGIN_S`, or a quarter of a short time limit. If the provider does not tell when it deletes the
        machine, the time limit counts from the machine's creation. A start that only saves bundles has `SAVING_S` from
        now.
        """
        if self.home.only_saves():
            return self.now() + SAVING_S
        deleted_s = self.host.deleted_s() or (self._created_s or self.costs.began_s) + self.request.limit_s
        return deleted_s - min(MARGIN_S, self.request.limit_s / 4)

    def _explained(self, ended: WorkEnd) -> WorkEnd:
        """End of the work. If the run was stopped, the reason (such as a preemption) replaces the trainer's error."""
        if self.stop.why is Why.ASKED and self.host.is_preempted():
            self.stop.ask(Why.PREEMPTED)
        if self.stop.why is None or ended.exit_code == ExitCode.DONE:
            return ended
        error, hint = self._reason(self.stop.why)
        is_interrupted = self.stop.why in (Why.ASKED, Why.TAKEN_OVER)
        code = InterruptedRunError.exit_code if is_interrupted else RunFailedError.exit_code
        return WorkEnd(exit_code=code, error=error, hint=hint)

    def _reason(self, why: Why) -> tuple[str, str]:
        match why:
            case Why.PREEMPTED:
                if not self.request.spot:
                    return f"the machine was taken away (preempted) in {self.zone}", "launch again"
                error = f"the spot VM was taken away (preempted) in {self.zone}"
                return error, "--rerun-preempted 1, or leave --spot out"
            case Why.TIMED_OUT:
                error = f"the launch reached its time limit of {self.request.limit_s} s"
                return error, "a longer --max-run-time (--time on Slurm), or fewer --iterations"
            case Why.ASKED:
                return "the machine was asked to stop", "launch again"
            case Why.TAKEN_OVER:
                return "another agent has taken the launch over", "launch status RUN"

    def _deliver_all(self, ended: WorkEnd) -> WorkEnd:
        failed = self.delivery.deliver_all(ended.error)
        if failed and ended.exit_code == ExitCode.DONE:
            raise failed
        return ended

    def _result(self, ended: WorkEnd) -> Result:
        now_s = self.now()
        return Result(
            exit_code=ended.exit_code,
            zone=self.zone,
            runs=self.home.uploaded(),
            phases=self.home.phases(),
            ended_at=iso(now_s),
            error=ended.error,
            hint=ended.hint,
            preempted=self.stop.why is Why.PREEMPTED,
            timed_out=ended.timed_out or self.stop.why is Why.TIMED_OUT,
            usd=self.costs.usd(self.request.price(self.zone), now_s),
            billed_from=iso(self.costs.began_s),
        )


def data_of(request: Request, home: Home, root: Path, is_over: Callable[[], bool]) -> str:
    """Path of the data of a user's script, copied from a bucket if need be; empty without data.

    Raises `UsageError` if a path does not exist below the file system at `root`, and the errors of `fetch_data`.
    """
    data = str(request.script.get("data", ""))
    if is_bucket(data):
        print(f"copying {data}", flush=True)
        script_files.fetch_data(data, home.data / "script", is_over=is_over)
        return str(home.data / "script")
    if data and not (root / data.lstrip("/")).exists():
        raise UsageError(f"no data at '{data}' on this machine", hint="--data with a path that exists")
    return data


def _is_final(sealed: SealedRun, keys: Collection[str]) -> bool:
    return sealed.run_key in keys and sealed.status in FINAL

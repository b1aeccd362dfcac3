"""What a rented machine does with its request: run, profile, upload, say how it went.

Started a second time for the same launch it saves what the first has left.
"""

import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from launcher.agent.bill import Bill
from launcher.agent.delivery import Delivery
from launcher.agent.home import Home, WorkEnd, epoch_s, iso
from launcher.agent.landlord import Landlord
from launcher.agent.pulse import Pulse
from launcher.agent.stop import Stop, Why
from launcher.jobs import records
from launcher.jobs.records import LaunchPhase, Request, Result
from launcher.kinds import Runtime
from launcher.machine import local
from launcher.machine.containers import DRIVER_PARAMETERS, ContainerLimits
from launcher.machine.runtime import choose
from launcher.machine.watcher import Trainer, Watcher
from workload.contract.errors import ExitCode, InterruptedRunError, RooflaunchError, RunFailedError
from workload.contract.spec import Profile, Resolved, RunSpec
from workload.environment.machine import HostSystem
from workload.environment.outside import outside_facts
from workload.storage.store import Store

ROOT = Path("/")
# Enough to seal a bundle and to upload it before the machine is deleted.
MARGIN_S = 90.0


class Agent:
    """One launch on this machine; `root` is where the machine's own root is mounted."""

    def __init__(
        self,
        request: Request,
        landlord: Landlord,
        store: Store,
        home: Path,
        *,
        root: Path = ROOT,
        now: Callable[[], float] = time.time,
        stop: Stop | None = None,
    ) -> None:
        self.request, self.landlord, self.store, self.zone = request, landlord, store, landlord.zone
        self.home, self.root, self.now, self.stop = Home(path=home), root, now, stop or Stop()
        self.pulse = Pulse(request.name, self.zone, home=self.home, landlord=landlord, store=store, now=now)
        # A cloud dates a machine by its insert; where it does not answer, the boot is the first that is known.
        self._created_s = landlord.created_s()
        booted_s = epoch_s(self.home.phases().get(LaunchPhase.BOOTED)) or now()
        self.bill = Bill(min(self._created_s or booted_s, booted_s))
        self.delivery = Delivery(
            request, self.zone, home=self.home, store=store, bill=self.bill, stop=self.stop, now=now
        )
        # The trainer's last `error: …` and `hint: …`.
        self._trainers_words: dict[str, str] = {}

    def work(self) -> Result:
        """Everything, to the result in the store; a bug of ours is a result too."""
        with ThreadPoolExecutor(max_workers=1) as uploads:
            with self.pulse.beating(), self._watched():
                ended = self._guarded(lambda: self._run_or_salvage(uploads))
            self.stop.close()
            ended = self._explained(ended)
            self.home.note_ended(ended)
            with self.pulse.beating():
                ended = self._guarded(lambda: self._deliver_all(ended))
        if self.delivery.is_complete:
            self.pulse.enter(LaunchPhase.UPLOADED)
        self.pulse.enter(LaunchPhase.FINISHED)
        result = self._result(ended)
        if not (result.preempted and ended.exit_code != ExitCode.DONE and self.landlord.comes_back()):
            self.store.write(records.result_object(self.request.name), result.to_bytes(), if_absent=True)
        return result

    def _guarded(self, part: Callable[[], WorkEnd]) -> WorkEnd:
        try:
            return part()
        except RooflaunchError as error:
            print(error.report(), file=sys.stderr, flush=True)
            return WorkEnd.by(error)
        except Exception as bug:  # noqa: BLE001 - it is printed, and the machine must come to its end
            traceback.print_exc()
            message = f"{type(bug).__name__}: {bug}"
            return WorkEnd(exit_code=ExitCode.BUG, error=message, hint="startup.log has the traceback: launch logs RUN")

    def _run_or_salvage(self, uploads: ThreadPoolExecutor) -> WorkEnd:
        if self.home.has_begun():
            self.delivery.folders += self.home.bundles()
            if ended := self.home.ended():
                return ended
            raise RunFailedError(
                "the machine broke off the run and started again", hint="launch logs RUN; then launch again"
            )
        self.home.note_begun()
        return self._run(uploads)

    def _run(self, uploads: ThreadPoolExecutor) -> WorkEnd:
        plan = self._plan()
        print(plan.text(), flush=True)
        folders, has_profile = self.delivery.folders, plan.spec.profile is not Profile.NONE
        deliveries: list[Future[None]] = []

        def begun(folder: Path) -> None:
            # The next repeat is in its set-up: a good time to send the one before, unless the profile goes into it.
            if folders and (len(folders) > 1 or not has_profile):
                deliveries.append(uploads.submit(self.delivery.deliver, folders[-1]))
            elif folders:
                self._charge(folders[-1])
            folders.append(folder)

        outcome = local.run(plan, watcher=self._watcher(begun))
        self.pulse.enter(
            LaunchPhase.PROFILE_ENDED if LaunchPhase.PROFILE_STARTED in self.home.phases() else LaunchPhase.RUN_ENDED
        )
        if folders:
            self._charge(folders[0 if has_profile else -1])
        for delivery in deliveries:
            with suppress(RooflaunchError):  # said; all that is missing is sent again at the end
                delivery.result()
        if outcome.error:
            return WorkEnd.by(outcome.error)
        if outcome.exit_code == ExitCode.DONE:
            return WorkEnd(exit_code=outcome.exit_code)
        words = {"error": f"the trainer ended with exit code {outcome.exit_code}", "hint": "launch logs RUN"}
        return WorkEnd(exit_code=outcome.exit_code, **(words | self._trainers_words))

    def _charge(self, folder: Path) -> None:
        self.bill.charge(folder, self.now())

    def _plan(self) -> local.LocalPlan:
        spec = RunSpec.from_json(self.request.spec).checked()
        if spec.download:  # the user's own folder is none of this machine's
            spec = replace(spec, data_dir=str(self.home.data))
        return local.make_plan(
            Resolved(spec=spec, origin=self.request.spec_origin),  # type: ignore[arg-type] # a StrEnum's values
            choose(Runtime(self.request.runtime), spec, image=self.request.image or None),
            output=self.home.output,
            limits=ContainerLimits(),
            outside=self._outside(),
            backend=self.request.backend,
            place="-".join(filter(None, (self.request.place, self.zone))),
            driver_parameters=self.root / DRIVER_PARAMETERS.relative_to("/"),
        )

    def _outside(self) -> dict[str, Mapping[str, Any]]:
        """Facts of the machine that a container cannot see, those of the landlord among them."""
        facts: dict[str, Mapping[str, Any]] = dict(outside_facts(HostSystem(root=self.root)))
        if cloud := {**facts.get("cloud", {}), **self.landlord.facts(self.request)}:
            facts["cloud"] = cloud
        return facts

    def _watcher(self, begun: Callable[[Path], None]) -> Watcher:
        def started(trainer: Trainer) -> None:
            if LaunchPhase.RUN_STARTED in self.home.phases():
                self.pulse.enter(LaunchPhase.RUN_ENDED)
                self._charge(self.delivery.folders[-1])
                self.pulse.enter(LaunchPhase.PROFILE_STARTED)
            else:
                self.pulse.enter(LaunchPhase.RUN_STARTED)
            self.stop.started(trainer)

        return Watcher(on_message=self._hear, on_bundle=begun, on_started=started, on_ended=self.stop.ended)

    def _hear(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)
        self.pulse.last_line = line
        kind, colon, text = line.partition(": ")
        if colon and kind in ("error", "hint"):
            self._trainers_words[kind] = text

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Stop the run in time where the machine is taken away, or is about to be deleted."""
        threading.Thread(target=self._await_preemption, daemon=True).start()
        timer = threading.Timer(max(0.0, self._deadline_s() - self.now()), self.stop.ask, [Why.TIMED_OUT])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _await_preemption(self) -> None:
        if self.landlord.await_preemption(self.stop.is_over):
            self.stop.ask(Why.PREEMPTED)

    def _deadline_s(self) -> float:
        """When the run must end: some time before the machine is deleted, as its landlord (never the launcher) says."""
        deleted_s = self.landlord.deleted_s() or (self._created_s or self.bill.began_s) + self.request.limit_s
        return deleted_s - min(MARGIN_S, self.request.limit_s / 4)

    def _explained(self, ended: WorkEnd) -> WorkEnd:
        """What came from outside says more than how the trainer ended by it."""
        if self.stop.why is Why.ASKED and self.landlord.is_preempted():
            self.stop.ask(Why.PREEMPTED)
        if self.stop.why is None or ended.exit_code == ExitCode.DONE:
            return ended
        error, hint = self._reason(self.stop.why)
        code = InterruptedRunError.exit_code if self.stop.why is Why.ASKED else RunFailedError.exit_code
        return WorkEnd(exit_code=code, error=error, hint=hint)

    def _reason(self, why: Why) -> tuple[str, str]:
        match why:
            case Why.PREEMPTED:
                return (
                    f"the spot VM was taken away (preempted) in {self.zone}",
                    "--rerun-preempted 1, or leave --spot out",
                )
            case Why.TIMED_OUT:
                limit = f"the launch came to its time limit of {self.request.limit_s} s"
                return limit, "a longer --max-run-time, or fewer --iterations"
            case Why.ASKED:
                return "the machine was told to stop", "launch again"

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
            timed_out=self.stop.why is Why.TIMED_OUT,
            usd=self.bill.usd(self.request.price(self.zone), now_s),
            billed_from=iso(self.bill.began_s),
        )

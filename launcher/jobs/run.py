"""Carries out one launch: record, submit, follow, fetch the bundles, confirm that the machine is gone.

The launch's state is in the store and at the machines' place, so that this process can end at any moment. Several
threads may each run a launch and share the store, because this module handles no signals.
"""

import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from launcher.jobs import launches, watch
from launcher.jobs.liveness import TO_BE_REMOVED, Liveness
from launcher.jobs.session import Event, EventKind, Session
from launcher.jobs.watch import Watch, WatchedLaunch, settle_watched
from launcher.protocol.backend import Backend, Condition, Machine, Machines, Plan, Submitted, Tried
from launcher.protocol.records import RUNS, STAMP, LaunchPhase, Request, Result, epoch_s, request_object
from launcher.script.files import ScriptFiles
from workload.contract import bundle
from workload.contract.bundle import Bundle
from workload.contract.errors import (
    BundleError,
    ExitCode,
    InterruptedRunError,
    NoCapacityError,
    NothingToDoError,
    OutOfDeviceMemoryError,
    RooflaunchError,
    RunFailedError,
    ToolError,
    UsageError,
)
from workload.contract.process import raise_if_interrupted
from workload.contract.record import Status, to_json
from workload.contract.text import counted
from workload.storage import fetch
from workload.storage.address import FetchSource
from workload.storage.store import Store

# Seconds that a machine may take to end itself after its result, before this process deletes it.
SELF_DELETION_S = 120.0
GONE_EVERY_S = 5.0
# Errors by the exit code in a machine's result; any other code means that the run failed.
KINDS = (
    *(UsageError, NothingToDoError, ToolError, NoCapacityError, OutOfDeviceMemoryError, BundleError),
    InterruptedRunError,
)


class LeftRunningError(InterruptedRunError):
    """Error after Ctrl-C while a launch was followed. The machine continues to run."""

    def __init__(self, machine: Machine) -> None:
        name = machine.name
        super().__init__(
            f"interrupted; '{name}' keeps running in {machine.zone}, uploads its bundles and ends by itself",
            hint=f"launch logs {name} -f to follow it, launch down {name} to end it",
        )
        self.machine = machine


@dataclass(frozen=True, kw_only=True)
class LaunchOutcome:
    """Outcome of a launch with its fetched bundles. After several attempts: the last outcome, with all bundles.

    `calls`: number of requests to the place, by kind. `usd`: cost of the machine from its request
    (`billed_from`) to the end of the waiting for its end (`billed_to`), both in ISO 8601. The waiting also ends if the
    machine's end cannot be confirmed.
    """

    exit_code: int
    name: str
    zone: str
    bundles: tuple[Bundle, ...] = ()
    tried: tuple[Tried, ...] = ()
    phases: Mapping[str, str] = field(default_factory=dict)
    usd: float | None = None
    billed_from: str | None = None
    billed_to: str | None = None
    calls: Mapping[str, int] = field(default_factory=dict)
    attempts: int = 1
    detached: bool = False
    error: RooflaunchError | None = None

    def to_json(self) -> dict[str, Any]:
        """Outcome as JSON values; a bundle is given as its run.json, with the bundle's folder as `path`."""
        return {
            "name": self.name,
            "exit_code": self.exit_code,
            "error": str(self.error) if self.error else None,
            "zone": self.zone,
            "tried": [{"zone": attempt.zone, "code": attempt.code} for attempt in self.tried],
            "phases": dict(self.phases),
            "usd": self.usd,
            "billed_from": self.billed_from,
            "billed_to": self.billed_to,
            "calls": dict(self.calls),
            "attempts": self.attempts,
            "detached": self.detached,
            "runs": [{"path": str(run.path), **to_json(run.record)} for run in self.bundles],
        }


def run(
    session: Session, plan: Plan, *, output: Path, detach: bool = False, script_files: ScriptFiles | None = None
) -> LaunchOutcome:
    """Launch, follow and fetch; start again after a preemption, as often as the plan allows.

    Raises the place's error, such as `NoCapacityError`, if no machine can be had, and `LeftRunningError` for Ctrl-C
    while a machine runs. The error of a failed run is in the outcome.
    """
    if not detach:
        bundle.make_output(output)
    watch.erase_variables(session.store, session.machines)
    launcher = Launcher(session, output=output, script_files=script_files)
    earlier: tuple[Bundle, ...] = ()
    for attempt in range(1, plan.submissions + 1):
        outcome, was_preempted = launcher.once(plan, detach=detach)
        earlier += outcome.bundles
        outcome = replace(outcome, bundles=earlier, calls=dict(session.machines.calls), attempts=attempt)
        if not was_preempted or attempt == plan.submissions:
            break
        plan = again(plan, session.now_s())
        session.note(f"preempted; attempt {attempt + 1} is '{plan.request.name}'")
    return outcome


def prepared(backend: Backend, draft: Plan, machines: Machines, script_files: ScriptFiles | None) -> Plan:
    """Prepare what the machines need, with the script's further packages in the image, and return the final plan."""
    plan = backend.prepare(draft, machines)
    if not (script_files and script_files.requirements):
        return plan
    from launcher import docker_engine  # noqa: PLC0415 - only with requirements
    from launcher.images import build  # noqa: PLC0415

    image = build.pushed(docker_engine.connect(), plan.request.image, script_files.requirements)
    return plan.renamed(replace(plan.request, image=image))


def again(plan: Plan, now_s: float) -> Plan:
    """Plan of a further attempt: a new launch with its own name and time."""
    launched = datetime.fromtimestamp(now_s, UTC)
    label = STAMP.sub("", plan.request.name)
    request = replace(
        plan.request,
        name=f"{label}-{launched:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}",
        launched_at=launched.isoformat(timespec="milliseconds"),
        attempt=plan.request.attempt + 1,
    )
    return plan.renamed(request)


class Launcher:
    """Steps of a launch, as methods. Several threads may share a `Launcher`, each for a launch of its own."""

    def __init__(self, session: Session, *, output: Path, script_files: ScriptFiles | None = None) -> None:
        self._session, self._machines, self._store = session, session.machines, session.store
        self._output, self._script_files = output, script_files

    def once(self, plan: Plan, *, detach: bool) -> tuple[LaunchOutcome, bool]:
        """Make one attempt. Returns its outcome, and whether its machine was preempted before the run was done."""
        self.record(plan)
        submitted = self.submit(plan)
        machine = submitted.machines[0]
        outcome = LaunchOutcome(
            exit_code=ExitCode.DONE,
            name=plan.request.name,
            zone=machine.zone,
            tried=submitted.tried,
            phases={LaunchPhase.REQUESTED: plan.request.launched_at},
        )
        if detach:
            return replace(outcome, detached=True), False
        try:
            ended = follow(self._session, plan.request, machine.zone, output=self._output)
        except (KeyboardInterrupt, InterruptedRunError) as stopped:
            raise LeftRunningError(machine) from stopped
        was_preempted = ended.liveness is Liveness.PREEMPTED
        if ended.result:  # a machine that is taken away may still write a result, even of a run that was done
            was_preempted = ended.result.preempted and ended.result.exit_code != ExitCode.DONE
        try:
            outcome = self._collected(outcome, ended, machine)
            # The machine's cost from its request to now.
            seen = launches.Seen(name=outcome.name, request=plan.request, machine=machine)
            if cost := launches.cost_of(seen, self._session.now_s()):
                outcome = replace(outcome, usd=cost.usd, billed_from=cost.began, billed_to=cost.ended)
        except (KeyboardInterrupt, InterruptedRunError) as stopped:
            raise InterruptedRunError(
                f"interrupted; '{outcome.name}' has ended, but not all of its results are here",
                hint=f"launch status {outcome.name} shows how to fetch the rest",
            ) from stopped
        return outcome, was_preempted

    def record(self, plan: Plan) -> None:
        """Write the request into the store before a machine exists, so that no machine is ever without a record."""
        name = plan.request.name
        if not self._store.write(request_object(name), plan.request.to_bytes(), if_absent=True):
            raise ToolError(f"{self._store} has a launch '{name}' already", hint="launch again")
        launched_s = epoch_s(plan.request.launched_at)
        self._session.on_event(Event(kind=EventKind.PHASE, text=LaunchPhase.REQUESTED, at_s=launched_s))

    def send_script_files(self, plan: Plan) -> None:
        """Send a script's files and environment variables. Call `record` first, so that no variables lack a request."""
        if self._script_files:
            self._script_files.send(self._store, plan.request.name)

    def submit(self, plan: Plan) -> Submitted:
        """Get a running machine. If that fails, write the reason into the store and raise the error."""
        try:
            self.send_script_files(plan)
            return self._machines.submit(plan, self._session.note)
        except (KeyboardInterrupt, InterruptedRunError) as stopped:
            name, noun = plan.request.name, self._machines.noun
            if self._give_up(plan, ExitCode.INTERRUPTED, f"interrupted while looking for a {noun}"):
                raise InterruptedRunError(
                    f"interrupted; no {noun} of '{name}' is left", hint="launch again"
                ) from stopped
            raise InterruptedRunError(
                f"interrupted; could not confirm whether {noun} '{name}' still exists", hint=f"launch down {name}"
            ) from stopped
        except RooflaunchError as error:
            self._give_up(plan, error.exit_code, str(error))
            raise

    def _give_up(self, plan: Plan, code: int, error: str) -> bool:
        """Remove any machine of a launch that failed, then write the exit code and `error` as the launch's result.

        Returns False, and writes nothing, if a machine may still exist.
        """
        name = plan.request.name
        try:
            listing = self._machines.look({name: plan.request.zones})
            machines = [machine for machine in listing if machine.condition is not Condition.GONE]
            are_gone = not listing.unreachable and all(removed.gone for removed in self._machines.stop(machines))
        except RooflaunchError:
            return False
        if are_gone:
            watch.settle(self._store, name, "", code, error, now_s=self._session.now_s())
        return are_gone

    def _collected(self, outcome: LaunchOutcome, ended: WatchedLaunch, machine: Machine) -> LaunchOutcome:
        error = ended.error or _error_of(ended.result, outcome.name)
        if ended.result is None and ended.is_gone:
            settle_watched(self._session, ended, str(error))
        bundles: tuple[Bundle, ...] = ()
        try:
            bundles = self._fetch(ended)
        except RooflaunchError as failed:
            # The failure of the run tells more than the failed fetch that it caused.
            error = error or failed
        error = error or _shortfall(ended.request, bundles)
        if not ended.is_gone:
            error = self._see_it_gone(machine) or error
        phases = {**ended.phases, **outcome.phases}
        return replace(
            outcome,
            exit_code=error.exit_code if error else ExitCode.DONE,
            bundles=bundles,
            phases={str(phase): phases[phase] for phase in LaunchPhase if phase in phases},
            error=error,
        )

    def _fetch(self, ended: WatchedLaunch) -> tuple[Bundle, ...]:
        """Fetch the launch's complete bundles.

        Raises an error if a bundle cannot be fetched, or if a launch with a result has only incomplete bundles.
        """
        bundles, missing = [], []
        for run_id in ended.announced_runs:
            try:
                bundles.append(fetched(self._store, run_id, self._output))
            except BundleError as error:
                missing.append(f"{run_id}: {error}")
            except RooflaunchError as error:
                error.hint = f"analyze fetch {self._store.locate(f'{RUNS}{run_id}')} -o {self._output}"
                raise
        if missing:
            message = f"incomplete in {self._store}: {'; '.join(missing)}"
            self._session.note(message)
            if ended.result is not None and not bundles:
                raise BundleError(message, hint=f"launch status {ended.name}")
        return tuple(bundles)

    def _see_it_gone(self, machine: Machine) -> RooflaunchError | None:
        noun = self._machines.noun
        until_s = self._session.now_s() + SELF_DELETION_S
        while self._session.now_s() < until_s:
            with suppress(ToolError):  # a failed poll is repeated
                listing = self._machines.look({machine.name: (machine.zone,)})
                if any(seen.condition is Condition.GONE for seen in listing):
                    return None
            self._session.sleep(GONE_EVERY_S)
        self._session.note(f"the {noun} did not end by itself: deleting it")
        [removed] = self._machines.stop([machine])
        if removed.gone:
            return None
        return ToolError(
            f"{noun} '{machine.name}' in {machine.zone} is not confirmed to be gone: {removed.reason}",
            hint=f"launch down {machine.name}; the {noun} is ended at its time limit in any case",
        )


def fetched(store: Store, run_id: str, output: Path, *, jobs: int = 8) -> Bundle:
    """Fetch a complete bundle into the folder `output`, `jobs` files at a time.

    Raises `BundleError` if the bundle is missing, incomplete or damaged, and the store's error if the store fails.
    """
    source = FetchSource(address=store.locate("").rstrip("/"), folder=RUNS, run_id=run_id)
    report = fetch.fetch(store, source, output, jobs=jobs)
    if report.error:
        raise report.error
    if not any(run.state in (fetch.FetchState.FETCHED, fetch.FetchState.SKIPPED) for run in report.outcomes):
        reasons = [run.reason for run in report.outcomes]
        raise BundleError("; ".join(reasons) or "no files there", hint="launch again")
    return bundle.read(output / run_id)


def follow(session: Session, request: Request, zone: str, *, output: Path) -> WatchedLaunch:
    """Poll until the launch has ended. A machine that no longer works is removed; its log is first saved in `output`.

    Failing polls never end the launch before the machine's own limit has passed.
    """
    launch = WatchedLaunch(request=request, zones=(zone,))
    watch = Watch(session, asks_phases=True)
    began_s = session.now_s()
    while True:
        with watch.outlasting([launch]):
            watch.poll([launch])
            if launch.liveness in TO_BE_REMOVED:
                assert launch.machine is not None
                saved = save_output(session, launch.machine, output)
                watch.remove([launch])
                launch.hint = f"the machine's output is in {saved}" if saved else f"launch logs {launch.name}"
                if not launch.is_gone:
                    launch.why += f"; the {session.machines.noun} could not be removed"
                    launch.hint = f"launch down {launch.name}; {launch.hint}"
        if launch.has_ended:
            return launch
        # A library may have caught the error of a Ctrl-C during the poll.
        raise_if_interrupted()
        session.on_event(Event(kind=EventKind.PROGRESS, text=_progress(session, launch), at_s=session.now_s()))
        session.sleep(watch.pause_s(session.now_s() - began_s))


def _progress(session: Session, launch: WatchedLaunch) -> str:
    noun = session.machines.noun
    if launch.listed is not None and (launch.listed.queued or launch.listed.why_not_starting):
        return f"the {noun} waits: {launch.listed.status}"
    if launch.heartbeat is not None and launch.heartbeat.last_line:
        return launches.plain(launch.heartbeat.last_line)
    last = next(reversed(launch.phases), "")
    return f"{last.replace('_', ' ')}; waiting for the next phase" if last else f"the {noun} starts"


def save_output(session: Session, machine: Machine, output: Path) -> Path | None:
    """Write a machine's output to `<output>/<name>-serial.txt`. Returns the path; None if there is no output."""
    path = output / f"{machine.name}-serial.txt"
    with suppress(RooflaunchError, OSError):
        if text := "".join(session.printed(machine)):
            bundle.make_output(output)
            path.write_text(text, encoding="utf-8", errors="replace")
            return path
    return None


def _error_of(result: Result | None, name: str) -> RooflaunchError | None:
    if result is None or result.exit_code == ExitCode.DONE:
        return None
    kinds: dict[int, type[RooflaunchError]] = {kind.exit_code: kind for kind in KINDS}
    kind = kinds.get(result.exit_code, RunFailedError)
    if result.preempted:
        usual, hint = "the cloud took the spot VM away", "--rerun-preempted 2, or without --spot"
    elif result.timed_out:
        usual, hint = "the time limit was reached", "--max-run-time, longer"
    else:
        usual, hint = f"the run ended with exit code {result.exit_code}", f"launch logs {name}"
    own_hint = launches.plain(result.hint).replace("launch logs RUN", f"launch logs {name}")
    return kind(f"'{name}': {launches.plain(result.error) or usual}", hint=own_hint or hint)


def _shortfall(request: Request, bundles: Sequence[Bundle]) -> RooflaunchError | None:
    """Error if a launch that ended well has fewer completed bundles than runs, else None.

    Runs with a key are not checked: an earlier attempt may have stored some of them, and the sweep counts them by key.
    """
    if any(run.run_key for run in request.work.runs):
        return None
    requested, hint = len(request.work.runs), f"launch logs {request.name}"
    statuses = [run.record.status for run in bundles]
    if (completed := statuses.count(Status.COMPLETED)) >= requested:
        return None
    broken = [run for run in bundles if run.record.status is not Status.COMPLETED]
    if not broken:
        return BundleError(f"'{request.name}' made only {completed} of {counted(requested, 'bundle')}", hint=hint)
    kind = OutOfDeviceMemoryError if Status.OUT_OF_MEMORY in statuses else RunFailedError
    why = launches.plain(broken[0].record.error or broken[0].record.status)
    done = f"{completed} of {counted(requested, 'run')} completed"
    return kind(f"'{request.name}': {done}; {broken[0].path.name}: {why}", hint=hint)

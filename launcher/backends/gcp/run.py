"""One launch from its plan to its bundles at home: record, provision, follow, fetch, confirm that the VM is gone.

What others need to know of it lies in the bucket and in the cloud, so that this process can end at any moment. Threads
may each run one and share the `Compute` and the `Bucket`: nothing here handles signals.
"""

import secrets
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from launcher.backends.door import Tried
from launcher.backends.gcp.compute import Compute
from launcher.backends.gcp.plan import Plan
from launcher.backends.gcp.provision import Provisioned, provision, remove
from launcher.backends.gcp.resources import epoch_s
from launcher.jobs import cleanup, launches
from launcher.jobs.follow import Ending, Event, Followed, Kind, OnEvent, follow
from launcher.jobs.records import RUNS, Heartbeat, Phase, Result, request_object, utc
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
from workload.storage import fetch
from workload.storage.gcs import Bucket
from workload.storage.names import why_unsafe
from workload.storage.source import Source

# How long a VM may take to delete itself after its result, before it is deleted from here.
SELF_DELETION_S = 120.0
GONE_EVERY_S = 5.0
# Errors by the exit code that a VM's result has; another code is a run that failed.
ERRORS: Mapping[int, type[RooflaunchError]] = {
    each.exit_code: each
    for each in (
        UsageError,
        NothingToDoError,
        ToolError,
        NoCapacityError,
        RunFailedError,
        OutOfDeviceMemoryError,
        BundleError,
        InterruptedRunError,
    )
}


class LeftRunningError(InterruptedRunError):
    """Ctrl-C while following: the VM goes on by itself."""

    def __init__(self, name: str, zone: str) -> None:
        super().__init__(
            f"interrupted; '{name}' keeps running in {zone}, uploads and deletes itself",
            hint=f"launch logs {name} -f to follow it, launch down {name} to delete it",
        )
        self.name, self.zone = name, zone


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a launch: its bundles at home, and how it went; of several attempts the last one's.

    `calls`: how often what was asked of the cloud while provisioning and following. `usd`: of the VM, from its insert
    (`billed_from`) to when nothing was left to wait for (`billed_to`): the VM gone, or its end not confirmed.
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
        """Plain values, with the run.json of every bundle and its folder as `path`."""
        return {
            "name": self.name,
            "exit_code": self.exit_code,
            "error": str(self.error) if self.error else None,
            "zone": self.zone,
            "tried": [{"zone": each.zone, "code": each.code} for each in self.tried],
            "phases": dict(self.phases),
            "usd": self.usd,
            "billed_from": self.billed_from,
            "billed_to": self.billed_to,
            "calls": dict(self.calls),
            "attempts": self.attempts,
            "detached": self.detached,
            "runs": [{"path": str(found.path), **found.record} for found in self.bundles],
        }


def run(
    plan: Plan,
    compute: Compute,
    bucket: Bucket,
    *,
    output: Path,
    detach: bool = False,
    now: Callable[[], float],
    sleep: Callable[[float], None],
    on_event: OnEvent,
) -> Outcome:
    """Launch and see it through; `--rerun-preempted` starts a spot VM that was taken back again, under a new name.

    Raises what keeps a VM from coming to be, and `LeftRunningError` for Ctrl-C once one runs; how a run failed is told
    in the outcome.
    """
    if not detach:
        bundle.make_output(output)
    # With a counter of its own, of what this launch asks.
    compute = compute.counted()
    launcher = _Launcher(compute, bucket, output=output, now=now, sleep=sleep, on_event=on_event)
    earlier: tuple[Bundle, ...] = ()
    for attempt in range(1, plan.options.rerun_preempted + 2):
        outcome, ending = launcher.once(plan, detach=detach)
        earlier += outcome.bundles
        outcome = replace(outcome, bundles=earlier, calls=launcher.calls(), attempts=attempt)
        if ending is not Ending.PREEMPTED or attempt > plan.options.rerun_preempted:
            break
        plan = again(plan, now())
        on_event(Event(kind=Kind.NOTE, text=f"preempted; attempt {attempt + 1} is '{plan.request.name}'"))
    return outcome


def again(plan: Plan, now_s: float) -> Plan:
    """The same plan as a launch of its own: a new name, a new time, one more attempt."""
    launched = datetime.fromtimestamp(now_s, UTC)
    name = f"rooflaunch-{plan.request.gpu}-{launched:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
    request = replace(
        plan.request,
        name=name,
        launched_at=launched.isoformat(timespec="milliseconds"),
        attempt=plan.request.attempt + 1,
    )
    return replace(plan, request=request)


class _Launcher:
    def __init__(
        self,
        compute: Compute,
        bucket: Bucket,
        *,
        output: Path,
        now: Callable[[], float],
        sleep: Callable[[float], None],
        on_event: OnEvent,
    ) -> None:
        self._compute, self._bucket, self._output = compute, bucket, output
        self._now, self._sleep, self._on_event = now, sleep, on_event
        self._bucket_calls: Counter[str] = Counter()

    def calls(self) -> dict[str, int]:
        """How often what was asked of the cloud so far."""
        return {**{f"compute.{name}": count for name, count in self._compute.calls.items()}, **self._bucket_calls}

    def once(self, plan: Plan, *, detach: bool) -> tuple[Outcome, Ending | None]:
        """One attempt; the ending is None for a launch that is left to itself."""
        self._record(plan)
        got = self._provision(plan)
        told = Outcome(
            exit_code=ExitCode.DONE,
            name=plan.request.name,
            zone=got.zone,
            tried=got.tried,
            phases={Phase.REQUESTED: plan.request.launched_at},
        )
        if detach:
            return replace(told, detached=True), None
        try:
            followed = follow(
                plan.request,
                got.zone,
                self._compute,
                self._bucket,
                output=self._output,
                now=self._now,
                sleep=self._sleep,
                on_event=self._on_event,
            )
        except (KeyboardInterrupt, InterruptedRunError) as stopped:
            raise LeftRunningError(plan.request.name, got.zone) from stopped
        try:
            return self._billed(self._home(told, followed), plan, got.instance.created_at), _ending(followed)
        except (KeyboardInterrupt, InterruptedRunError) as stopped:
            raise InterruptedRunError(
                f"interrupted; '{told.name}' has ended, and not everything of it is here",
                hint=f"launch status {told.name}, which says how to fetch the rest",
            ) from stopped

    def _record(self, plan: Plan) -> None:
        """Leave the request in the bucket before there is a VM, so that nothing that costs is ever unknown."""
        name = plan.request.name
        self._bucket_calls["bucket.write"] += 1
        if not self._bucket.write(request_object(name), plan.request.to_bytes(), if_absent=True):
            raise ToolError(f"bucket '{self._bucket.name}' has a launch '{name}' already", hint="launch again")
        self._on_event(Event(kind=Kind.PHASE, text=Phase.REQUESTED, at_s=epoch_s(plan.request.launched_at)))

    def _provision(self, plan: Plan) -> Provisioned:
        """A running VM; where none comes to be, the bucket says why."""
        try:
            return provision(
                plan,
                self._compute,
                now=self._now,
                sleep=self._sleep,
                on_event=lambda text: self._on_event(Event(kind=Kind.NOTE, text=text)),
            )
        except (KeyboardInterrupt, InterruptedRunError) as stopped:
            name = plan.request.name
            if self._give_up(plan, ExitCode.INTERRUPTED, "interrupted while a VM was looked for"):
                raise InterruptedRunError(f"interrupted; no VM of '{name}' is left", hint="launch again") from stopped
            raise InterruptedRunError(
                f"interrupted; whether a VM '{name}' is left could not be confirmed", hint=f"launch down {name}"
            ) from stopped
        except RooflaunchError as error:
            self._give_up(plan, error.exit_code, str(error))
            raise

    def _give_up(self, plan: Plan, code: int, error: str) -> bool:
        """Say in the bucket why there is no VM, once there is none in any zone: one may have come just before."""
        name = plan.request.name
        try:
            listing = self._compute.instances()
            left = [each for each in listing if each.name == name]
            unlisted = [zone for zone in plan.zones if listing.lacks(zone)]
            there, silent = cleanup.look_in(self._compute, unlisted, name)
            left += [there] if there else []
            gone = [remove(self._compute, each.zone, name, now=self._now, sleep=self._sleep) for each in left]
        except RooflaunchError:
            return False
        if all(gone) and not silent:
            self._settle(name, "", code, error)
        return all(gone) and not silent

    def _home(self, told: Outcome, followed: Followed) -> Outcome:
        """Bring the bundles, and make sure of the VM's end whatever became of them."""
        self._bucket_calls.update(followed.calls)
        error = followed.error or _error_of(followed.result, told.name)
        if followed.result is None and followed.vm_gone and error is not None:
            self._settle(told.name, told.zone, error.exit_code, str(error), followed.ending)
        found: tuple[Bundle, ...] = ()
        try:
            found = self._fetch(told.name, followed)
        except RooflaunchError as failed:
            # How the run failed says more than what could not be brought home because of it.
            error = error or failed
        if not followed.vm_gone:
            error = self._see_it_gone(told) or error
        return replace(
            told,
            exit_code=error.exit_code if error else ExitCode.DONE,
            bundles=found,
            phases=_phases(told.phases, followed.phases),
            error=error,
        )

    def _billed(self, outcome: Outcome, plan: Plan, created_at: str) -> Outcome:
        """With what the VM has cost from its insert until now, when it is gone or nobody here waits any longer."""
        price, began_s, now_s = plan.price(outcome.zone), epoch_s(created_at), self._now()
        if price is None or began_s is None:
            return outcome
        return replace(
            outcome,
            usd=price.usd(max(0.0, now_s - began_s)),
            billed_from=utc(began_s),
            billed_to=utc(max(began_s, now_s)),
        )

    def _fetch(self, name: str, followed: Followed) -> tuple[Bundle, ...]:
        """The complete bundles of the launch; raises for one that its result names and that did not come whole."""
        found, missing = [], []
        for run_id in _runs(followed.result, followed.heartbeat):
            self._bucket_calls["bucket.fetch"] += 1
            source = Source(address=f"gs://{self._bucket.name}", folder=RUNS, run_id=run_id)
            report = fetch.fetch(self._bucket, source, self._output)
            if report.error:
                again_by_hand = f"analyze fetch gs://{self._bucket.name}/{RUNS}{run_id} -o {self._output}"
                raise type(report.error)(str(report.error), hint=again_by_hand)
            if any(each.state in (fetch.State.FETCHED, fetch.State.SKIPPED) for each in report.outcomes):
                found.append(bundle.read(self._output / run_id))
            else:
                missing += [f"{run_id}: {each.reason}" for each in report.outcomes] or [f"{run_id}: nothing there"]
        if missing:
            told = f"not in bucket '{self._bucket.name}' as a whole: {'; '.join(missing)}"
            self._on_event(Event(kind=Kind.NOTE, text=told))
            if followed.result is not None and not found:
                raise BundleError(told, hint=f"launch status {name}")
        return tuple(found)

    def _see_it_gone(self, told: Outcome) -> RooflaunchError | None:
        """Wait for the VM to delete itself, then delete it; an error if it cannot be confirmed."""
        until_s = self._now() + SELF_DELETION_S
        while self._now() < until_s:
            with suppress(ToolError):  # a question that fails is asked again
                if self._compute.get(told.zone, told.name) is None:
                    return None
            self._sleep(GONE_EVERY_S)
        self._on_event(Event(kind=Kind.NOTE, text="the VM has not deleted itself: deleting it"))
        reason = "it is still there"
        try:
            if remove(self._compute, told.zone, told.name, now=self._now, sleep=self._sleep):
                return None
        except RooflaunchError as failed:
            reason = str(failed)
        return ToolError(
            f"VM '{told.name}' in {told.zone} is not confirmed to be gone: {reason}",
            hint=f"launch down {told.name}; the cloud deletes it at its time limit",
        )

    def _settle(self, name: str, zone: str, code: int, error: str, ending: Ending | None = None) -> None:
        cleanup.settle(
            self._bucket,
            name,
            zone,
            code,
            error,
            now=self._now,
            preempted=ending is Ending.PREEMPTED,
            timed_out=ending is Ending.LIMIT,
        )


def _ending(followed: Followed) -> Ending:
    """A VM that noticed its preemption in time has left a result that says so."""
    result = followed.result
    cut_off = result is not None and result.preempted and result.exit_code != ExitCode.DONE
    return Ending.PREEMPTED if cut_off else followed.ending


def _runs(result: Result | None, heartbeat: Heartbeat | None) -> list[str]:
    source = result or heartbeat
    return [run_id for run_id in source.runs if not why_unsafe(run_id) and "/" not in run_id] if source else []


def _error_of(result: Result | None, name: str) -> RooflaunchError | None:
    """What a VM's result says went wrong; preempted after the run was over, nothing did."""
    if result is None or result.exit_code == ExitCode.DONE:
        return None
    kind = ERRORS.get(result.exit_code, RunFailedError)
    if result.preempted:
        usual, hint = "the cloud took the spot VM back", "--rerun-preempted 2, or without --spot"
    elif result.timed_out:
        usual, hint = "the time limit was reached", "--max-run-time, longer"
    else:
        usual, hint = f"the run ended with exit code {result.exit_code}", f"launch logs {name}"
    told = launches.plain(result.hint).replace("launch logs RUN", f"launch logs {name}")
    return kind(f"'{name}': {launches.plain(result.error) or usual}", hint=told or hint)


def _phases(first: Mapping[str, str], later: Mapping[str, str]) -> dict[str, str]:
    known = {**later, **first}
    return {str(phase): known[phase] for phase in Phase if phase in known}

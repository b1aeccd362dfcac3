"""Follows a launch from its machine's start to its result, by polling machine and store on a written schedule.

Each poll asks for the machine first and then for its objects, because the machine deletes itself only after it has
written its result. A machine's own time stamps do not show whether it lives: silence is measured by our clock, and only
over polls that were answered. A launch ends well without this module.
"""

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from launcher.jobs.launches import plain, read
from launcher.jobs.liveness import TO_BE_REMOVED, Liveness, Observed, PlaceSays, StoreSays, boot_limit_s, liveness
from launcher.jobs.session import Event, EventKind, Session
from launcher.protocol.backend import Condition, Machine
from launcher.protocol.records import (
    LAUNCHES,
    Heartbeat,
    LaunchPhase,
    Request,
    Result,
    epoch_s,
    result_object,
    status_object,
)
from workload.contract import bundle
from workload.contract.errors import RooflaunchError, RunFailedError, ToolError
from workload.contract.text import duration

# (seconds after the start up to which, seconds between polls): most changes happen soon after the start.
SCHEDULE = ((120.0, 5.0), (600.0, 10.0))
LATER_EVERY_S = 30.0
# Longest pause between polls that are not answered.
MAX_BACKOFF_S = 60.0
# The VM may vanish while its last objects arrive: number of further polls of the bucket, and the seconds between them.
GRACE_LOOKS = 3
GRACE_S = 5.0
# A machine that vanished at most this long before its limit was ended by the limit.
LIMIT_MARGIN_S = 60.0
# Most parts of a machine's output to read; a serial port keeps 1 MB.
MAX_PARTS = 64
# Time for a place to start a machine again after a failure of its host, which takes some minutes.
RESTART_S = 15 * 60.0


class Ending(StrEnum):
    """How a launch ended; all but `result` left no result."""

    RESULT = "result"
    PREEMPTED = "preempted"
    LIMIT = "limit"
    DELETED = "deleted"
    SILENT = "silent"
    UNREACHABLE = "unreachable"


# Endings of launches without a result.
ENDINGS = {
    Liveness.PREEMPTED: Ending.PREEMPTED,
    Liveness.OUT_OF_TIME: Ending.LIMIT,
    Liveness.LOST: Ending.DELETED,
    Liveness.STOPPED: Ending.DELETED,
    Liveness.OVERDUE: Ending.LIMIT,
    Liveness.SILENT: Ending.SILENT,
    Liveness.NEVER_CAME_UP: Ending.SILENT,
}


@dataclass(frozen=True, kw_only=True)
class Followed:
    """Outcome of following. `error`: why there is no result; `calls`: number of requests to the store, by kind.

    `is_gone`: a later poll has confirmed that the machine is gone.
    """

    ending: Ending
    result: Result | None
    heartbeat: Heartbeat | None
    phases: Mapping[str, str]
    calls: Mapping[str, int]
    is_gone: bool
    error: RooflaunchError | None = None


def interval_s(elapsed_s: float) -> float:
    """Seconds to wait before the next poll."""
    return next((every for until, every in SCHEDULE if elapsed_s < until), LATER_EVERY_S)


def follow(session: Session, request: Request, zone: str, *, output: Path) -> Followed:
    """Poll until the launch has ended. A silent machine is removed, after its output was saved.

    Failing polls never end the launch before the machine's own limit has passed.
    """
    return _Follower(session, request, zone, output=output).run()


@dataclass(kw_only=True)
class _Known:
    """State of the launch as of the last poll."""

    heartbeat: Heartbeat | None = None
    result: Result | None = None
    phases: dict[str, str] = field(default_factory=dict)
    # Why the result in the store cannot be read.
    unreadable: list[str] = field(default_factory=list)
    # Version of status.json at the last read.
    status_version: str = ""
    # Seconds without a sign of life, and time of the last poll, both by our clock.
    silent_s: float = 0.0
    looked_s: float | None = None
    # Time when it was first seen stopped, by the same clock.
    stopped_s: float | None = None
    # The place's status of a machine that waits in a queue.
    status: str = ""


class _Follower:
    def __init__(self, session: Session, request: Request, zone: str, *, output: Path) -> None:
        self._session, self._request, self._zone, self._output = session, request, zone, output
        self._now, self._on_event, self._noun = session.now_s, session.on_event, session.machines.noun
        self._began_s = self._booting_s = self._now()
        self._limit_s = self._began_s + request.limit_s
        self._known = _Known()
        self._calls: Counter[str] = Counter()
        self._failing = 0

    def run(self) -> Followed:
        while True:
            try:
                ended = self._look()
            except ToolError as error:
                ended = self._not_answered(error)
            else:
                self._answered()
            if ended is not None:
                return ended
            self._on_event(Event(kind=EventKind.PROGRESS, text=self._progress(), at_s=self._now()))
            self._session.sleep(self._pause_s())

    def _pause_s(self) -> float:
        usual_s = interval_s(self._now() - self._began_s)
        return min(MAX_BACKOFF_S, usual_s * 2**self._failing) if self._failing else usual_s

    def _progress(self) -> str:
        known = self._known
        if known.status:
            return f"the {self._noun} waits: {known.status}"
        if known.heartbeat is not None and known.heartbeat.last_line:
            return plain(known.heartbeat.last_line)
        last = next(reversed(known.phases), "")
        return f"{last.replace('_', ' ')}; waiting for the next phase" if last else f"the {self._noun} starts"

    def _look(self) -> Followed | None:
        machine = self._machine()
        self._read_objects()
        if self._known.result is None:
            self._note(machine)
        judged = liveness(self._observed(machine))
        if judged is Liveness.ENDED:
            return self._ended(Ending.RESULT, is_gone=machine.condition is Condition.GONE)
        if machine.condition is Condition.GONE:
            return self._gone()
        if judged in TO_BE_REMOVED:
            return self._removed(machine, ENDINGS[judged], self._why(judged, machine))
        return None

    def _note(self, machine: Machine) -> None:
        if machine.queued:
            self._waits(machine)
        elif machine.condition is Condition.STOPPED:
            self._note_stopped(machine)
        elif machine.condition is not Condition.GONE:
            self._note_up(machine)

    def _observed(self, machine: Machine) -> Observed:
        """Observations by our clock: a machine's own time stamps do not show whether it lives."""
        now_s, known = self._now(), self._known
        stopped_s = 0.0 if known.stopped_s is None else now_s - known.stopped_s
        over_limit_s = now_s - self._limit_s
        return Observed(
            place=self._place_says(machine),
            store=StoreSays.RESULT if known.result else StoreSays.HEARTBEAT if known.heartbeat else StoreSays.NOTHING,
            silent_s=known.silent_s,
            booting_s=now_s - self._booting_s,
            boot_limit_s=boot_limit_s(self._request),
            over_limit_s=over_limit_s + LIMIT_MARGIN_S if machine.condition is Condition.GONE else over_limit_s,
            may_restart=machine.restarts and stopped_s <= RESTART_S,
            was_preempted=lambda: machine.preempted,
        )

    @staticmethod
    def _place_says(machine: Machine) -> PlaceSays:
        if machine.queued:
            return PlaceSays.QUEUED
        says = {Condition.GONE: PlaceSays.GONE, Condition.STOPPED: PlaceSays.STOPPED}
        return says.get(machine.condition, PlaceSays.UP)

    def _machine(self) -> Machine:
        name = self._request.name
        machine = next(iter(self._session.machines.look({name: (self._zone,)})), None)
        if machine is None:
            raise ToolError(f"nothing is known of '{name}': {self._zone} does not answer", hint=f"launch status {name}")
        if machine.deadline_s is not None:
            self._limit_s = machine.deadline_s
        return machine

    def _read_objects(self) -> None:
        """List the launch's few objects, and read those that are new; the heartbeat only if it has changed."""
        name = self._request.name
        self._calls["bucket.list"] += 1
        versions = {stored.name: stored.version for stored in self._session.store.objects(f"{LAUNCHES}{name}/")}
        if result_object(name) in versions:
            self._calls["bucket.read"] += 1
            self._known.unreadable.clear()
            self._known.result = read(
                self._session.store, result_object(name), Result.from_bytes, self._known.unreadable
            )
        # If the result is unreadable, the heartbeat still tells whether the VM lives.
        if self._known.result is None and versions.get(status_object(name), "") not in ("", self._known.status_version):
            self._calls["bucket.read"] += 1
            self._known.status_version = versions[status_object(name)]
            self._heard(read(self._session.store, status_object(name), Heartbeat.from_bytes, []))
        if self._known.result is not None:
            self._tell_phases(self._known.result.phases)

    def _heard(self, heartbeat: Heartbeat | None) -> None:
        if heartbeat is None:
            return
        self._known.heartbeat = heartbeat
        self._sign()
        self._tell_phases(heartbeat.phases)

    def _tell_phases(self, phases: Mapping[str, str]) -> None:
        for phase in LaunchPhase:
            if phase in phases and phase not in self._known.phases:
                self._known.phases[phase] = phases[phase]
                self._sign()
                self._on_event(Event(kind=EventKind.PHASE, text=phase, at_s=epoch_s(phases[phase])))

    def _sign(self) -> None:
        self._known.silent_s = 0.0
        self._known.looked_s = self._now()

    def _waits(self, machine: Machine) -> None:
        """Note that the machine waits in its place's queue: its boot and its limit count from its later start."""
        self._booting_s = self._now()
        self._limit_s = self._now() + self._request.limit_s
        self._known.status = machine.status
        self._sign()

    def _note_stopped(self, machine: Machine) -> None:
        """Note a stopped machine, most likely stopped by its host.

        The cloud usually starts it again within `RESTART_S`, and it saves its bundles: until then its silence and its
        boot do not count. A machine that stays stopped, or that its place never restarts, is removed.
        """
        known, now_s = self._known, self._now()
        if not machine.restarts:
            return
        if known.stopped_s is None:
            known.stopped_s = now_s
            waits = "the cloud starts it again, to save its results"
            self._session.note(f"'{self._request.name}' is {machine.status}: {waits}")
        self._sign()
        self._booting_s = now_s

    def _note_up(self, machine: Machine) -> None:
        """Note a machine that boots or works: its phases, and for how long it has given no sign."""
        known = self._known
        known.stopped_s = None
        if known.heartbeat is None:
            self._tell_phases(self._session.machines.phases(machine))
        now_s = self._now()
        known.status = ""
        known.silent_s += 0.0 if known.looked_s is None or self._failing else now_s - known.looked_s
        known.looked_s = now_s

    def _why(self, judged: Liveness, machine: Machine) -> str:
        """Reason why a machine is removed, as the rest of a sentence that begins with the launch's name."""
        now_s, known = self._now(), self._known
        if judged is Liveness.STOPPED and machine.restarts and known.stopped_s is not None:
            return f"stopped and was not started again in {duration(now_s - known.stopped_s)}"
        if judged is Liveness.STOPPED:
            return f"stopped by itself ({machine.status})"
        if judged is Liveness.OVERDUE:
            return "was still there after its time limit"
        if judged is Liveness.SILENT:
            return f"has sent no heartbeat for {duration(known.silent_s)}"
        last = next(reversed(known.phases), f"nothing, {self._noun} {machine.status}")
        return f"did not start the run within {duration(now_s - self._booting_s)} (last: {last})"

    def _answered(self) -> None:
        if self._failing:
            self._session.note("the cloud answers again")
        self._failing = 0

    def _not_answered(self, error: ToolError) -> Followed | None:
        """Note a failed poll, once. Give up only when the cloud must have deleted the machine."""
        if not self._failing:
            self._session.note(f"{error}; the {self._noun} continues by itself; trying again")
        self._failing += 1
        store = StoreSays.HEARTBEAT if self._known.heartbeat else StoreSays.NOTHING
        seen = Observed(place=PlaceSays.UNREACHABLE, store=store, over_limit_s=self._now() - self._limit_s)
        if liveness(seen) is not Liveness.GIVEN_UP:
            return None
        lost = ToolError(
            f"'{self._request.name}' could not be followed to its time limit: {error}",
            hint=f"launch status {self._request.name}",
        )
        return self._ended(Ending.UNREACHABLE, is_gone=False, error=lost)

    def _gone(self) -> Followed:
        for _ in range(GRACE_LOOKS):
            self._session.sleep(GRACE_S)
            self._read_objects()
            if self._known.result is not None:
                return self._ended(Ending.RESULT, is_gone=True)
        return self._without_result()

    def _without_result(self) -> Followed:
        name, machine = self._request.name, self._machine()
        judged = liveness(self._observed(machine))
        if judged is Liveness.PREEMPTED:
            spot_hint = "--rerun-preempted 2 starts it again automatically; without --spot it is not taken away"
            why = "the cloud took the spot VM away" if self._request.spot else machine.why
            hint = spot_hint if self._request.spot else "launch again"
            error = RunFailedError(f"'{name}' was preempted: {why}", hint=hint)
        elif judged is Liveness.OUT_OF_TIME and not machine.why:
            limit = duration(self._request.limit_s)
            error = RunFailedError(
                f"'{name}' reached its time limit of {limit} and left no result", hint="--max-run-time, longer"
            )
        elif why := "; ".join(self._known.unreadable):
            error = RunFailedError(f"'{name}' has ended, but it is unknown how: {why}", hint=f"launch logs {name}")
        elif machine.why:
            error = RunFailedError(f"'{name}' ended without a result: {machine.why}", hint=f"launch logs {name}")
        else:
            error = RunFailedError(f"'{name}' was deleted before it had a result", hint=f"launch status {name}")
        return self._ended(ENDINGS[judged], is_gone=True, error=error)

    def _removed(self, machine: Machine, ending: Ending, why: str) -> Followed:
        """Save the machine's output, remove the machine, and look for a result once more."""
        name, noun = self._request.name, self._noun
        self._session.note(f"'{name}' {why}: removing the {noun}")
        saved = save_output(self._session, machine, self._output)
        gone = all(removed.gone for removed in self._session.machines.stop([machine]))
        self._read_objects()
        if self._known.result is not None:
            return self._ended(Ending.RESULT, is_gone=gone)
        log_hint = f"its output is in {saved}" if saved else f"launch logs {name}"
        left = "" if gone else f"; the {noun} could not be removed"
        hint = log_hint if gone else f"launch down {name}; {log_hint}"
        return self._ended(ending, is_gone=gone, error=RunFailedError(f"'{name}' {why}{left}", hint=hint))

    def _ended(self, ending: Ending, *, is_gone: bool, error: RooflaunchError | None = None) -> Followed:
        known = self._known
        return Followed(
            ending=ending,
            result=known.result,
            heartbeat=known.heartbeat,
            phases=dict(known.phases),
            calls=dict(self._calls),
            is_gone=is_gone,
            error=error,
        )


def save_output(session: Session, machine: Machine, output: Path) -> Path | None:
    """Write a machine's output to `<output>/<name>-serial.txt`. Returns the path; None if there is no output."""
    path = output / f"{machine.name}-serial.txt"
    with suppress(RooflaunchError, OSError):
        if text := _printed(session, machine):
            bundle.make_output(output)
            path.write_text(text, encoding="utf-8", errors="replace")
            return path
    return None


def _printed(session: Session, machine: Machine) -> str:
    """All output that is still available."""
    text, start = "", 0
    for _ in range(MAX_PARTS):
        part = session.machines.output(machine, start)
        text += part.text
        if not part.text or part.next_start <= start:
            break
        start = part.next_start
    return text

"""Follow a launch from its VM's start to its result, by looking at the VM and the bucket on a written schedule.

Each look asks for the VM first and then for its objects: the VM deletes itself after its result is there. What the VM
says is trusted for what it tells, never for whether it lives: silence is measured by our own clock, and only over looks
that were answered. Nothing here is needed for the launch to end well.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from launcher.backends.gcp.compute import Compute
from launcher.backends.gcp.provision import remove
from launcher.backends.gcp.refusals import DeniedError
from launcher.backends.gcp.resources import RESTART_S, STOPPED, Instance, epoch_s
from launcher.jobs.launches import AFTER_LIMIT_S, SILENCE_LIMIT_S, boot_limit_s, duration, plain, read
from launcher.jobs.records import LAUNCHES, Heartbeat, Phase, Request, Result, result_object, status_object
from workload.contract import bundle
from workload.contract.errors import RooflaunchError, RunFailedError, ToolError
from workload.storage.store import Store

# (until so long after the start, look every): what can change is dense at first.
SCHEDULE = ((120.0, 5.0), (600.0, 10.0))
LATER_EVERY_S = 30.0
# Between looks that are not answered.
MAX_BACKOFF_S = 60.0
# The VM may vanish while its last objects arrive: so many more looks at the bucket, so far apart.
GRACE_LOOKS = 3
GRACE_S = 5.0
# A limit that cuts a run off is seen as a VM that is gone about then.
LIMIT_MARGIN_S = 60.0
# The serial port keeps 1 MB; each answer has a part of it.
MAX_SERIAL_PARTS = 64


class Kind(StrEnum):
    """What an event is: a step of the way, a newer line of progress, or something to know."""

    PHASE = "phase"
    PROGRESS = "progress"
    NOTE = "note"


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something to show; `at_s` in seconds since 1970 where the event has a time of its own."""

    kind: Kind
    text: str
    at_s: float | None = None


OnEvent = Callable[[Event], None]


class Ending(StrEnum):
    """How it came to its end, all but `result` without one."""

    RESULT = "result"
    PREEMPTED = "preempted"
    LIMIT = "limit"
    DELETED = "deleted"
    SILENT = "silent"
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, kw_only=True)
class Followed:
    """What came of it. `error` says why there is no result; `calls`: how often the bucket was asked what.

    `vm_gone`: a later question has confirmed that the VM is gone.
    """

    ending: Ending
    result: Result | None
    heartbeat: Heartbeat | None
    phases: Mapping[str, str]
    calls: Mapping[str, int]
    vm_gone: bool
    error: RooflaunchError | None = None


def interval_s(elapsed_s: float) -> float:
    """How long to wait before the next look."""
    return next((every for until, every in SCHEDULE if elapsed_s < until), LATER_EVERY_S)


def follow(
    request: Request,
    zone: str,
    compute: Compute,
    bucket: Store,
    *,
    output: Path,
    now: Callable[[], float],
    sleep: Callable[[float], None],
    on_event: OnEvent,
) -> Followed:
    """Look until the launch has ended; a VM that gives no sign any more is removed, its serial port kept in `output`.

    Failing questions never end it before the VM's own limit has passed.
    """
    follower = _Follower(request, zone, compute, bucket, output=output, now=now, sleep=sleep, on_event=on_event)
    return follower.run()


@dataclass(kw_only=True)
class _Known:
    """What has been seen so far."""

    heartbeat: Heartbeat | None = None
    result: Result | None = None
    phases: dict[str, str] = field(default_factory=dict)
    # Why the result that is there cannot be read.
    unreadable: list[str] = field(default_factory=list)
    # Of status.json as it was read last.
    status_version: str = ""
    # How long it has been silent, and when it was looked at last, by our clock.
    silent_s: float = 0.0
    looked_s: float | None = None
    # Since when it has been stopped, by the same clock.
    stopped_s: float | None = None


class _Follower:
    def __init__(
        self,
        request: Request,
        zone: str,
        compute: Compute,
        bucket: Store,
        *,
        output: Path,
        now: Callable[[], float],
        sleep: Callable[[float], None],
        on_event: OnEvent,
    ) -> None:
        self._request, self._zone = request, zone
        self._compute, self._bucket = compute, bucket
        self._output, self._on_event = output, on_event
        self._now, self._sleep = now, sleep
        self._began_s = self._booting_s = now()
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
            self._on_event(Event(kind=Kind.PROGRESS, text=self._progress(), at_s=self._now()))
            self._sleep(self._pause_s())

    def _pause_s(self) -> float:
        usual_s = interval_s(self._now() - self._began_s)
        return min(MAX_BACKOFF_S, usual_s * 2**self._failing) if self._failing else usual_s

    def _progress(self) -> str:
        known = self._known
        if known.heartbeat is not None and known.heartbeat.last_line:
            return plain(known.heartbeat.last_line)
        last = next(reversed(known.phases), "")
        return f"{last.replace('_', ' ')}; the next step is awaited" if last else "the VM starts"

    def _look(self) -> Followed | None:
        instance = self._get()
        self._read_objects()
        if self._known.result is not None:
            return self._ended(Ending.RESULT, vm_gone=instance is None)
        if instance is None:
            return self._gone()
        if instance.status in STOPPED or (instance.restarts and instance.status == "REPAIRING"):
            return self._stopped(instance)
        self._known.stopped_s = None
        if self._known.heartbeat is None:
            self._read_guest_attributes()
        return self._overdue(instance)

    def _get(self) -> Instance | None:
        instance = self._compute.get(self._zone, self._request.name)
        if instance is not None and instance.deadline_s is not None:
            self._limit_s = instance.deadline_s
        return instance

    def _read_objects(self) -> None:
        """List the launch's few objects, and read those that are new: a heartbeat only when it has changed."""
        name = self._request.name
        self._calls["bucket.list"] += 1
        found = {each.name: each.version for each in self._bucket.objects(f"{LAUNCHES}{name}/")}
        if result_object(name) in found:
            self._calls["bucket.read"] += 1
            self._known.unreadable.clear()
            self._known.result = read(self._bucket, result_object(name), Result.from_bytes, self._known.unreadable)
        # Beside a result that nobody can read, the heartbeat still says whether the VM lives.
        if self._known.result is None and found.get(status_object(name), "") not in ("", self._known.status_version):
            self._calls["bucket.read"] += 1
            self._known.status_version = found[status_object(name)]
            self._heard(read(self._bucket, status_object(name), Heartbeat.from_bytes, []))
        if self._known.result is not None:
            self._tell_phases(self._known.result.phases)

    def _heard(self, heartbeat: Heartbeat | None) -> None:
        if heartbeat is None:
            return
        self._known.heartbeat = heartbeat
        self._sign()
        self._tell_phases(heartbeat.phases)

    def _read_guest_attributes(self) -> None:
        found = self._compute.guest_attributes(self._zone, self._request.name)
        self._tell_phases({name: text for name, text in found.items() if name in list(Phase)})

    def _tell_phases(self, phases: Mapping[str, str]) -> None:
        for phase in Phase:
            if phase in phases and phase not in self._known.phases:
                self._known.phases[phase] = phases[phase]
                self._sign()
                self._on_event(Event(kind=Kind.PHASE, text=phase, at_s=epoch_s(phases[phase])))

    def _sign(self) -> None:
        self._known.silent_s = 0.0
        self._known.looked_s = self._now()

    def _stopped(self, instance: Instance) -> Followed | None:
        """By its host, most likely: the cloud starts it again, and it saves what there is; or nobody ever does."""
        now_s, known = self._now(), self._known
        if not instance.restarts:
            return self._removed(Ending.DELETED, f"stopped by itself ({instance.status})")
        if known.stopped_s is None:
            known.stopped_s = now_s
            waits = "the cloud starts it again, to save what there is"
            self._on_event(Event(kind=Kind.NOTE, text=f"'{self._request.name}' is {instance.status}: {waits}"))
        stopped_s = now_s - known.stopped_s
        if stopped_s > RESTART_S:
            return self._removed(Ending.DELETED, f"stopped and was not started again in {duration(stopped_s)}")
        self._sign()
        self._booting_s = now_s
        return None

    def _overdue(self, instance: Instance) -> Followed | None:
        """The VM is there and has no result: whether it has been silent, or been there, for too long."""
        now_s, known = self._now(), self._known
        known.silent_s += 0.0 if known.looked_s is None or self._failing else now_s - known.looked_s
        known.looked_s = now_s
        if now_s > self._limit_s + AFTER_LIMIT_S:
            return self._removed(Ending.LIMIT, "was still there after its time limit")
        if known.heartbeat is not None and known.silent_s > SILENCE_LIMIT_S:
            return self._removed(Ending.SILENT, f"has given no sign for {duration(known.silent_s)}")
        boot_s = now_s - self._booting_s
        if known.heartbeat is None and boot_s > boot_limit_s(self._request):
            last = next(reversed(known.phases), f"nothing, VM {instance.status}")
            return self._removed(Ending.SILENT, f"did not come to start the run in {duration(boot_s)} (last: {last})")
        return None

    def _answered(self) -> None:
        if self._failing:
            self._on_event(Event(kind=Kind.NOTE, text="the cloud answers again"))
        self._failing = 0

    def _not_answered(self, error: ToolError) -> Followed | None:
        """Said once; given up only when the cloud must have deleted the VM."""
        if not self._failing:
            self._on_event(Event(kind=Kind.NOTE, text=f"{error}; the VM goes on by itself, trying again"))
        self._failing += 1
        if self._now() <= self._limit_s + AFTER_LIMIT_S:
            return None
        lost = ToolError(
            f"'{self._request.name}' could not be followed to its time limit: {error}",
            hint=f"launch status {self._request.name}",
        )
        return self._ended(Ending.UNREACHABLE, vm_gone=False, error=lost)

    def _gone(self) -> Followed:
        for _ in range(GRACE_LOOKS):
            self._sleep(GRACE_S)
            self._read_objects()
            if self._known.result is not None:
                return self._ended(Ending.RESULT, vm_gone=True)
        return self._without_result()

    def _without_result(self) -> Followed:
        name = self._request.name
        if self._compute.preempted(self._zone, name):
            spot_hint = "--rerun-preempted 2 starts it again by itself; without --spot it is not taken back"
            error = RunFailedError(f"'{name}' was preempted: the cloud took the spot VM back", hint=spot_hint)
            return self._ended(Ending.PREEMPTED, vm_gone=True, error=error)
        if self._now() > self._limit_s - LIMIT_MARGIN_S:
            limit = duration(self._request.limit_s)
            error = RunFailedError(
                f"'{name}' reached its time limit of {limit} and left no result", hint="--max-run-time, longer"
            )
            return self._ended(Ending.LIMIT, vm_gone=True, error=error)
        error = RunFailedError(f"'{name}' was deleted before it had a result", hint=f"launch status {name}")
        if why := "; ".join(self._known.unreadable):
            error = RunFailedError(f"'{name}' has ended, and how is unknown: {why}", hint=f"launch logs {name}")
        return self._ended(Ending.DELETED, vm_gone=True, error=error)

    def _removed(self, ending: Ending, why: str) -> Followed:
        """Keep what the serial port says, remove the VM, and look for a result once more."""
        name = self._request.name
        self._on_event(Event(kind=Kind.NOTE, text=f"'{name}' {why}: removing the VM"))
        saved = save_serial(self._compute, self._zone, name, self._output)
        try:
            gone = remove(self._compute, self._zone, name, now=self._now, sleep=self._sleep)
        except DeniedError:
            gone = False
        self._read_objects()
        if self._known.result is not None:
            return self._ended(Ending.RESULT, vm_gone=gone)
        told = f"what it said is in {saved}" if saved else f"launch logs {name}"
        left = "" if gone else "; the VM could not be removed"
        hint = told if gone else f"launch down {name}; {told}"
        return self._ended(ending, vm_gone=gone, error=RunFailedError(f"'{name}' {why}{left}", hint=hint))

    def _ended(self, ending: Ending, *, vm_gone: bool, error: RooflaunchError | None = None) -> Followed:
        known = self._known
        return Followed(
            ending=ending,
            result=known.result,
            heartbeat=known.heartbeat,
            phases=dict(known.phases),
            calls=dict(self._calls),
            vm_gone=vm_gone,
            error=error,
        )


def serial_text(compute: Compute, zone: str, name: str) -> str:
    """Everything that the serial port still holds."""
    text, start = "", 0
    for _ in range(MAX_SERIAL_PARTS):
        part = compute.serial(zone, name, start)
        text += part.text
        if not part.text or part.next_start <= start:
            break
        start = part.next_start
    return text


def save_serial(compute: Compute, zone: str, name: str, output: Path) -> Path | None:
    """Write the serial port to `<output>/<name>-serial.txt`; None where it says nothing or cannot be had."""
    path = output / f"{name}-serial.txt"
    with suppress(RooflaunchError, OSError):
        if text := serial_text(compute, zone, name):
            bundle.make_output(output)
            path.write_text(text, encoding="utf-8", errors="replace")
            return path
    return None

"""State of launches, from their records in the store and their machines. Reads, never writes.

A machine ends itself only after it has written its result, and machines are listed before the store is read. If both
the machine and its result are missing, the machine has written no result.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from math import inf
from typing import Any, TypeVar

from launcher.jobs.liveness import PROVISIONING_S, Liveness, Observed, PlaceSays, StoreSays, boot_limit_s, liveness
from launcher.jobs.session import Session
from launcher.protocol.backend import Condition, Listing, Machine
from launcher.protocol.records import (
    LAUNCHES,
    NAME,
    READERS,
    RUNS,
    STAMP,
    Heartbeat,
    LaunchPhase,
    Request,
    Result,
    epoch_s,
    request_object,
    result_object,
    status_object,
    utc,
)
from workload.contract.errors import BundleError, ExitCode, NothingToDoError, UsageError
from workload.contract.spent import UPLOAD, Spent
from workload.contract.text import duration, printable
from workload.storage.store import Store, UnreachableError

T = TypeVar("T")

# Shortest part of a name that is accepted: a shorter one is probably a typing error, and `launch down` deletes.
MIN_WORD = 4
SHOWN = 20
FEW_ZONES = 3
NO_REQUEST = "no request in this bucket; perhaps it is in another --bucket"


class LaunchState(StrEnum):
    """State of a launch. `lost`: no VM and no result. `unknown`: the zone of the VM does not answer.

    `stale`: the VM is stopped, past its limit, or sends no heartbeat. `unreadable`: a record in the bucket is damaged,
    or does not belong to this launch.
    """

    REQUESTED = "requested"
    STARTING = "starting"
    RUNNING = "running"
    UPLOADING = "uploading"
    DONE = "done"
    FAILED = "failed"
    PREEMPTED = "preempted"
    LOST = "lost"
    STALE = "stale"
    UNREADABLE = "unreadable"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class Seen:
    """Records and machine of one launch; a record is None if absent, or if unreadable for a reason in `problems`.

    `noun`: the backend's word for a machine of a launch, such as VM or job.
    """

    name: str
    noun: str = "VM"
    request: Request | None = None
    heartbeat: Heartbeat | None = None
    result: Result | None = None
    machine: Machine | None = None
    # If no machine was found: zones that may have it and do not answer.
    unanswered: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def zone(self) -> str:
        """Zone in which the VM is or was; empty if unknown."""
        sources = (self.machine, self.result, self.heartbeat)
        return next((source.zone for source in sources if source is not None and source.zone), "")

    @property
    def phases(self) -> Mapping[str, str]:
        """ISO 8601 times by phase, in order."""
        times = {} if self.heartbeat is None else dict(self.heartbeat.phases)
        times |= {} if self.result is None else dict(self.result.phases)
        if self.request is not None:
            times.setdefault(LaunchPhase.REQUESTED, self.request.launched_at)
        return {phase: times[phase] for phase in LaunchPhase if phase in times}

    @property
    def runs(self) -> list[str]:
        """Ids of the bundles that the launch has uploaded."""
        source = self.result or self.heartbeat
        return list(source.runs) if source else []

    @property
    def launched_s(self) -> float | None:
        """Time of the launch in seconds since 1970; None if unknown."""
        if self.request:
            return epoch_s(self.request.launched_at)
        try:
            return datetime.strptime(_stamp(self.name), "%Y%m%d%H%M%S").replace(tzinfo=UTC).timestamp()
        except ValueError:
            return None


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Launch with its state. `why`: reason for the state, or progress. `liveness`: None if a record cannot be read."""

    seen: Seen
    state: LaunchState
    why: str = ""
    liveness: Liveness | None = None
    cost: "LaunchCost | None" = None

    @property
    def usd(self) -> float | None:
        """Cost of the VM so far, in USD; None if unknown."""
        return self.cost.usd if self.cost else None

    def to_json(self) -> dict[str, Any]:
        """Launch as JSON values."""
        seen, request = self.seen, self.seen.request
        return {
            "name": seen.name,
            "state": self.state,
            "why": self.why,
            "gpu": request.gpu if request else None,
            "zone": seen.zone or None,
            "machine_type": request.machine_type if request else None,
            "spot": request.spot if request else None,
            "attempt": request.attempt if request else None,
            "launched_at": request.launched_at if request else None,
            "limit_s": request.limit_s if request else None,
            "phases": dict(seen.phases),
            "runs": seen.runs,
            "last_line": seen.heartbeat.last_line if seen.heartbeat else "",
            "exit_code": seen.result.exit_code if seen.result else None,
            "vm": seen.machine.status if seen.machine else None,
            "usd": self.usd,
            "billed_from": self.cost.began if self.cost else None,
            "billed_to": self.cost.ended if self.cost else None,
        }


@dataclass(frozen=True, kw_only=True)
class LaunchCost:
    """Cost of a VM from its insert (`began`) to `ended`, both ISO 8601; `uncounted`: names of costs not included."""

    usd: float
    began: str | None
    ended: str
    uncounted: str

    def __str__(self) -> str:
        since = f", from {self.began} to {self.ended}" if self.began else ""
        return f"{self.usd:.3f} USD{since}; without {self.uncounted}"


def judge(seen: Seen, now_s: float, *, was_preempted: Callable[[], bool]) -> Launch:
    """State of a launch. `now_s`: by the cloud's clock; `was_preempted`: called only if a VM has vanished."""
    cost = cost_of(seen, now_s)
    if seen.problems:
        why = "; ".join((*seen.problems, *([f"the {seen.noun} exists"] if seen.machine else [])))
        return Launch(seen=seen, state=LaunchState.UNREADABLE, why=why, cost=cost)
    judged = liveness(_observed(seen, now_s, was_preempted))
    state, why = _state_of(judged, seen, now_s)
    return Launch(seen=seen, state=state, why=why, liveness=judged, cost=cost)


def _observed(seen: Seen, now_s: float, was_preempted: Callable[[], bool]) -> Observed:
    """Observations for the table of liveness; times are by the cloud's clock, as in heartbeats."""
    request, machine = seen.request, seen.machine
    age_s = now_s - (seen.launched_s or 0.0)
    over_limit_s = -inf
    if machine is not None and machine.deadline_s is not None:
        over_limit_s = now_s - machine.deadline_s
    elif machine is None and request is not None and not seen.unanswered:
        over_limit_s = age_s - request.limit_s
    return Observed(
        place=_place_says(seen),
        store=StoreSays.RESULT if seen.result else StoreSays.HEARTBEAT if seen.heartbeat else StoreSays.NOTHING,
        age_s=inf if request is None else age_s,
        silent_s=_silent_s(seen, now_s),
        # The machine may have been created up to this long after the request.
        booting_s=0.0 if request is None else age_s - PROVISIONING_S,
        boot_limit_s=boot_limit_s(request) if request else inf,
        over_limit_s=over_limit_s,
        may_restart=machine is not None and machine.may_start_again(now_s),
        # The place can tell of a preemption only if the zone is known.
        was_preempted=lambda: request is not None and bool(seen.zone) and was_preempted(),
    )


def _place_says(seen: Seen) -> PlaceSays:
    if seen.machine is None:
        return PlaceSays.UNREACHABLE if seen.unanswered else PlaceSays.GONE
    match seen.machine.condition:
        case Condition.GONE | Condition.RUNNING:
            return PlaceSays.UP
        case Condition.STOPPED:
            return PlaceSays.STOPPED
        case Condition.STARTING:  # a listing does not tell when the machine began to boot
            return PlaceSays.QUEUED


def _silent_s(seen: Seen, now_s: float) -> float:
    return now_s - (epoch_s(seen.heartbeat.at) or 0.0) if seen.heartbeat else 0.0


def _state_of(judged: Liveness, seen: Seen, now_s: float) -> tuple[LaunchState, str]:
    if judged is Liveness.ENDED:
        assert seen.result is not None
        result, why = seen.result, seen.result.error
        state = LaunchState.PREEMPTED if result.preempted else LaunchState.FAILED
        if result.exit_code == ExitCode.DONE:
            state, why = LaunchState.DONE, ""
        elif not (why or result.preempted):
            why = "the time limit was reached" if result.timed_out else f"exit code {result.exit_code}"
        machine = _machine_left(seen, now_s) if seen.machine else _no_answer(seen, f"the {seen.noun} is gone")
        return state, "; ".join(filter(None, (why, machine)))
    if judged is Liveness.ALIVE:
        assert seen.heartbeat is not None
        state, why = _progress_of(seen.heartbeat)
        return state, "; ".join(filter(None, (why, _no_answer(seen, f"the {seen.noun} exists"))))
    state, words = STATES[judged]
    return state, words(seen, now_s)


def _why_lost(seen: Seen, *, is_out_of_time: bool = False) -> str:
    if seen.request is None:
        return f"no readable request, no {seen.noun}, no result"
    if seen.heartbeat is None:
        return f"no {seen.noun} was made, or it left nothing; perhaps the launcher was killed"
    if is_out_of_time:
        return f"the time limit of {duration(seen.request.limit_s)} was reached, without a result"
    return f"the {seen.noun} is gone and left no result"


def _machine_left(seen: Seen, now_s: float) -> str:
    machine = seen.machine
    if machine is None:
        return ""
    if machine.may_start_again(now_s):
        return f"the {seen.noun} is {machine.status}; the cloud may start the {seen.noun} again, to save the results"
    if machine.condition is Condition.STOPPED:
        return f"the {seen.noun} is {machine.status}, and the disk still costs money: launch reap"
    return f"the {seen.noun} is still there"


def _no_answer(seen: Seen, what: str) -> str:
    """Text about zones that do not answer; empty if all do. `what`: the fact that is therefore unknown."""
    if not seen.unanswered:
        return ""
    some = ", ".join(seen.unanswered[:FEW_ZONES]) + (", …" if len(seen.unanswered) > FEW_ZONES else "")
    return f"it is unknown whether {what}: no answer from {some}"


# State as shown to people, and its reason in words, of a launch that has not ended and does not work.
STATES: Mapping[Liveness, tuple[LaunchState, Callable[[Seen, float], str]]] = {
    Liveness.REQUESTED: (LaunchState.REQUESTED, lambda seen, _: f"no {seen.noun} yet"),
    Liveness.PREEMPTED: (LaunchState.PREEMPTED, lambda *_: "the cloud took the spot VM away"),
    Liveness.LOST: (LaunchState.LOST, lambda seen, _: _why_lost(seen)),
    Liveness.OUT_OF_TIME: (LaunchState.LOST, lambda seen, _: _why_lost(seen, is_out_of_time=True)),
    Liveness.UNKNOWN: (LaunchState.UNKNOWN, lambda seen, _: _no_answer(seen, f"the {seen.noun} exists")),
    Liveness.GIVEN_UP: (LaunchState.UNKNOWN, lambda seen, _: _no_answer(seen, f"the {seen.noun} exists")),
    Liveness.QUEUED: (LaunchState.STARTING, lambda seen, _: seen.machine.status.lower() if seen.machine else ""),
    Liveness.BOOTING: (LaunchState.STARTING, lambda seen, _: "no heartbeat yet" if seen.request else NO_REQUEST),
    Liveness.RESTARTING: (LaunchState.STALE, _machine_left),
    Liveness.STOPPED: (LaunchState.STALE, _machine_left),
    Liveness.OVERDUE: (LaunchState.STALE, lambda seen, _: f"the {seen.noun} is past its limit: launch reap"),
    Liveness.SILENT: (LaunchState.STALE, lambda seen, now_s: f"no heartbeat for {duration(_silent_s(seen, now_s))}"),
    Liveness.NEVER_CAME_UP: (
        LaunchState.STALE,
        lambda seen, _: f"no heartbeat for {duration(boot_limit_s(seen.request))} and more" if seen.request else "",
    ),
}


def _progress_of(heartbeat: Heartbeat) -> tuple[LaunchState, str]:
    if LaunchPhase.UPLOADED in heartbeat.phases or LaunchPhase.RUN_ENDED in heartbeat.phases:
        profiling = (
            LaunchPhase.PROFILE_STARTED in heartbeat.phases and LaunchPhase.PROFILE_ENDED not in heartbeat.phases
        )
        return (LaunchState.RUNNING, "profiling") if profiling else (LaunchState.UPLOADING, heartbeat.last_line)
    return LaunchState.RUNNING, heartbeat.last_line


def cost_of(seen: Seen, now_s: float) -> LaunchCost | None:
    """Cost of the VM from its creation to the result, or to now if there is no result; None if unknown."""
    result, request, machine = seen.result, seen.request, seen.machine
    price = request.price(seen.zone) if request else None
    uncounted = price.uncounted if price else "traffic and tax"
    if result is not None:
        if result.usd is None:
            return None
        return LaunchCost(usd=result.usd, began=result.billed_from, ended=result.ended_at, uncounted=uncounted)
    began_s = machine.created_s if machine else None
    if price is None or began_s is None:
        return None
    seconds = max(0.0, now_s - began_s)
    return LaunchCost(usd=price.usd(seconds), began=utc(began_s), ended=utc(began_s + seconds), uncounted=uncounted)


def upload_of(request: Request, zone: str, phases: Mapping[str, str]) -> Spent:
    """Time and cost of the upload after the last run of a launch; empty if unknown, or if the launch was resumed."""
    names = (LaunchPhase.PROFILE_ENDED, LaunchPhase.RUN_ENDED, LaunchPhase.UPLOADED, LaunchPhase.FINISHED)
    profiled_s, run_s, uploaded_s, finished_s = (epoch_s(phases.get(name)) for name in names)
    began_s = run_s if profiled_s is None else profiled_s
    if began_s is None or uploaded_s is None or (finished_s or uploaded_s) < uploaded_s:
        return Spent()
    price, upload_s = request.price(zone), max(0.0, uploaded_s - began_s)
    return Spent(seconds={UPLOAD: upload_s}, usd=price.usd(upload_s) if price else None)


def list_launches(session: Session, *, limit: int | None = SHOWN) -> Listing[Launch]:
    """The newest `limit` launches and every launch that has a machine in a zone that answers, newest first."""
    now_s = session.now_s()
    listing = session.machines.look()
    machines = {machine.name: machine for machine in listing}
    names = known_names(session.store)
    wanted = names[:limit] + [name for name in names[limit:] if name in machines] if limit is not None else names
    wanted += [name for name in machines if name not in set(names)]
    with ThreadPoolExecutor(READERS) as readers:
        records = list(readers.map(lambda name: read_records(session.store, name, machines.get(name)), wanted))
    launches = [_judged(session, listing, seen, now_s) for seen in records]
    newest_first = sorted(launches, key=lambda launch: launch.seen.launched_s or 0.0, reverse=True)
    return Listing(there=tuple(newest_first), unreachable=listing.unreachable)


def launch_named(session: Session, name: str) -> Launch:
    """State of one launch, by its full name."""
    now_s = session.now_s()
    listing = session.machines.look()
    machine = next((machine for machine in listing if machine.name == name), None)
    launch = _judged(session, listing, read_records(session.store, name, machine), now_s)
    if launch.state is not LaunchState.LOST:
        return launch
    # The place may give a reason for the end of the machine.
    seen = launch.seen
    zones = (seen.zone,) if seen.zone else tuple(seen.request.zones) if seen.request else ()
    with suppress(UnreachableError):
        why = "; ".join(machine.why for machine in session.machines.look({seen.name: zones}) if machine.why)
        return replace(launch, why=f"{launch.why}: {why}") if why else launch
    return launch


def _judged(session: Session, listing: Listing[Machine], seen: Seen, now_s: float) -> Launch:
    unanswered = () if seen.machine else tuple(unlisted(listing, seen))
    seen = replace(seen, unanswered=unanswered, noun=session.machines.noun)

    def was_preempted() -> bool:
        try:
            return any(machine.preempted for machine in session.machines.look({seen.name: (seen.zone,)}))
        except UnreachableError:  # no error, because other launches can still be judged
            return False

    return judge(seen, now_s, was_preempted=was_preempted)


def unlisted(listing: Listing[Machine], seen: Seen) -> list[str]:
    """Zones that may have the launch's VM, but are missing in the listing."""
    requested = seen.request.zones if seen.request else listing.unreachable
    return [zone for zone in ([seen.zone] if seen.zone else requested) if listing.may_have_more(zone)]


def read_records(store: Store, name: str, machine: Machine | None) -> Seen:
    """Read every record of a launch; the heartbeat only if there is no result."""
    problems: list[str] = []
    result = read(store, result_object(name), Result.from_bytes, problems)
    request = read(store, request_object(name), Request.from_bytes, problems)
    if request is not None and request.name != name:
        problems.append(f"its request belongs to '{request.name}'")
        request = None
    return Seen(
        name=name,
        request=request,
        heartbeat=read(store, status_object(name), Heartbeat.from_bytes, problems) if result is None else None,
        result=result,
        machine=machine,
        problems=tuple(problems),
    )


def read(store: Store, name: str, parse: Callable[[bytes], T], problems: list[str]) -> T | None:
    """Read and parse a document; None if it is absent or unreadable, with the reason added to `problems`."""
    try:
        content = store.read(name)
        return None if content is None else parse(content)
    except BundleError as error:
        problems.append(str(error))
        return None


def known_names(store: Store) -> list[str]:
    """Names of all launches in the store, newest first."""
    return sorted(filter(NAME.fullmatch, store.folders(LAUNCHES)), key=lambda name: (_stamp(name), name), reverse=True)


def find(word: str, names: Sequence[str]) -> str:
    """Name of the launch that `word` means: its name, or an unambiguous beginning or end of the name.

    Raises `UsageError` if several launches match, `NothingToDoError` if none does.
    """
    if word in names:
        return word
    meant = [name for name in names if len(word) >= MIN_WORD and (name.startswith(word) or name.endswith(word))]
    if len(meant) == 1:
        return meant[0]
    if meant:
        some = ", ".join(meant[:4]) + (", …" if len(meant) > 4 else "")  # noqa: PLR2004 - a line of names
        raise UsageError(f"'{word}' matches {len(meant)} launches: {some}", hint="give a longer part of the name")
    raise NothingToDoError(f"no launch is named '{word[:200]}'", hint="launch status --all")


def _stamp(name: str) -> str:
    stamp = STAMP.search(name)
    return stamp[1] + stamp[2] if stamp else ""


COLUMNS = ("launch", "GPU", "zone", "state", "age", "USD", "runs", "")


def render(launches: Sequence[Launch], now_s: float) -> str:
    """Table of launches as text, a line each."""
    rows: list[tuple[str, ...]] = [COLUMNS]
    for launch in launches:
        seen, request = launch.seen, launch.seen.request
        age = "" if seen.launched_s is None else duration(now_s - seen.launched_s)
        gpu = "?" if request is None else (request.gpu or "-") + (" spot" if request.spot else "")
        usd = "?" if launch.usd is None else f"{launch.usd:.3f}"
        why = plain(launch.why)[:80]
        rows.append((seen.name, gpu, seen.zone or "-", launch.state, age, usd, str(len(seen.runs)), why))
    widths = [max(len(row[index]) for row in rows) for index in range(len(COLUMNS))]
    return "\n".join(
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def render_one(launch: Launch, store: Store, now_s: float, command: Callable[[str], str]) -> str:
    """All facts of one launch as lines, with the commands to type next. `command`: makes one for the launch's place."""
    seen, request = launch.seen, launch.seen.request
    lines = [("launch", seen.name), ("state", f"{launch.state}" + (f": {plain(launch.why)}" if launch.why else ""))]
    if request is not None and request.machine_type:
        kind = "spot" if request.spot else "on demand"
        lines.append(("machine", f"{request.machine_type}, {request.gpu} x {request.gpu_count}, {kind}"))
    if request is not None:
        lines.append(("limit", f"{duration(request.limit_s)} after its start"))
    lines.append(("zone", seen.zone or "none known"))
    lines.append((seen.noun, seen.machine.status if seen.machine else "none"))
    lines.append(("cost", str(launch.cost or "unknown")))
    lines += [("phase", text) for text in phase_lines(seen.phases)]
    if seen.result is None and seen.heartbeat is not None:
        silent_s = now_s - (epoch_s(seen.heartbeat.at) or now_s)
        lines.append(("heartbeat", f"{duration(silent_s)} ago: {plain(seen.heartbeat.last_line)}"))
    lines += [("run", run_id) for run_id in seen.runs]
    commands = [f"analyze fetch {store.locate(f'{RUNS}{run_id}')} -o results" for run_id in seen.runs[:3]]
    commands.append(command(f"logs {seen.name}" + ("" if seen.result else " -f")))
    commands += [command(f"down {seen.name}")] if seen.machine else []
    lines += [("next", text) for text in commands]
    return "\n".join(f"{label:<10} {text}" for label, text in lines)


def phase_lines(phases: Mapping[str, str]) -> list[str]:
    """Line per phase: its name, and the seconds since the first phase."""
    times = {phase: epoch_s(text) for phase, text in phases.items()}
    known = {phase: time for phase, time in times.items() if time is not None}
    first = next(iter(known.values()), 0.0)
    return [f"{phase:<16} +{max(0.0, time - first):.0f} s" for phase, time in known.items()]


def plain(text: str) -> str:
    """`text` in one line, with control characters escaped, because others wrote it."""
    return printable(" ".join(text.split()))

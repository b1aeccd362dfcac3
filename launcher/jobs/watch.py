"""Watches launches by polling until they have ended: a single launch, or the tasks of a sweep; and ends them.

Each poll asks for the machines first and then for their records, because a machine deletes itself only after it has
written its result. A machine's own time stamps do not show whether it is alive: our clock measures the time without a
heartbeat, and only over polls that were answered. A launch also ends and saves its results if nobody watches it.

`launch down` ends the named launches, `launch reap` all that are stopped or past their limit. A machine counts as gone
only if a later query confirms this. Machines are removed only if the place itself lists them as ours; we store no list
of machines.
"""

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from math import inf

from launcher.jobs import launches
from launcher.jobs.launches import read
from launcher.jobs.liveness import PROVISIONING_S, Liveness, Observed, PlaceSays, StoreSays, boot_limit_s, liveness
from launcher.jobs.session import Event, EventKind, Session
from launcher.protocol.backend import Condition, Listing, Machine, Machines, Removed
from launcher.protocol.records import (
    LAUNCHES,
    NAME,
    NO_VARIABLES,
    VARIABLES,
    Heartbeat,
    LaunchPhase,
    Request,
    Result,
    epoch_s,
    request_object,
    result_object,
    status_object,
    variables_object,
)
from workload.contract.errors import ExitCode, RooflaunchError, RunFailedError, ToolError
from workload.contract.text import counted, duration
from workload.storage.store import Store, why_unsafe

AT_A_TIME = 8


def down(chosen: Sequence[Machine], machines: Machines, store: Store | None) -> list[Removed]:
    """Remove these machines, all at once, and note in the store who ended them."""
    removed = machines.stop(chosen)
    now_s = machines.now_s() if removed else 0.0

    def note(machine: Removed) -> None:
        if machine.gone and store is not None:
            error = f"the {machines.noun} was removed by `launch down`"
            settle(store, machine.name, machine.zone, ExitCode.INTERRUPTED, error, now_s=now_s)

    with ThreadPoolExecutor(AT_A_TIME) as workers:
        list(workers.map(note, removed))
    return list(removed)


def settle(
    store: Store,
    name: str,
    zone: str,
    exit_code: int,
    error: str,
    *,
    now_s: float,
    preempted: bool = False,
    timed_out: bool = False,
) -> None:
    """Write a result for a launch whose machine is gone, if it has none. Errors of the store are ignored.

    The phases and runs that the machine reported last are kept.
    """
    with suppress(RooflaunchError):
        seen = launches.read_records(store, name, None)
        request = store.read(request_object(name))
        if seen.result is not None or request is None:
            return
        if Request.from_bytes(request).script.get("env"):
            store.write(variables_object(name), NO_VARIABLES, is_private=True)
        result = Result(
            exit_code=int(exit_code),
            zone=zone,
            runs=seen.runs,
            phases=seen.phases,
            ended_at=datetime.fromtimestamp(now_s, UTC).isoformat(timespec="milliseconds"),
            error=error,
            preempted=preempted,
            timed_out=timed_out,
        )
        store.write(result_object(name), result.to_bytes(), if_absent=True)


def erase_variables(store: Store, machines: Machines, *, down: Collection[str] = ()) -> list[str]:
    """Erase the stored environment variables (`--env`) of every launch that is over; return the launches' names.

    Errors of the store are ignored.
    A launch without a machine is over once its launcher can no longer be requesting a machine. `down`: names of
    launches that a user ended, which are over as soon as they have no machine.
    """
    with suppress(RooflaunchError):
        # An object with variables is longer than an emptied one.
        names = [
            listed.name.removeprefix(VARIABLES).removesuffix(".json")
            for listed in store.objects(VARIABLES)
            if listed.bytes > len(NO_VARIABLES)
        ]
        if names := [name for name in names if NAME.fullmatch(name)]:
            listing, now_s = machines.look(), machines.now_s()
            ended = [name for name in names if not _may_live(store, name, listing, now_s, is_down=name in down)]
            return [name for name in ended if store.write(variables_object(name), NO_VARIABLES, is_private=True)]
    return []


def _may_live(store: Store, name: str, listing: Listing[Machine], now_s: float, *, is_down: bool) -> bool:
    machine = next((machine for machine in listing if machine.name == name), None)
    seen = launches.read_records(store, name, machine)
    if seen.result is not None:
        return False
    if machine is not None or listing.unreachable:
        return True
    # A launcher may still be requesting the machine.
    return now_s - (seen.launched_s or 0.0) < PROVISIONING_S and not is_down


def require_gone(removed: Sequence[Removed], unlisted: Sequence[str] = ()) -> None:
    """Raise `ToolError` naming all items not confirmed to be gone, and zones that do not answer."""
    doubtful = [f"{item.kind} {item.name} in {item.zone}: {item.reason}" for item in removed if not item.gone]
    doubtful += [f"anything in {zone}, which does not answer" for zone in unlisted]
    if doubtful:
        verb = "confirmed" if any(not item.gone and not item.unknown for item in removed) else "known"
        raise ToolError(
            f"not {verb} to be gone: {'; '.join(doubtful)}",
            hint="run the same command again; launch status shows what is left",
        )


# (seconds since the start, seconds between polls until then): most changes happen soon after the start.
SCHEDULE = ((120.0, 5.0), (600.0, 10.0))
LATER_EVERY_S = 30.0
# Longest pause between polls that are not answered.
MAX_BACKOFF_S = 60.0
# A machine may vanish while its last records arrive: number of further polls, and the seconds between them.
GRACE_POLLS = 3
GRACE_S = 5.0
# A machine that vanished at most this long before its limit was ended by the limit.
LIMIT_MARGIN_S = 60.0
# Time for a place to start a machine again after a failure of its host, which takes some minutes.
RESTART_S = 15 * 60.0


def interval_s(elapsed_s: float) -> float:
    """Seconds to wait before the next poll; `elapsed_s`: seconds since the launch was submitted."""
    return next((every for until, every in SCHEDULE if elapsed_s < until), LATER_EVERY_S)


@dataclass(kw_only=True)
class WatchedLaunch:
    """A launch as of its last poll. Times are in seconds since 1970 by the clock of the machine's place."""

    request: Request
    # Zones in which the launch's machine may be.
    zones: tuple[str, ...] = ()
    # Whether this process submitted the launch; if so, the machine has existed.
    is_ours: bool = True
    # The machine as last listed while it existed.
    machine: Machine | None = None
    # The machine in the last listing that was answered, perhaps listed as gone; None before the first such listing.
    listed: Machine | None = None
    heartbeat: Heartbeat | None = None
    result: Result | None = None
    # Why the result in the store cannot be read.
    unreadable: list[str] = field(default_factory=list)
    # Versions of the records at their last reading, by name.
    versions: dict[str, str] = field(default_factory=dict)
    phases: dict[str, str] = field(default_factory=dict)
    liveness: Liveness | None = None
    # Whether the end of the machine is confirmed.
    is_gone: bool = False
    # Polls in a row without the machine.
    gone_polls: int = 0
    # Why the launch has ended without a result, as the rest of a sentence that begins with the launch's name; empty
    # before the end, and with a result.
    why: str = ""
    hint: str = ""
    # Times at which the boot began and at which the time limit ends; None and 0 before the first poll.
    boots_from_s: float | None = None
    limit_s: float = 0.0
    # Seconds without a new heartbeat or phase. `counted_to_s`: time of the last poll that added to them; None after a
    # poll without an answer.
    silent_s: float = 0.0
    counted_to_s: float | None = None
    # Time at which the machine was first seen stopped.
    stopped_s: float | None = None

    @property
    def name(self) -> str:
        return self.request.name

    @property
    def has_ended(self) -> bool:
        """Whether there is a result, or a reason why there is none."""
        return self.result is not None or bool(self.why)

    @property
    def error(self) -> RooflaunchError | None:
        """Error of a launch that has ended without a result."""
        kind = ToolError if self.liveness is Liveness.GIVEN_UP else RunFailedError
        return kind(f"'{self.name}' {self.why}", hint=self.hint) if self.why and not self.result else None

    @property
    def announced_runs(self) -> list[str]:
        """Ids of the bundles that the machine has reported as uploaded."""
        source = self.result or self.heartbeat
        return [run_id for run_id in (source.runs if source else ()) if not why_unsafe(run_id) and "/" not in run_id]

    def changed(self, versions: Mapping[str, str]) -> dict[str, str]:
        """Records of the launch that are new or have changed since they were last read, as version by object name.

        `versions`: version by object name as the store lists them.
        """
        names = (result_object(self.name), status_object(self.name))
        return {name: versions[name] for name in names if versions.get(name, "") not in ("", self.versions.get(name))}

    def begin(self, now_s: float) -> None:
        """Begin to measure the boot time and the time limit, at `now_s`."""
        self.boots_from_s, self.limit_s = now_s, now_s + self.request.limit_s

    def restart_silence(self, now_s: float) -> None:
        """Measure the time without a heartbeat from `now_s` on, after a new heartbeat or phase."""
        self.silent_s, self.counted_to_s = 0.0, now_s

    def note_machine(self, machine: Machine, now_s: float) -> None:
        """Note the machine as its place lists it, and the time since its last heartbeat."""
        self.listed = machine
        if machine.deadline_s is not None:
            self.limit_s = machine.deadline_s
        if machine.condition is Condition.GONE:
            return
        self.machine = machine
        if machine.queued:
            self.begin(now_s)
            self.restart_silence(now_s)
        elif machine.condition is not Condition.STOPPED:
            self.stopped_s = None
            self.silent_s += 0.0 if self.counted_to_s is None else now_s - self.counted_to_s
            self.counted_to_s = now_s
        elif machine.restarts:
            # Most likely the machine's host failed. The cloud usually restarts the machine within `RESTART_S`, and the
            # machine then saves its bundles. Until then, missing heartbeats and boot time do not count.
            self.stopped_s = self.stopped_s or now_s
            self.boots_from_s = now_s
            self.restart_silence(now_s)

    def observed(self, now_s: float) -> Observed:
        """Observations for the table of liveness. Call it after `note_machine`."""
        machine = self.listed
        assert machine is not None
        over_limit_s = now_s - self.limit_s
        stopped_s = 0.0 if self.stopped_s is None else now_s - self.stopped_s
        return Observed(
            place=_place_says(machine),
            store=StoreSays.RESULT if self.result else StoreSays.HEARTBEAT if self.heartbeat else StoreSays.NOTHING,
            age_s=inf if self.is_ours else now_s - (epoch_s(self.request.launched_at) or 0.0),
            silent_s=self.silent_s,
            booting_s=now_s - (self.boots_from_s or now_s),
            boot_limit_s=boot_limit_s(self.request),
            over_limit_s=over_limit_s + LIMIT_MARGIN_S if machine.condition is Condition.GONE else over_limit_s,
            may_restart=machine.restarts and stopped_s <= RESTART_S,
            was_preempted=lambda: machine.preempted,
        )


def _place_says(machine: Machine) -> PlaceSays:
    if machine.queued:
        return PlaceSays.QUEUED
    says = {Condition.GONE: PlaceSays.GONE, Condition.STOPPED: PlaceSays.STOPPED}
    return says.get(machine.condition, PlaceSays.UP)


class Watch:
    """Polls the machines and records of launches at one place.

    `asks_phases`: ask each booting machine for its phases, one request per machine and poll. `run_all`: runs functions
    that each read the records of a launch; None: one by one.
    """

    def __init__(
        self,
        session: Session,
        *,
        asks_phases: bool = False,
        run_all: Callable[[Sequence[Callable[[], None]]], object] | None = None,
    ) -> None:
        self._session, self._machines, self._noun = session, session.machines, session.machines.noun
        self._asks_phases = asks_phases
        self._run_all = run_all or (lambda tasks: [task() for task in tasks])
        self._unanswered_polls = 0
        self._is_in_grace = False

    def pause_s(self, elapsed_s: float) -> float:
        """Seconds to wait before the next poll; `elapsed_s`: seconds since the newest launch was submitted."""
        if self._is_in_grace:
            return GRACE_S
        backoff: int = 2 ** min(self._unanswered_polls, 4)
        return min(MAX_BACKOFF_S, interval_s(elapsed_s) * backoff)

    @contextmanager
    def outlasting(self, launches: Sequence[WatchedLaunch]) -> Iterator[None]:
        """Tolerate a `ToolError` of a place or store that does not answer, and note it once.

        A launch is given up only when its place must have deleted its machine.
        """
        try:
            yield
        except ToolError as error:
            if not self._unanswered_polls:
                machines = (
                    f"the {self._noun} continues by itself"
                    if len(launches) == 1
                    else f"{counted(len(launches), self._noun)} continue by themselves"
                )
                self._session.note(f"{error}; {machines}; trying again")
            self._unanswered_polls += 1
            for launch in launches:
                self._note_no_answer(launch, error)
        else:
            if self._unanswered_polls:
                self._session.note("the cloud answers again")
            self._unanswered_polls = 0

    def poll(self, launches: Sequence[WatchedLaunch]) -> None:
        """Ask for all machines, then read the new records, and judge each launch.

        Raises `ToolError` if the place or the store does not answer.
        """
        for launch in launches:
            if launch.boots_from_s is None:
                launch.begin(self._session.now_s())
        listing = self._machines.look({launch.name: launch.zones for launch in launches})
        machines = {machine.name: machine for machine in listing}
        if not machines:
            raise _no_answer(launches[0])
        self._read_records(launches)
        for launch in launches:
            if launch.name in machines:
                self._judge(launch, machines[launch.name])
            else:
                self._note_no_answer(launch, _no_answer(launch))
        self._is_in_grace = any(launch.gone_polls and not launch.has_ended for launch in launches)

    def remove(self, launches: Sequence[WatchedLaunch]) -> None:
        """Remove the machines of these launches, all at once, and look for their results once more."""
        now_s = self._session.now_s()
        reasons = {launch.name: _why_removed(launch, now_s, self._noun) for launch in launches if not launch.result}
        for name, why in reasons.items():
            self._session.note(f"'{name}' {why}: removing the {self._noun}")
        machines = [launch.machine for launch in launches if launch.machine is not None]
        gone = {removed.name for removed in self._machines.stop(machines) if removed.gone} if machines else set()
        self._read_records(launches)
        for launch in launches:
            launch.is_gone = launch.name in gone
            if launch.result is None:
                launch.why, launch.hint = reasons[launch.name], f"launch logs {launch.name}"
            else:
                launch.liveness = Liveness.ENDED

    def _read_records(self, launches: Sequence[WatchedLaunch]) -> None:
        # Longest common prefix of the launches' objects, so that the listing has few other launches.
        start = os.path.commonprefix([f"{LAUNCHES}{launch.name}/" for launch in launches])  # noqa: RUF071 - no paths
        versions = {stored.name: stored.version for stored in self._session.store.objects(start)}
        changed = [(launch, launch.changed(versions)) for launch in launches if launch.result is None]
        self._run_all([partial(self._read, launch, new) for launch, new in changed if new])
        for launch, _ in changed:
            source = launch.result or launch.heartbeat
            self._tell_phases(launch, source.phases if source else {})

    def _read(self, launch: WatchedLaunch, new: Mapping[str, str]) -> None:
        """Read the records in `new` (version by object name); the heartbeat only if there is no result."""
        store, result, status = self._session.store, result_object(launch.name), status_object(launch.name)
        if result in new:
            launch.unreadable = []
            launch.result = read(store, result, Result.from_bytes, launch.unreadable)
        # If the result is unreadable, the heartbeat still tells whether the machine works.
        if launch.result is None and status in new:
            heartbeat = read(store, status, Heartbeat.from_bytes, [])
            if heartbeat is not None:
                launch.heartbeat = heartbeat
                launch.restart_silence(self._session.now_s())
        launch.versions |= new

    def _tell_phases(self, launch: WatchedLaunch, phases: Mapping[str, str]) -> None:
        for phase in LaunchPhase:
            if phase in phases and phase not in launch.phases:
                launch.phases[phase] = phases[phase]
                launch.restart_silence(self._session.now_s())
                self._session.on_event(Event(kind=EventKind.PHASE, text=phase, at_s=epoch_s(phases[phase])))

    def _judge(self, launch: WatchedLaunch, machine: Machine) -> None:
        was_stopped, now_s = launch.stopped_s is not None, self._session.now_s()
        if machine.why_not_starting and (launch.listed is None or not launch.listed.why_not_starting):
            self._session.note(f"'{launch.name}' waits: {machine.status}")
        launch.note_machine(machine, now_s)
        if launch.result is None and launch.stopped_s is not None and not was_stopped:
            waits = "the cloud starts it again, to save its results"
            self._session.note(f"'{launch.name}' is {machine.status}: {waits}")
        if self._asks_phases and _place_says(machine) is PlaceSays.UP and not (launch.result or launch.heartbeat):
            self._tell_phases(launch, self._machines.phases(machine))
        launch.liveness = liveness(launch.observed(now_s))
        launch.is_gone = machine.condition is Condition.GONE and launch.liveness is not Liveness.REQUESTED
        launch.gone_polls = launch.gone_polls + 1 if launch.is_gone else 0
        if launch.gone_polls > GRACE_POLLS and not launch.has_ended:
            launch.why, launch.hint = _why_gone(launch, machine)

    def _note_no_answer(self, launch: WatchedLaunch, error: ToolError) -> None:
        """Note that a poll had no answer for a launch, and give the launch up if it is past its time limit.

        The time up to the next answer does not count as time without a heartbeat.
        """
        launch.counted_to_s = None
        over_limit_s = self._session.now_s() - launch.limit_s
        seen = Observed(place=PlaceSays.UNREACHABLE, store=StoreSays.NOTHING, over_limit_s=over_limit_s)
        if liveness(seen) is Liveness.GIVEN_UP:
            launch.liveness = Liveness.GIVEN_UP
            launch.why = f"could not be followed to its time limit: {error}"
            launch.hint = f"launch status {launch.name}"


def settle_watched(session: Session, launch: WatchedLaunch, error: str) -> None:
    """Write a result for a launch that has ended without a result, so that other programs see its end."""
    settle(
        session.store,
        launch.name,
        launch.zones[0] if len(launch.zones) == 1 else "",
        RunFailedError.exit_code,
        error,
        now_s=session.now_s(),
        preempted=launch.liveness is Liveness.PREEMPTED,
        timed_out=launch.liveness in (Liveness.OUT_OF_TIME, Liveness.OVERDUE),
    )


def _no_answer(launch: WatchedLaunch) -> ToolError:
    zones = ", ".join(launch.zones)
    return ToolError(
        f"nothing is known of '{launch.name}': {zones} does not answer", hint=f"launch status {launch.name}"
    )


def _why_removed(launch: WatchedLaunch, now_s: float, noun: str) -> str:
    """Text on why a launch's machine is removed, as the rest of a sentence that begins with the launch's name."""
    machine = launch.machine
    assert machine is not None
    if machine.why_not_starting:
        return f"was not started: {machine.why_not_starting}"
    if launch.liveness is Liveness.STOPPED and machine.restarts and launch.stopped_s is not None:
        return f"stopped and was not started again in {duration(now_s - launch.stopped_s)}"
    if launch.liveness is Liveness.STOPPED:
        return f"stopped by itself ({machine.status})"
    if launch.liveness is Liveness.OVERDUE:
        return "was still there after its time limit"
    if launch.liveness is Liveness.SILENT:
        return f"has sent no heartbeat for {duration(launch.silent_s)}"
    last = next(reversed(launch.phases), f"nothing, {noun} {machine.status}")
    return f"did not start the run within {duration(now_s - (launch.boots_from_s or now_s))} (last: {last})"


def _why_gone(launch: WatchedLaunch, machine: Machine) -> tuple[str, str]:
    name, spot = launch.name, launch.request.spot
    if launch.liveness is Liveness.PREEMPTED and spot:
        return (
            "was preempted: the cloud took the spot VM away",
            "--rerun-preempted 2 starts it again automatically; without --spot it is not taken away",
        )
    if launch.liveness is Liveness.PREEMPTED:
        return f"was preempted: {machine.why}", "launch again"
    if launch.liveness is Liveness.OUT_OF_TIME and not machine.why:
        limit = duration(launch.request.limit_s)
        return f"reached its time limit of {limit} and left no result", "--max-run-time, longer"
    if why := "; ".join(launch.unreadable):
        return f"has ended, but it is unknown how: {why}", f"launch logs {name}"
    if machine.why:
        return f"ended without a result: {machine.why}", f"launch logs {name}"
    return "was deleted before it had a result", f"launch status {name}"

"""Heartbeat and lease of a launch, as its machine writes them into the store; and how a run is stopped early.

The heartbeat has the machine's progress. Only the agent that holds the lease works on the launch: a lease is an object
`launches/<name>/lease-<number>.json`, created only if it is absent. The agent that created the highest number holds the
launch while its heartbeat comes. A lease tells which agent works, never which runs are done.
"""

import os
import platform
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from enum import StrEnum
from pathlib import Path

from launcher.agent.home import Home, HostFacts, iso
from launcher.machine.watcher import Trainer
from launcher.protocol import records
from launcher.protocol.records import (
    LAUNCHES,
    Heartbeat,
    LaunchPhase,
    LeaseRecord,
    lease_object,
    result_object,
    status_object,
)
from workload.contract.errors import BundleError, InterruptedRunError, RooflaunchError, ToolError
from workload.contract.operating_system import SIGKILL
from workload.storage.store import Patience, Store

PRESS_EVERY_S = 2.0
# Time for the trainer to finish its step and to seal its bundle. A spot VM ends 30 s after the notice of its end.
SEAL_S = 12.0


class Why(StrEnum):
    """Reason why a run is stopped early."""

    PREEMPTED = "preempted"
    TIMED_OUT = "timed out"
    ASKED = "asked"
    TAKEN_OVER = "taken over"


class Stop:
    """Sends SIGTERM to the trainer repeatedly, and finally SIGKILL.

    The trainer is process 1 of its container. Such a process ignores SIGTERM until it has installed a handler, so a
    single SIGTERM could be lost.
    """

    def __init__(self, *, press_every_s: float = PRESS_EVERY_S, seal_s: float = SEAL_S) -> None:
        self.why: Why | None = None
        self._press_every_s, self._presses = press_every_s, seal_s / press_every_s
        self._trainer: Trainer | None = None
        self._over, self._asked = threading.Event(), threading.Event()

    def ask(self, why: Why) -> None:
        """Stop the run. The first reason is kept, except that a preemption replaces `ASKED`."""
        if self.why is None:
            self.why = why
            self._asked.set()
            threading.Thread(target=self._press, daemon=True).start()
        elif self.why is Why.ASKED and why is Why.PREEMPTED:
            self.why = why

    def started(self, trainer: Trainer) -> None:
        """Register the running trainer, which a stop would end."""
        self._trainer = trainer

    def ended(self) -> None:
        """Forget the trainer, which has ended."""
        self._trainer = None

    def close(self) -> None:
        """End all waiting: nothing runs any more, and nothing will be started."""
        self._over.set()

    def is_over(self, wait_s: float) -> bool:
        """Wait at most `wait_s` seconds; return whether this object is closed."""
        return self._over.wait(wait_s)

    def is_asked(self, wait_s: float) -> bool:
        """Wait at most `wait_s` seconds; return whether a stop was requested."""
        return self._asked.wait(wait_s)

    def _press(self) -> None:
        presses = 0
        while True:
            if trainer := self._trainer:
                trainer.send_signal(signal.SIGTERM if presses < self._presses else SIGKILL)
            presses += 1
            if self.is_over(self._press_every_s):
                return


HEARTBEAT_EVERY_S = 15.0
# Cloud Storage accepts one write per second to the same object.
HEARTBEAT_PAUSE_S = 1.0


class HeartbeatWriter:
    """Writes the heartbeat of one launch. Safe to share between threads."""

    def __init__(
        self,
        name: str,
        zone: str,
        *,
        home: Home,
        host: HostFacts,
        store: Store,
        now: Callable[[], float],
        is_lost: Callable[[], bool],
        on_lost: Callable[[], None],
    ) -> None:
        """Prepare to write heartbeats.

        `is_lost`: returns whether another agent has taken over the launch. `on_lost`: called once when that happens.
        """
        self.last_line = ""
        self.is_lost = False
        self._is_taken_over, self._on_lost = is_lost, on_lost
        self._name, self._zone, self._home, self._host, self._store = name, zone, home, host, store
        self._now = now
        self._wake = threading.Event()

    def enter(self, phase: LaunchPhase) -> None:
        """Record and report the beginning of a phase."""
        if self.is_lost:
            return
        at = iso(self._now())
        print(f"rooflaunch: phase {phase} {at}", flush=True)
        self._home.note_phase(phase, at)
        self._report(phase, at)
        self._wake.set()

    def beat(self) -> None:
        """Write a heartbeat. A store that does not answer is ignored."""
        if not self.is_lost and self._is_taken_over():
            self.is_lost = True
            self._on_lost()
        if self.is_lost:  # another agent writes the heartbeat now
            return
        at = iso(self._now())
        heartbeat = Heartbeat(
            at=at, zone=self._zone, phases=self._home.phases(), runs=self._home.uploaded(), last_line=self.last_line
        )
        self._report("heartbeat", at)
        with suppress(RooflaunchError, OSError):
            self._store.with_patience(Patience()).write(records.status_object(self._name), heartbeat.to_bytes())

    def _report(self, name: str, value: str) -> None:
        with suppress(ToolError):  # a report may fail: a project may switch off guest attributes
            self._host.report(name, value)

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Write heartbeats while the context lasts: regularly, when a phase begins, and at the end."""
        is_over = threading.Event()

        def write_heartbeats() -> None:
            while not is_over.is_set():
                self._wake.clear()
                self.beat()
                is_over.wait(HEARTBEAT_PAUSE_S)
                self._wake.wait(HEARTBEAT_EVERY_S)

        thread = threading.Thread(target=write_heartbeats, daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            self._wake.set()
            thread.join()
            self.beat()


# --- the lease

# A lease is stale after two minutes (8 polls of 15 s) without a heartbeat: a network file system may show one a minute
# late. Polls are counted, not seconds: while a store does not answer, the holder cannot renew its lease either.
STALE_POLLS = 8
NUMBERED = re.compile(r"lease-([1-9][0-9]{0,5})\.json")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
PROCESS = re.compile(r"(\S+) ([0-9]{1,10}) \S+")


class Lease:
    """Lease of a launch, held by this process."""

    def __init__(self, store: Store, name: str, number: int, record: LeaseRecord) -> None:
        self._store, self._name, self.number, self._record = store, name, number, record

    def is_lost(self) -> bool:
        """Whether another agent has taken over the launch; False if the store does not answer."""
        with suppress(RooflaunchError, OSError):
            following = lease_object(self._name, self.number + 1)
            return self._store.with_patience(Patience()).read(following) is not None
        return False

    def release(self) -> None:
        """Release the lease, so that the next agent begins at once and does not wait until the lease is stale."""
        with suppress(RooflaunchError, OSError):
            ended = replace(self._record, released=True)
            self._store.write(lease_object(self._name, self.number), ended.to_bytes())


def take(
    store: Store, name: str, *, now: Callable[[], float], wait: Callable[[float], bool], after_end: bool = False
) -> Lease | None:
    """Return the lease once no other agent works on the launch; None if the launch has its result.

    `after_end`: take the lease even if the launch has a result, to upload bundles that an agent has left behind.
    `wait`: waits for a number of seconds and returns whether this process was told to stop. If so, `take` raises
    `InterruptedRunError`.
    """
    queue = _Queue(store, name, now)
    while not queue.is_over() or after_end:
        if lease := queue.lease():
            return lease
        if wait(HEARTBEAT_EVERY_S):
            raise InterruptedRunError(
                f"asked to stop while another agent works on '{name}'", hint=f"launch status {name}"
            )
    return None


class _Queue:
    """State of a launch as seen by an agent that waits for its lease; updated at each poll."""

    def __init__(self, store: Store, name: str, now: Callable[[], float]) -> None:
        self._store, self._name, self._now = store, name, now
        self._number, self._heartbeat, self._quiet_polls = 0, "", 0

    def is_over(self) -> bool:
        """Poll the store. Returns whether the launch has its result."""
        versions = {stored.name: stored.version for stored in self._store.objects(f"{LAUNCHES}{self._name}/")}
        matches = (NUMBERED.fullmatch(name.rpartition("/")[2]) for name in versions)
        number = max((int(match[1]) for match in matches if match), default=0)
        heartbeat = versions.get(status_object(self._name), "")
        if number and not self._number:
            print(f"another agent has lease {number} of '{self._name}': waiting until it ends", flush=True)
        is_quiet = (number, heartbeat) == (self._number, self._heartbeat)
        self._number, self._heartbeat = number, heartbeat
        self._quiet_polls = self._quiet_polls + 1 if is_quiet else 0
        return result_object(self._name) in versions

    def lease(self) -> Lease | None:
        """Create the lease; None if another agent has it. If several agents try at once, only one of them succeeds."""
        own = _this_process(iso(self._now()))
        if self._number and self._quiet_polls < STALE_POLLS and not self._is_given_up(own):
            return None
        number = self._number + 1
        is_ours = self._store.write(lease_object(self._name, number), own.to_bytes(), if_absent=True)
        return Lease(self._store, self._name, number, own) if is_ours else None

    def _is_given_up(self, own: LeaseRecord) -> bool:
        """Whether the holder has released its lease, or is known to have ended."""
        try:
            held = LeaseRecord.from_bytes(self._store.read(lease_object(self._name, self._number)) or b"")
        except BundleError:
            return False
        return held.released or _has_ended(held, own)


def _this_process(at: str) -> LeaseRecord:
    """Lease record of this process. Without /proc, other agents cannot tell later whether the process has ended."""
    with suppress(OSError):
        boot = BOOT_ID.read_text(encoding="ascii").strip()
        space = Path("/proc/self/ns/pid").readlink()
        process = f"{space} {os.getpid()} {_started(os.getpid())}"
        return LeaseRecord(at=at, host=platform.node(), boot=boot, process=process)
    return LeaseRecord(at=at, host=platform.node())


def _has_ended(held: LeaseRecord, own: LeaseRecord) -> bool:
    """Whether the process that took the lease `held` is known to have ended, for example by a reboot.

    False for a process of another machine. `own`: lease record of this process.
    """
    if held.host != own.host or not held.boot or not own.boot:
        return False
    if held.boot != own.boot:
        return True
    holder, this = PROCESS.fullmatch(held.process), PROCESS.fullmatch(own.process)
    if not holder or not this:
        return False
    # All containers of a launch have the same name: since this container could start, any earlier container has ended.
    return holder[1] != this[1] or _started(int(holder[2])) != held.process.rpartition(" ")[2]


def _started(process: int) -> str:
    """Start time of a process in kernel ticks; empty once the process has ended.

    The time tells apart processes that had the same number one after the other.
    """
    try:
        words = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if words[0] == "Z" else words[19]

"""Heartbeat, lease and bundles of a launch, as its machine writes them into the store; how a run is stopped early.

The heartbeat has the machine's progress. Only the agent that holds the lease works on the launch: a lease is an object
`launches/<name>/lease-<number>.json`, created only if it is absent. The agent that created the highest number holds the
launch while its heartbeat comes. A lease tells which agent works, never which runs are done.

Each bundle is uploaded once, after costs and other facts of the agent were added to it.
"""

import os
import platform
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from enum import StrEnum
from pathlib import Path

from launcher.agent.home import Home, HostFacts, full_disk_reported, iso
from launcher.machine.task import FINAL
from launcher.machine.watcher import Trainer
from launcher.protocol import records
from launcher.protocol.records import (
    LAUNCHES,
    Heartbeat,
    LaunchPhase,
    LeaseRecord,
    Price,
    Request,
    epoch_s,
    lease_object,
    result_object,
    status_object,
)
from workload.contract import bundle
from workload.contract.errors import BundleError, InterruptedRunError, RooflaunchError, ToolError
from workload.contract.operating_system import SIGKILL
from workload.contract.record import Cost, Status
from workload.contract.record_sections import CloudFacts
from workload.storage.inventory import sealed_runs, upload
from workload.storage.store import ObjectExistsError, Patience, Store

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


class CostShares:
    """Divides the machine's time from `began_s` on among the runs as they end. Safe to share between threads."""

    def __init__(self, began_s: float) -> None:
        self.began_s = began_s
        self._billed_to_s = began_s
        # By bundle folder: begin and end of the run's charged time, and the seconds charged in between.
        self._shares: dict[Path, tuple[float, float, float]] = {}
        self._lock = threading.Lock()

    def charge(self, folder: Path, now_s: float) -> None:
        """Charge a run for the time since the previous charge of any run; for the first charge, since costs began."""
        with self._lock:
            charged_s = now_s - self._billed_to_s
            from_s, _, seconds = self._shares.get(folder, (self._billed_to_s, 0.0, 0.0))
            self._shares[folder], self._billed_to_s = (from_s, now_s, seconds + charged_s), now_s

    def resume(self, billed_to_s: float) -> None:
        """Continue after a restart of the machine: the time up to `billed_to_s` was charged before."""
        with self._lock:
            self._billed_to_s = max(self._billed_to_s, billed_to_s)

    def usd(self, price: Price | None, now_s: float) -> float | None:
        """Cost of the whole launch, in USD; None if the price is unknown, or the clock was set back since the start."""
        return price.usd(now_s - self.began_s) if price and now_s >= self.began_s else None

    def cost(self, folder: Path, price: Price | None, now_s: float) -> Cost:
        """Cost of a run, for its run.json. A run that was not charged before is charged now.

        In the returned `Cost`, `usd` is None if the price is unknown. `billed_s` is less than the time from
        `billed_from` to `billed_to` if another run was charged in between.
        """
        if folder not in self._shares:
            self.charge(folder, now_s)
        from_s, to_s, seconds = self._shares[folder]
        billed_s = max(0.0, seconds)
        return Cost(
            usd_per_h=price.usd_per_h if price else None,
            disk_usd_per_h=price.disk_usd_per_h if price else None,
            address_usd_per_h=price.address_usd_per_h if price else None,
            price_date=price.read if price else None,
            billed_from=iso(from_s),
            billed_to=iso(to_s),
            billed_s=round(billed_s, 3),
            usd=price.usd(billed_s) if price else None,
        )


class Delivery:
    """Bundles of one launch: `folders`, in the order in which they were begun. Safe to share between threads."""

    def __init__(
        self,
        request: Request,
        zone: str,
        *,
        home: Home,
        store: Store,
        costs: CostShares,
        stop: Stop,
        now: Callable[[], float],
    ) -> None:
        self.folders: list[Path] = []
        self._price = request.price(zone)
        self._home, self._store, self._costs, self._stop, self._now = home, store, costs, stop, now
        self._sending = threading.Lock()
        # Bundles uploaded by this agent, or by an earlier agent here. Kept in memory, because an agent on another
        # machine may share the folder and upload a bundle that is still being written here.
        self._sent = set[str]()

    @property
    def is_complete(self) -> bool:
        """Whether every bundle is complete in the store."""
        return {folder.name for folder in self.folders} <= set(self._home.uploaded())

    def take_up(self) -> None:
        """Add the bundles that the launch made on this machine before a restart to `folders`."""
        self._sent |= set(self._home.uploaded())
        self.folders += self._home.bundles()
        for folder in self.folders:
            with suppress(BundleError):
                charged = bundle.read(folder).record.cost
                self._costs.resume(epoch_s(charged.billed_to if charged else None) or 0.0)

    def deliver_all(self, why_ended: str) -> RooflaunchError | None:
        """Upload all bundles that are not in the store yet. Returns the last error; None if there was none."""
        failed: RooflaunchError | None = None
        for folder in self.folders:
            try:
                self.deliver(folder, why_ended)
            except RooflaunchError as failure:
                failed = failure
        return failed

    def deliver(self, folder: Path, why_ended: str = "") -> None:
        """Close a bundle and upload it, once.

        `why_ended`: error for run.json if the trainer left the bundle open, or if the run was the machine's last and a
        preemption or the time limit ended it.
        """
        # At the end, the upload of an earlier run's bundle may still be under way.
        with self._sending:
            if folder.name in self._sent:
                return
            try:
                with full_disk_reported(folder):
                    self._close(folder, why_ended)
                try:
                    sent = upload(self._store, folder)
                except ObjectExistsError:
                    folder = self._renamed(folder)
                    sent = upload(self._store, folder)
            except RooflaunchError as failure:
                print(failure.report(), file=sys.stderr, flush=True)
                raise
            self._sent.add(folder.name)
            self._home.note_uploaded(folder.name)
            print(f"uploaded {sent.run_id}: {sent.files} files, {sent.bytes} bytes", flush=True)

    def _renamed(self, folder: Path) -> Path:
        """Rename a complete bundle if the store has a broken one of the same name; returns the new folder.

        Raises `ObjectExistsError` if the run in the store is complete, or the run in `folder` is not.
        """
        stored = next(sealed_runs(self._store, run_id=folder.name), None)
        if stored is None or stored.status in FINAL or bundle.read(folder).record.status not in FINAL:
            raise ObjectExistsError(
                f"another bundle of '{folder.name}' is in {self._store}", hint=f"its files are in '{folder}'"
            )
        renamed = bundle.rename(folder)
        self.folders[self.folders.index(folder)] = renamed
        print(f"{folder.name} is in the store as an incomplete run: the complete one is {renamed.name}", flush=True)
        return renamed

    def _close(self, folder: Path, why_ended: str) -> None:
        """Add the agent's facts to a bundle and seal it; only once, so that a second upload sends the same bytes."""
        cost = self._costs.cost(folder, self._price, self._now())
        with suppress(BundleError):  # a bundle without a record cannot be closed; reading it below raises the error
            bundle.seal_unfinished(folder, Status.FAILED, why_ended or "the trainer was killed")
        run = bundle.read(folder).record
        cloud = run.environment.cloud or CloudFacts()
        if cloud.phases is not None:  # only this function sets phases, so the bundle is closed already
            return
        cloud = replace(cloud, phases=self._home.phases(), preempted=self._stop.why is Why.PREEMPTED)
        run = replace(run, environment=replace(run.environment, cloud=cloud), cost=cost)
        statuses = {Why.PREEMPTED: Status.PREEMPTED, Why.TIMED_OUT: Status.TIMED_OUT}
        is_last = folder == self.folders[-1]  # a stop affects only the last run: the other runs had ended before
        if is_last and self._stop.why in statuses and run.status in (Status.INTERRUPTED, Status.FAILED):
            run = replace(run, status=statuses[self._stop.why], error=why_ended or run.error)
        bundle.reseal(folder, run)

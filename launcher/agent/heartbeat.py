"""Heartbeat of the machine, with its progress: printed, reported to the provider, and written into the store."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from launcher.agent.home import Home, iso
from launcher.agent.host_facts import HostFacts
from launcher.protocol import records
from launcher.protocol.records import Heartbeat, LaunchPhase
from workload.contract.errors import RooflaunchError, ToolError
from workload.storage.store import Patience, Store

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

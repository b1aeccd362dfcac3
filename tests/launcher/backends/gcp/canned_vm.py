"""A guest that behaves like the VM of a launch without running anything, and a clock that makes its minutes short.

It publishes phases, beats, leaves real bundles (small, made by the real writer) and a result in a real fake-gcs-server,
and deletes its own instance, as launcher/agent does; `Fault` says where it goes another way.
"""

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from launcher.protocol.records import (
    Heartbeat,
    LaunchPhase,
    Request,
    Result,
    TaskRun,
    log_object,
    result_object,
    status_object,
)
from tests.launcher.backends.gcp.fake_compute import Vm
from tests.workload.storage.gcs_server import GcsServer
from workload.contract import bundle
from workload.contract.record import Status

# What the phases take, in seconds: facts/gce.md has 3 min 35 s from insert to a usable VM (preinstalled driver), and no
# figures for its parts or for what follows.
DURATIONS: Mapping[LaunchPhase, float] = {
    LaunchPhase.BOOTED: 35.0,
    LaunchPhase.DRIVER_READY: 10.0,
    LaunchPhase.DOCKER_READY: 45.0,
    LaunchPhase.IMAGE_PULLED: 90.0,
    LaunchPhase.RUN_STARTED: 5.0,
    LaunchPhase.RUN_ENDED: 60.0,
    LaunchPhase.UPLOADED: 5.0,
}
BEAT_S = 15.0
FINAL = (Status.COMPLETED, Status.OUT_OF_MEMORY)
RECORD: dict[str, Any] = {
    "status": "completed",
    "error": None,
    "spec": {"model": "resnet18", "batch_size": 32, "precision": "fp32", "device": "cuda"},
    "environment": {"device": {"name": "Tesla T4"}},
    "timing": {
        "images": 3200,
        "measured_s": 12.8,
        "images_per_s": 250.0,
        "data_wait_fraction": 0.001,
        "step_s": {"n": 100, "median": 0.128, "p5": 0.127, "p95": 0.131},
        "phases": {"start": 0.0, "prepare": 0.8, "environment": 0.95, "warmup": 1.0, "measured": 1.25, "end": 2.0},
    },
    "complexity": {"train_flop_per_step": 3.4e11, "train_flop_per_image": 1.06e10, "theoretical_step_s": 0.05},
    "ceilings": {"flop_per_s": {"fp32": {"median": 6e12}}},
    "bound": {"bound": "compute", "why": "44% of the measured compute ceiling"},
    "profile": {"status": "not requested"},
    "notes": [],
}


class Fault(StrEnum):
    """Where the guest goes another way than to a good end."""

    NONE = "none"
    SILENT = "silent"  # nothing at all, and it stays
    NO_HEARTBEAT = "no heartbeat"  # boots, pulls the image, then nothing
    STOPS_BEATING = "stops beating"  # in the middle of the run
    VANISHES = "vanishes"  # deletes itself in the middle of the run, without a result
    STOPS = "stops"  # is TERMINATED in the middle of the run: a stopped VM, not a deleted one
    FAILS = "fails"  # the run ends with exit code 6 and a failed bundle
    STAYS = "stays"  # a good end, but it does not delete itself
    PREEMPTED = "preempted"  # is taken back in the middle of a run
    NO_RUNS = "no runs"  # a result that names a run which is not in the bucket


class FastClock:
    """At most `scale` seconds pass in a real second, beginning at the real time; none for what a slow machine is late.

    The clock stands while a thread within `busy` does anything but `sleep`, unless a thread outside of `busy` sleeps:
    the first may be waiting for it. The clock also stands once a sleeper's time has come until that sleeper wakes.
    """

    def __init__(self, *, scale: float = 200.0) -> None:
        self.scale = scale
        self._epoch_s, self._passed_s, self._read_s = time.time(), 0.0, time.monotonic()
        self._changed, self._ends = threading.Condition(), list[float]()
        self._busy = self._asleep_outside = 0
        self._thread = threading.local()

    def now(self) -> float:
        with self._changed:
            return self._epoch_s + self._pass()

    @contextmanager
    def busy(self) -> Iterator[None]:
        with self._changed:
            self._count(busy=1)
        self._thread.is_busy = True
        try:
            yield
        finally:
            self._thread.is_busy = False
            with self._changed:
                self._count(busy=-1)

    def sleep(self, seconds: float, *, until: Callable[[], bool] = lambda: False) -> None:
        """Sleep so long, or until a condition holds."""
        is_busy = getattr(self._thread, "is_busy", False)
        with self._changed:
            end_s = self._pass() + seconds
            self._ends.append(end_s)
            self._count(busy=-is_busy, asleep_outside=not is_busy)
            try:
                while not until() and (left_s := end_s - self._pass()) > 0:
                    self._changed.wait(min(left_s / self.scale, 0.02))
            finally:
                self._ends.remove(end_s)
                self._count(busy=is_busy, asleep_outside=is_busy - 1)

    def _pass(self) -> float:
        """Seconds since the beginning."""
        began_s, self._read_s = self._read_s, time.monotonic()
        if not self._busy or self._asleep_outside:
            most_s = self._passed_s + (self._read_s - began_s) * self.scale
            self._passed_s = max(self._passed_s, min([most_s, *self._ends]))
        return self._passed_s

    def _count(self, *, busy: int, asleep_outside: int = 0) -> None:
        self._pass()
        self._busy += busy
        self._asleep_outside += asleep_outside
        self._changed.notify_all()

    def iso(self) -> str:
        return datetime.fromtimestamp(self.now(), UTC).isoformat(timespec="milliseconds")


@dataclass(kw_only=True)
class CannedVm:
    """Call it with a `Vm` in a thread of its own. `api`: the address of the fake Compute Engine, asked for when needed.

    `fault` is one for all, or chosen by the order in which VMs come.
    """

    server: GcsServer
    api: Callable[[], str]
    clock: FastClock
    home: Path
    fault: Fault | list[Fault] = Fault.NONE
    durations: Mapping[LaunchPhase, float] = field(default_factory=lambda: dict(DURATIONS))
    # Whether a preempted VM has the time to leave a result.
    salvages: bool = True
    started: threading.Event = field(default_factory=threading.Event)
    # Of a sweep: how a run ends, how fast it is, and the bundles of each run that need not run again, by its key.
    status_of: Callable[[TaskRun], Status] = lambda _: Status.COMPLETED
    rate_of: Callable[[TaskRun], float] = lambda _: 250.0
    # What happens to its machine meanwhile, asked at every heartbeat; None: what happens to the machine anyway.
    fate_of: Callable[[TaskRun], Fault | None] = lambda _: None
    sealed: dict[str, list[str]] = field(default_factory=dict)
    # How a bundle gets into the store; None: file by file, without labels.
    upload: Callable[[Path], object] | None = None
    _count: int = 0

    def __call__(self, vm: Vm) -> None:
        # Beyond the list all goes well.
        faults = [self.fault] * (self._count + 1) if isinstance(self.fault, Fault) else [*self.fault, Fault.NONE]
        fault = faults[min(self._count, len(faults) - 1)]
        self._count += 1
        with self.clock.busy():
            _Guest(self, vm, fault).run()


class _GoneError(Exception):
    """The VM was deleted: nothing more can be done."""


class _PreemptedError(Exception):
    """The cloud takes it back: 30 s to save what there is."""


class _Guest:
    def __init__(self, canned: CannedVm, vm: Vm, fault: Fault) -> None:
        self._canned, self._vm, self._fault = canned, vm, fault
        self._clock, self._server = canned.clock, canned.server
        self._request = Request.from_bytes(vm.metadata["rooflaunch-request"].encode())
        self._phases: dict[str, str] = {}
        self._runs: list[str] = []
        self._charged_to = self._clock.iso()

    def run(self) -> None:
        with suppress(_GoneError):
            try:
                self._live()
            except _PreemptedError:
                if self._canned.salvages and self._runs_begun():
                    self._upload(Status.PREEMPTED)
                    self._result(exit_code=6, error="preempted", preempted=True)

    def _live(self) -> None:
        if self._fault is Fault.SILENT:
            self._stay()
        for phase in (LaunchPhase.BOOTED, LaunchPhase.DRIVER_READY, LaunchPhase.DOCKER_READY, LaunchPhase.IMAGE_PULLED):
            self._spend(self._canned.durations[phase])
            self._mark(phase)
        if self._fault is Fault.NO_HEARTBEAT:
            self._stay()
        self._beat("started")
        self._spend(self._canned.durations[LaunchPhase.RUN_STARTED])
        self._mark(LaunchPhase.RUN_STARTED)
        self._beat("step 1 of 110")
        self._canned.started.set()
        for number, run in enumerate(self._request.work.runs):
            if not run.run_key or run.run_key not in self._canned.sealed:
                self._train(number, run)
        self._mark(LaunchPhase.RUN_ENDED)
        self._spend(self._canned.durations[LaunchPhase.UPLOADED])
        self._mark(LaunchPhase.UPLOADED)
        self._end()

    def _train(self, repeat: int, run: TaskRun) -> None:
        left_s = self._canned.durations[LaunchPhase.RUN_ENDED]
        while left_s > 0:
            self._spend(min(BEAT_S, left_s))
            left_s -= BEAT_S
            match self._canned.fate_of(run) or self._fault:
                case Fault.PREEMPTED:
                    self._vm.preempted = True
                case Fault.STOPS_BEATING:
                    self._stay()
                case Fault.VANISHES:
                    self._delete()
                    raise _GoneError
                case Fault.STOPS:
                    self._vm.status = "TERMINATED"
                    self._stay()
            self._beat(f"run {repeat + 1}: {left_s:.0f} s left")
        self._upload(Status.FAILED if self._fault is Fault.FAILS else self._canned.status_of(run), run)

    def _end(self) -> None:
        self._mark(LaunchPhase.FINISHED)
        if self._fault is Fault.FAILS:
            self._result(exit_code=6, error="the loss is nan", hint="a lower learning rate")
        else:
            self._result(exit_code=0)
        if self._fault is Fault.STAYS:
            self._stay()
        self._delete()

    def _runs_begun(self) -> bool:
        return LaunchPhase.RUN_STARTED in self._phases

    def _spend(self, seconds: float) -> None:
        self._clock.sleep(seconds, until=lambda: self._vm.preempted or self._vm.gone.is_set())
        if self._vm.preempted:
            raise _PreemptedError
        if self._vm.gone.is_set():
            raise _GoneError

    def _stay(self) -> None:
        while True:
            self._spend(1e6)

    def _mark(self, phase: LaunchPhase) -> None:
        at = self._clock.iso()
        self._phases[phase] = at
        self._vm.guest_attributes.setdefault("rooflaunch", {})[phase] = at
        self._vm.write_serial(f"rooflaunch: phase {phase} {at}\n")

    def _beat(self, line: str) -> None:
        beat = Heartbeat(at=self._clock.iso(), zone=self._vm.zone, phases=self._phases, runs=self._runs, last_line=line)
        self._vm.write_serial(f"{line}\n")
        self._put(status_object(self._vm.name), beat.to_bytes())

    def _upload(self, status: Status, run: TaskRun | None = None) -> None:
        run_id = bundle.make_run_id(
            now=datetime.fromtimestamp(self._clock.now(), UTC),
            place=f"gcp-{self._request.gpu}-{self._vm.zone}",
            model="resnet18",
            batch_size=32,
            precision="fp32",
        )
        if self._fault is not Fault.NO_RUNS:
            folder = bundle.create(self._canned.home, run_id)
            error = None if status is Status.COMPLETED else str(status)
            document = {**RECORD, "run_id": run_id, "status": status, "error": error, **self._charged()}
            if run is not None and run.run_key:
                document |= self._of_the_task(run)
            bundle.write_document(folder, document)
            (folder / bundle.STEPS).write_text(",".join(bundle.STEP_COLUMNS) + "\n")
            bundle.seal(folder)
            if self._canned.upload:
                self._canned.upload(folder)
            else:
                self._server.put_folder(folder, "")
            if run is not None and run.run_key and status in FINAL:
                self._canned.sealed.setdefault(run.run_key, []).append(run_id)
        self._runs.append(run_id)

    def _charged(self) -> dict[str, Any]:
        """Facts that the agent adds: times of the boot, and the cost since the run before, at 3.6 USD per hour."""
        began, self._charged_to = self._charged_to, self._clock.iso()
        billed_s = (datetime.fromisoformat(self._charged_to) - datetime.fromisoformat(began)).total_seconds()
        return {
            "environment": {
                **RECORD["environment"],
                "place": f"{self._request.backend}-{self._request.gpu}",
                "backend": self._request.backend,
                "host": {"hostname": self._vm.name},
                "cloud": {"zone": self._vm.zone, "phases": dict(self._phases)},
            },
            "cost": {
                "billed_from": began,
                "billed_to": self._charged_to,
                "billed_s": billed_s,
                "usd": 0.001 * billed_s,
            },
        }

    def _of_the_task(self, run: TaskRun) -> dict[str, Any]:
        """What a run of a sweep has beside."""
        task, spec = self._request.work, run.spec
        return {
            "run_key": run.run_key,
            "job": {"name": task.job, "task": task.number, "block": run.block, "position": run.position},
            "spec": {**RECORD["spec"], "model": spec.model, "batch_size": spec.batch_size or 32},
            "timing": {**RECORD["timing"], "images_per_s": self._canned.rate_of(run)},
        }

    def _result(self, *, exit_code: int, error: str = "", hint: str = "", preempted: bool = False) -> None:
        result = Result(
            exit_code=exit_code,
            zone=self._vm.zone,
            runs=self._runs,
            phases=self._phases,
            ended_at=self._clock.iso(),
            error=error,
            hint=hint,
            preempted=preempted,
            usd=0.0123,
        )
        self._put(log_object(self._vm.name), self._vm.serial()[0].encode() + b"uploaded\n")
        self._put(result_object(self._vm.name), result.to_bytes())

    def _put(self, name: str, content: bytes) -> None:
        self._server.put(name, content)

    def _delete(self) -> None:
        """As the VM does it: a plain DELETE with its own token, again until it works."""
        vm = self._vm
        path = f"/compute/v1/projects/{vm.project}/zones/{vm.zone}/instances/{vm.name}"
        request = urllib.request.Request(self._canned.api() + path, method="DELETE")
        request.add_header("Authorization", "Bearer a-secret-token")
        while not vm.gone.is_set():
            try:
                with urllib.request.urlopen(request, timeout=10) as answer:
                    json.loads(answer.read())
            except urllib.error.URLError:
                pass
            self._clock.sleep(5, until=vm.gone.is_set)

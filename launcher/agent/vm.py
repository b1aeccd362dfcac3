"""What a VM does with its request, in a container of the run's image: run, profile, upload.

`python -m launcher.agent.vm HOME`; HOME is mounted at its own path, the machine's root at /host. Started a second time
for the same launch it saves what the first has left. Ends with 0 once result.json is in the bucket.
"""

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from launcher.backends.gcp.guest import Guest, this_vm
from launcher.jobs import records
from launcher.jobs.records import Heartbeat, Phase, Request, Result
from launcher.kinds import Runtime
from launcher.machine import local
from launcher.machine.containers import DRIVER_PARAMETERS, Limits, Watcher
from launcher.machine.engine import Running
from launcher.machine.runtime import choose
from workload.contract import bundle
from workload.contract.bundle import Status
from workload.contract.errors import (
    BundleError,
    ExitCode,
    InterruptedRunError,
    RooflaunchError,
    RunFailedError,
    ToolError,
)
from workload.contract.interrupt import handled_by
from workload.contract.spec import Profile, Resolved, options, resolve
from workload.environment.machine import Machine
from workload.environment.outside import outside_facts
from workload.storage.gcs import connect
from workload.storage.store import Patience, Store
from workload.storage.upload import PATIENCE, upload

HOST = Path("/host")
HEARTBEAT_EVERY_S = 15.0
# Cloud Storage takes one write a second of the same object.
HEARTBEAT_PAUSE_S = 1.0
# Enough to seal a bundle and to upload it before the cloud deletes the VM.
MARGIN_S = 90.0
# Of the 30 s that a spot VM has left: the trainer seals its bundle after the step that it is in.
SEAL_S = 12.0
PRESS_EVERY_S = 2.0
# After the metadata server has not answered.
ASK_AGAIN_S = 5.0
# Beside the sections of the trainer's own, and written when the bundle is closed here.
CLOSED = "phases"
# In HOME, for a second start: phases as the start-up script and as we came to them, a line each; that a run was begun;
# how it ended; the runs that are whole in the bucket.
SHELL_PHASES, OWN_PHASES, STARTED, ENDED, UPLOADED = "phases", "phases-of-the-run", "started", "ended.json", "uploaded"


class Why(StrEnum):
    """Why a run is ended before it ends by itself."""

    PREEMPTED = "preempted"
    TIMED_OUT = "timed out"
    ASKED = "asked"


class Stop:
    """Ends the run in order, whoever asks: SIGTERM to its container again and again, at last SIGKILL.

    Again, because the trainer is process 1 of its container, which ignores signals until it handles them.
    """

    def __init__(self, *, press_every_s: float = PRESS_EVERY_S, seal_s: float = SEAL_S) -> None:
        self.why: Why | None = None
        self._press_every_s, self._presses = press_every_s, seal_s / press_every_s
        self._running: Running | None = None
        self._over = threading.Event()

    def ask(self, why: Why) -> None:
        """The first reason counts; but that somebody asked is explained by a preemption."""
        if self.why is None:
            self.why = why
            threading.Thread(target=self._press, daemon=True).start()
        elif self.why is Why.ASKED and why is Why.PREEMPTED:
            self.why = why

    def started(self, running: Running) -> None:
        self._running = running

    def ended(self) -> None:
        self._running = None

    def close(self) -> None:
        """Nothing is running any more, nor will be."""
        self._over.set()

    def is_over(self, wait_s: float) -> bool:
        """Whether it is closed within `wait_s`."""
        return self._over.wait(wait_s)

    def _press(self) -> None:
        presses = 0
        while True:
            if running := self._running:
                running.signal("SIGTERM" if presses < self._presses else "SIGKILL")
            presses += 1
            if self.is_over(self._press_every_s):
                return


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How the work ended, as an error of ours says it; `error` is None for a run that came to its end."""

    exit_code: int
    error: str = ""
    hint: str = ""

    @classmethod
    def by(cls, error: RooflaunchError) -> "Ended":
        return cls(exit_code=error.exit_code, error=str(error), hint=error.hint)


@dataclass(frozen=True, kw_only=True)
class Billed:
    """A run's share of the VM's time, in seconds since 1970: from when to when, and how much of that is its own."""

    from_s: float
    to_s: float
    seconds: float


@dataclass(kw_only=True)
class Agent:
    """One launch on this VM."""

    request: Request
    guest: Guest
    bucket: Store
    home: Path
    zone: str
    host: Path = HOST
    now: Callable[[], float] = time.time
    stop: Stop = field(default_factory=Stop)
    _folders: list[Path] = field(default_factory=list)
    _said: dict[str, str] = field(default_factory=dict)
    _billed_from_s: float = 0.0
    _billed_to_s: float = 0.0
    _billed: dict[Path, Billed] = field(default_factory=dict)
    _wake: threading.Event = field(default_factory=threading.Event)
    _billing: threading.Lock = field(default_factory=threading.Lock)
    _sending: threading.Lock = field(default_factory=threading.Lock)

    @property
    def output(self) -> Path:
        """Where the bundles are written."""
        return self.home / "results"

    def work(self) -> Result:
        """Everything, to the result in the bucket; a bug of ours is a result too."""
        # The cloud dates a VM by its insert; where it does not answer, the boot is the first that is known.
        booted_s = _epoch_s(self.phases().get(Phase.BOOTED)) or self.now()
        created_s = _epoch_s(self.guest.instance().get("creationTimestamp")) or booted_s
        self._billed_from_s = min(created_s, booted_s)
        self._billed_to_s = self._billed_from_s
        with ThreadPoolExecutor(max_workers=1) as uploads:
            with self._reporting(), self._watched():
                ended = self._guarded(lambda: self._run_or_salvage(uploads))
            self.stop.close()
            ended = self._explained(ended)
            (self.home / ENDED).write_text(json.dumps(asdict(ended)), encoding="utf-8")
            with self._reporting():
                ended = self._guarded(lambda: self._deliver_all(ended))
        if {folder.name for folder in self._folders} <= set(self.uploaded()):
            self.enter(Phase.UPLOADED)
        self.enter(Phase.FINISHED)
        result = self._result(ended)
        self.bucket.write(records.result_object(self.request.name), result.to_bytes(), if_absent=True)
        return result

    def enter(self, phase: Phase) -> None:
        """Say that a phase begins: to the serial port, the guest attributes and the record."""
        at = _iso(self.now())
        print(f"rooflaunch: phase {phase} {at}", flush=True)
        with (self.home / OWN_PHASES).open("a", encoding="utf-8") as lines:
            lines.write(f"{phase} {at}\n")
        self._report(phase, at)
        self._wake.set()

    def phases(self) -> dict[str, str]:
        """Times by phase so far, the shell's first; of a VM that was started again the first time counts."""
        found: dict[str, str] = {}
        for line in (*_lines(self.home / SHELL_PHASES), *_lines(self.home / OWN_PHASES)):
            phase, _, at = line.partition(" ")
            if _epoch_s(at) is not None:  # a line may be cut off, and a record with half a time is none
                found.setdefault(phase, at)
        return found

    def uploaded(self) -> list[str]:
        """The runs that are whole in the bucket."""
        return _lines(self.home / UPLOADED)

    def beat(self) -> None:
        """Say that the VM lives. A bucket that does not answer now is no reason to end."""
        at = _iso(self.now())
        told = Heartbeat(
            at=at,
            zone=self.zone,
            phases=self.phases(),
            runs=self.uploaded(),
            last_line=self._said.get("line", ""),
        )
        self._report("heartbeat", at)
        with suppress(RooflaunchError, OSError):
            self.bucket.with_patience(Patience()).write(records.status_object(self.request.name), told.to_bytes())

    def _report(self, name: str, value: str) -> None:
        with suppress(ToolError):  # guest attributes can be switched off for a whole project
            self.guest.report(name, value)

    def _guarded(self, part: Callable[[], Ended]) -> Ended:
        try:
            return part()
        except RooflaunchError as error:
            print(error.report(), file=sys.stderr, flush=True)
            return Ended.by(error)
        except Exception as bug:  # noqa: BLE001 - it is printed, and the VM must come to its end
            traceback.print_exc()
            what = f"{type(bug).__name__}: {bug}"
            return Ended(exit_code=ExitCode.BUG, error=what, hint="startup.log has the traceback: launch logs RUN")

    def _run_or_salvage(self, uploads: ThreadPoolExecutor) -> Ended:
        started = self.home / STARTED
        if started.exists():
            self._folders += sorted(path.parent for path in self.output.glob(f"*/{bundle.RECORD}"))
            if told := _lines(self.home / ENDED):
                return Ended(**json.loads(told[0]))
            raise RunFailedError(
                "the VM broke off the run and started again", hint="launch logs RUN; then launch again"
            )
        _touch_for_good(started)
        return self._run(uploads)

    def _run(self, uploads: ThreadPoolExecutor) -> Ended:
        plan = self._plan()
        print(plan.text(), flush=True)
        deliveries: list[Future[None]] = []

        def begun(folder: Path) -> None:
            # The next repeat is in its set-up: a good time to send the one before, unless the profile goes into it.
            if self._folders and (len(self._folders) > 1 or plan.spec.profile is Profile.NONE):
                deliveries.append(uploads.submit(self._deliver, self._folders[-1]))
            elif self._folders:
                self._bill(self._folders[-1])
            self._folders.append(folder)

        outcome = local.run(plan, watcher=self._watcher(begun))
        self.enter(Phase.PROFILE_ENDED if Phase.PROFILE_STARTED in self.phases() else Phase.RUN_ENDED)
        if self._folders:
            self._bill(self._folders[-1 if plan.spec.profile is Profile.NONE else 0])
        for each in deliveries:
            with suppress(RooflaunchError):  # said; all that is missing is sent again at the end
                each.result()
        if outcome.error:
            return Ended.by(outcome.error)
        if outcome.exit_code == ExitCode.DONE:
            return Ended(exit_code=outcome.exit_code)
        error = self._said.get("error", f"the trainer ended with exit code {outcome.exit_code}")
        return Ended(exit_code=outcome.exit_code, error=error, hint=self._said.get("hint", "launch logs RUN"))

    def _plan(self) -> local.Plan:
        known = {option.name for option in options()}
        given = {name: value for name, value in self.request.spec.items() if name in known and value is not None}
        spec = resolve(given, {}, None).spec
        if spec.download:  # the user's own folder is none of this machine's
            spec = replace(spec, data_dir=str(self.home / "data"))
        return local.make_plan(
            Resolved(spec=spec, origin=self.request.spec_origin),  # type: ignore[arg-type] # a StrEnum's values
            choose(Runtime(self.request.runtime), spec, image=self.request.image),
            output=self.output,
            limits=Limits(),
            outside=self._outside(),
            backend=self.request.backend,
            place=f"{self.request.place}-{self.zone}",
            driver_parameters=self.host / DRIVER_PARAMETERS.relative_to("/"),
        )

    def _outside(self) -> dict[str, Mapping[str, Any]]:
        facts: dict[str, Mapping[str, Any]] = dict(outside_facts(Machine(root=self.host)))
        status = self.guest.instance().get("resourceStatus") or {}
        cloud = {
            "provider": "gce",
            "zone": self.zone,
            **facts.get("cloud", {}),
            "spot": self.request.spot,
            "vm_image": self.request.options.get("vm_image"),
        }
        if host := status.get("physicalHost"):
            cloud["physical_host"] = host
        return {**facts, "cloud": cloud}

    def _watcher(self, begun: Callable[[Path], None]) -> Watcher:
        def started(running: Running) -> None:
            if Phase.RUN_STARTED in self.phases():
                self.enter(Phase.RUN_ENDED)
                self._bill(self._folders[-1])
                self.enter(Phase.PROFILE_STARTED)
            else:
                self.enter(Phase.RUN_STARTED)
            self.stop.started(running)

        return Watcher(on_message=self._hear, on_bundle=begun, on_started=started, on_ended=self.stop.ended)

    def _hear(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)
        self._said["line"] = line
        kind, colon, text = line.partition(": ")
        if colon and kind in ("error", "hint"):
            self._said[kind] = text

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        """Beat meanwhile, and once at each end."""
        over = threading.Event()

        def beats() -> None:
            while not over.is_set():
                self._wake.clear()
                self.beat()
                over.wait(HEARTBEAT_PAUSE_S)
                self._wake.wait(HEARTBEAT_EVERY_S)

        heart = threading.Thread(target=beats, daemon=True)
        heart.start()
        try:
            yield
        finally:
            over.set()
            self._wake.set()
            heart.join()
            self.beat()

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Stop the run in time where the cloud takes the VM away, or is about to delete it."""
        threading.Thread(target=self._await_preemption, daemon=True).start()
        timer = threading.Timer(max(0.0, self._deadline_s() - self.now()), self.stop.ask, [Why.TIMED_OUT])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _await_preemption(self) -> None:
        tag: str | None = None
        while True:
            try:
                taken, tag = self.guest.preempted(since=tag)
            except ToolError:
                taken, tag = False, None
                if self.stop.is_over(ASK_AGAIN_S):
                    return
            if taken:
                self.stop.ask(Why.PREEMPTED)
                return

    def _deadline_s(self) -> float:
        """When the run must end: some time before the cloud deletes the VM, as the cloud (never the launcher) says."""
        told = self.guest.instance()
        scheduling = (told.get("resourceStatus") or {}).get("scheduling") or {}
        began_s = _epoch_s(told.get("creationTimestamp")) or self._billed_to_s
        deleted_s = _epoch_s(scheduling.get("terminationTimestamp")) or began_s + self.request.limit_s
        return deleted_s - min(MARGIN_S, self.request.limit_s / 4)

    def _explained(self, ended: Ended) -> Ended:
        """What came from outside says more than how the trainer ended by it."""
        if self.stop.why is Why.ASKED:
            with suppress(ToolError):
                if self.guest.preempted()[0]:
                    self.stop.ask(Why.PREEMPTED)
        if self.stop.why is None or ended.exit_code == ExitCode.DONE:
            return ended
        error, hint = self._reason(self.stop.why)
        code = InterruptedRunError.exit_code if self.stop.why is Why.ASKED else RunFailedError.exit_code
        return Ended(exit_code=code, error=error, hint=hint)

    def _reason(self, why: Why) -> tuple[str, str]:
        match why:
            case Why.PREEMPTED:
                return (
                    f"the spot VM was taken away (preempted) in {self.zone}",
                    "--rerun-preempted 1, or leave --spot out",
                )
            case Why.TIMED_OUT:
                limit = f"the launch came to its time limit of {self.request.limit_s} s"
                return limit, "a longer --max-run-time, or fewer --iterations"
            case Why.ASKED:
                return "the VM was told to stop", "launch again"

    def _deliver_all(self, ended: Ended) -> Ended:
        """Send what is not in the bucket yet; of several failures the last is told."""
        failed: RooflaunchError | None = None
        for folder in self._folders:
            try:
                self._deliver(folder, ended.error)
            except RooflaunchError as error:
                failed = error
        if failed and ended.exit_code == ExitCode.DONE:
            raise failed
        return ended

    def _deliver(self, folder: Path, error: str = "") -> None:
        """Close a bundle and send it, once."""
        # At the end, the sending of an earlier repeat may still be under way.
        with self._sending:
            if folder.name in self.uploaded():
                return
            try:
                self._close(folder, error)
                sent = upload(self.bucket, folder)
            except RooflaunchError as failure:
                print(failure.report(), file=sys.stderr, flush=True)
                raise
            with (self.home / UPLOADED).open("a", encoding="utf-8") as lines:
                lines.write(f"{folder.name}\n")
            print(f"uploaded {sent.run_id}: {sent.files} files, {sent.bytes} bytes", flush=True)

    def _close(self, folder: Path, error: str) -> None:
        """Seal a bundle with what only we know; once, so that a second try sends the same bytes."""
        self._bill(folder)
        with suppress(BundleError):  # without a record there is nothing to close, which reading says
            bundle.close_broken(folder, Status.FAILED, error or "the trainer was killed")
        record = dict(bundle.read(folder).record)
        where = record["environment"]
        cloud = dict(where.get("cloud") or {})
        if CLOSED in cloud:
            return
        record |= self._status(record, error) | {"cost": self._cost(self._billed[folder])}
        cloud |= {CLOSED: self.phases(), "preempted": self.stop.why is Why.PREEMPTED}
        bundle.reseal(folder, {**record, "environment": {**where, "cloud": cloud}})

    def _status(self, record: Mapping[str, Any], error: str) -> dict[str, Any]:
        by_us = {Why.PREEMPTED: Status.PREEMPTED, Why.TIMED_OUT: Status.TIMED_OUT}
        if self.stop.why not in by_us or record["status"] not in (Status.INTERRUPTED, Status.FAILED):
            return {}
        return {"status": by_us[self.stop.why], "error": error or record["error"]}

    def _bill(self, folder: Path) -> None:
        """The time since the VM was asked for, or since the last bundle was closed, is this one's."""
        with self._billing:
            from_s, now_s = self._billed_to_s, self.now()
            before = self._billed.get(folder, Billed(from_s=from_s, to_s=from_s, seconds=0.0))
            self._billed[folder] = replace(before, to_s=now_s, seconds=before.seconds + now_s - from_s)
            self._billed_to_s = now_s

    def _cost(self, billed: Billed) -> dict[str, Any]:
        """The VM's time that this run took; `usd` is None where the zone's price is unknown.

        `billed_s` is less than the time between its ends where another repeat was closed meanwhile.
        """
        price = self.request.price(self.zone)
        return {
            "usd_per_h": price.usd_per_h if price else None,
            "disk_usd_per_h": price.disk_usd_per_h if price else None,
            "address_usd_per_h": price.address_usd_per_h if price else None,
            "price_date": price.read if price else None,
            "price_source": price.source if price else None,
            "spot": self.request.spot,
            "billed_from": _iso(billed.from_s),
            "billed_to": _iso(billed.to_s),
            "billed_s": round(billed.seconds, 3),
            "usd": price.usd(max(0.0, billed.seconds)) if price else None,
        }

    def _result(self, ended: Ended) -> Result:
        now_s = self.now()
        phases = self.phases()
        price = self.request.price(self.zone)
        # A clock that was set back since the start leaves less than nothing, which is no cost.
        billed_s = None if now_s < self._billed_from_s else now_s - self._billed_from_s
        return Result(
            exit_code=ended.exit_code,
            zone=self.zone,
            runs=self.uploaded(),
            phases=phases,
            ended_at=_iso(now_s),
            error=ended.error,
            hint=ended.hint,
            preempted=self.stop.why is Why.PREEMPTED,
            timed_out=self.stop.why is Why.TIMED_OUT,
            usd=price.usd(billed_s) if price and billed_s is not None else None,
            billed_from=_iso(self._billed_from_s),
        )


def _iso(epoch_s: float) -> str:
    """`2026-11-21T10:00:00.000Z`, as the start-up script writes it."""
    return datetime.fromtimestamp(epoch_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _epoch_s(text: str | None) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp() if text else None
    except ValueError:
        return None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def _touch_for_good(path: Path) -> None:
    """Make an empty file that is there after a host error too, which is the end of power."""
    path.touch()
    for place in (path, path.parent):
        number = os.open(place, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def main(arguments: Sequence[str]) -> int:
    """Do what this VM's metadata asks for."""
    try:
        guest = this_vm()
        request = Request.from_bytes(guest.request())
        prefix = records.request_object(request.name).rpartition("/")[0]
        bucket = connect(request.store.removeprefix("gs://"), prefix=f"{prefix}/", jobs=3, patience=PATIENCE)
        if bucket.read(records.result_object(request.name)) is None:
            agent = Agent(request=request, guest=guest, bucket=bucket, home=Path(arguments[0]), zone=guest.zone)
            with handled_by(lambda *_: agent.stop.ask(Why.ASKED)):
                agent.work()
    except RooflaunchError as error:
        print(error.report(), file=sys.stderr, flush=True)
        return error.exit_code
    return ExitCode.DONE


if __name__ == "__main__":
    # The watching threads may be waiting for an answer that never comes.
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)

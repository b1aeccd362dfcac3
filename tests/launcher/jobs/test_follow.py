"""A single launch that is followed, on a clock of the test's own: requests and their times, and texts of its end.

Which end it is: test_liveness.py. Several launches under one watch: test_watch.py.
"""

import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.jobs.liveness import Liveness
from launcher.jobs.run import follow
from launcher.jobs.session import Event, EventKind, Session
from launcher.jobs.watch import WatchedLaunch, interval_s
from launcher.protocol.backend import Condition, Listing, Machine, Output, Removed
from launcher.protocol.records import Heartbeat, LaunchPhase, Request, Result, result_object, status_object
from tests.launcher import rented_vm
from tests.launcher.rented_vm import LAUNCHED_S, NAME, ZONE
from workload.contract.errors import InterruptedRunError, ToolError
from workload.contract.process import stoppable
from workload.storage.store import StoredObject

PREEMPTED_HINT = "--rerun-preempted 2 starts it again automatically; without --spot it is not taken away"
BEGAN_S = LAUNCHED_S
REQUEST = replace(rented_vm.REQUEST, spot=True, prices={})
THERE = replace(rented_vm.MACHINE, deadline_s=None)


class Cloud:
    """A VM and its bucket: `script` says what changes, and after how many seconds. Time passes in `sleep` alone."""

    name = "my-bucket"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.script: list[tuple[float, Callable[[], None]]] = []
        self.instance: Machine | None = THERE
        self.attributes: dict[str, str] = {}
        self.objects_by_name: dict[str, tuple[int, bytes]] = {}
        self.calls: Counter[str] = Counter()
        self.asked_at: list[float] = []
        self.was_preempted = False
        self.outage = ""
        self.serial_text = "boot\nlast words\n"
        self.deletion_works = True
        self.time_s = BEGAN_S

    def at(self, seconds: float, change: Callable[[], None]) -> None:
        self.script.append((BEGAN_S + seconds, change))

    def now_s(self) -> float:
        return self.time_s

    def sleep(self, seconds: float) -> None:
        until_s = self.time_s + seconds
        for due_s, change in sorted(self.script, key=lambda each: each[0]):
            if due_s <= until_s:
                self.time_s = max(self.time_s, due_s)
                change()
        self.script = [each for each in self.script if each[0] > until_s]
        self.time_s = until_s

    # What a guest does.

    def phase(self, phase: LaunchPhase) -> None:
        self.attributes[phase] = "2026-11-21T12:01:00.000+00:00"

    def beat(self, line: str = "step 1", **changes: Any) -> None:
        phases = {
            LaunchPhase.BOOTED: "2026-11-21T12:01:00.000+00:00",
            LaunchPhase.RUN_STARTED: "2026-11-21T12:04:00.000+00:00",
        }
        beat = Heartbeat(at=REQUEST.launched_at, zone=ZONE, phases=phases, last_line=line)
        self.put(status_object(NAME), replace(beat, **changes).to_bytes())

    def beats(self, first_s: float, last_s: float) -> None:
        for seconds in range(int(first_s), int(last_s), 15):
            self.at(seconds, self.beat)

    def result(self, **changes: Any) -> None:
        plain: dict[str, Any] = {
            "exit_code": 0,
            "zone": ZONE,
            "runs": [],
            "phases": {},
            "ended_at": REQUEST.launched_at,
        }
        self.put(result_object(NAME), Result(**plain | changes).to_bytes())

    def gone(self) -> None:
        self.instance = None

    def put(self, name: str, content: bytes) -> None:
        generation = self.objects_by_name.get(name, (0, b""))[0] + 1
        self.objects_by_name[name] = (generation, content)

    # What the follower asks.

    noun, place = "VM", "my-project"

    def look(self, names: Mapping[str, Sequence[str]]) -> Listing[Machine]:
        [(name, (zone,))] = names.items()
        self.asked_at.append(self.now_s() - BEGAN_S)
        self._ask("look", zone, name)
        gone = Machine(name=name, zone=zone, condition=Condition.GONE, preempted=self.was_preempted)
        return Listing(there=(self.instance or gone,))

    def stop(self, machines: Sequence[Machine]) -> list[Removed]:
        [machine] = machines
        self._ask("stop", machine.zone, machine.name)
        if self.deletion_works:
            self.instance = None
        return [Removed(kind="VM", name=machine.name, zone=machine.zone, gone=self.deletion_works)]

    def phases(self, machine: Machine) -> dict[str, str]:
        self._ask("phases", machine.zone, machine.name)
        return dict(self.attributes)

    def output(self, machine: Machine, start: int) -> Output:
        self._ask("output", machine.zone, machine.name)
        return Output(text=self.serial_text[start:], next_start=len(self.serial_text))

    def objects(self, prefix: str) -> Iterator[StoredObject]:
        assert prefix == f"launches/{NAME}/"
        self._ask("list")
        for name, (generation, content) in self.objects_by_name.items():
            yield StoredObject(name=name, bytes=len(content), crc32c="", version=str(generation))

    def read(self, name: str) -> bytes | None:
        self._ask("read")
        return self.objects_by_name[name][1]

    def _ask(self, what: str, zone: str = ZONE, name: str = NAME) -> None:
        assert (zone, name) == (ZONE, NAME)
        self.calls[what] += 1
        if self.outage:
            raise ToolError(self.outage, hint="check the network")


@pytest.fixture
def cloud(tmp_path: Path) -> Cloud:
    return Cloud(tmp_path)


def run(cloud: Cloud, request: Request = REQUEST, output: Path | None = None) -> tuple[WatchedLaunch, list[Event]]:
    events: list[Event] = []
    both: Any = cloud
    session = Session(machines=both, store=both, sleep=cloud.sleep, on_event=events.append)
    followed = follow(session, request, ZONE, output=output or cloud.folder)
    return followed, events


def told(events: list[Event], kind: EventKind) -> list[str]:
    return [each.text for each in events if each.kind is kind]


@pytest.mark.parametrize(
    ("elapsed_s", "every_s"),
    [(0, 5), (119.9, 5), (120, 10), (599.9, 10), (600, 30), (86400, 30)],
)
def test_schedule(elapsed_s: float, every_s: float) -> None:
    assert interval_s(elapsed_s) == every_s


def test_a_launch_that_goes_well(cloud: Cloud) -> None:
    for seconds, phase in ((40, LaunchPhase.BOOTED), (50, LaunchPhase.DRIVER_READY), (180, LaunchPhase.IMAGE_PULLED)):
        cloud.at(seconds, lambda phase=phase: cloud.phase(phase))  # type: ignore[misc]
    cloud.beats(200, 400)
    cloud.at(390, lambda: cloud.beat("uploading"))
    cloud.at(400, lambda: cloud.result(phases={LaunchPhase.FINISHED: "2026-11-21T12:06:40.000+00:00"}))
    followed, events = run(cloud)
    assert followed.liveness is Liveness.ENDED
    assert followed.error is None
    assert not followed.is_gone
    assert told(events, EventKind.PHASE) == ["booted", "driver_ready", "image_pulled", "run_started", "finished"]
    assert told(events, EventKind.NOTE) == []
    progress = list(dict.fromkeys(told(events, EventKind.PROGRESS)))
    assert progress == [
        "the VM starts",
        "booted; waiting for the next phase",
        "driver ready; waiting for the next phase",
        "image pulled; waiting for the next phase",
        "step 1",
        "uploading",
    ]
    # Every 5 s for 2 minutes, then every 10 s.
    assert cloud.asked_at == [*range(0, 120, 5), *range(120, 401, 10)]
    looks = len(cloud.asked_at)
    # Its own phases until the first heartbeat; a heartbeat is read when it has changed, by listing.
    assert cloud.calls == {"look": looks, "list": looks, "phases": 32, "read": 15}


def test_a_vm_that_says_nothing_is_removed_after_its_boot_limit(cloud: Cloud, tmp_path: Path) -> None:
    cloud.at(40, lambda: cloud.phase(LaunchPhase.BOOTED))
    followed, events = run(cloud, output=tmp_path / "new")
    saved = tmp_path / "new" / f"{NAME}-serial.txt"
    assert followed.liveness is Liveness.NEVER_CAME_UP
    assert followed.is_gone
    assert cloud.instance is None
    assert followed.error is not None
    assert followed.error.exit_code == 6
    assert followed.error.report() == (
        f"error: '{NAME}' did not start the run within 15 min (last: booted)\nhint: the machine's output is in {saved}"
    )
    assert saved.read_text() == "boot\nlast words\n"
    assert told(events, EventKind.NOTE) == [
        f"'{NAME}' did not start the run within 15 min (last: booted): removing the VM"
    ]


def stands(cloud: Cloud, seconds: float, status: str, *, restarts: bool = True) -> None:
    condition = Condition.RUNNING if status == "RUNNING" else Condition.STOPPED
    machine = replace(THERE, condition=condition, status=status, restarts=restarts)
    cloud.at(seconds, lambda: setattr(cloud, "instance", machine))


def silent(cloud: Cloud) -> None:
    cloud.beats(200, 300)


def stopped(cloud: Cloud) -> None:
    stands(cloud, 90, "TERMINATED", restarts=False)


def not_started_again(cloud: Cloud) -> None:
    cloud.beats(200, 400)
    stands(cloud, 400, "TERMINATED")


def past_its_limit(cloud: Cloud) -> None:
    cloud.instance = replace(THERE, deadline_s=int(BEGAN_S) + 1000)
    cloud.beats(200, 2000)


@pytest.mark.parametrize(
    ("script", "ended", "why", "after_s"),
    [
        (silent, Liveness.SILENT, "has sent no heartbeat for 5 min", 590),
        (stopped, Liveness.STOPPED, "stopped by itself (TERMINATED)", 90),
        (not_started_again, Liveness.STOPPED, "stopped and was not started again in 15 min", 1300),
        (past_its_limit, Liveness.OVERDUE, "was still there after its time limit", 1300),
    ],
)
def test_a_vm_that_hangs_is_removed(
    cloud: Cloud, script: Callable[[Cloud], None], ended: Liveness, why: str, after_s: float
) -> None:
    script(cloud)
    followed, _ = run(cloud)
    assert (followed.liveness, followed.is_gone) == (ended, True)
    assert str(followed.error) == f"'{NAME}' {why}"
    assert after_s <= cloud.time_s - BEGAN_S < after_s + 45


def test_a_vm_that_cannot_be_removed_is_told(cloud: Cloud) -> None:
    cloud.serial_text = ""
    cloud.deletion_works = False
    followed, _ = run(cloud)
    assert followed.error is not None
    assert not followed.is_gone
    assert followed.error.report() == (
        f"error: '{NAME}' did not start the run within 15 min (last: nothing, VM RUNNING); the VM could not "
        f"be removed\nhint: launch down {NAME}; launch logs {NAME}"
    )


@pytest.mark.parametrize("after_s", [0, 9])
def test_a_result_that_arrives_as_the_vm_vanishes_counts(cloud: Cloud, after_s: float) -> None:
    cloud.at(301, cloud.gone)
    cloud.at(310 + after_s, cloud.result)
    followed, _ = run(cloud)
    assert (followed.liveness, followed.is_gone, followed.error) == (Liveness.ENDED, True, None)


@pytest.mark.parametrize(
    ("gone_s", "was_preempted", "ended", "report"),
    [
        (300, True, Liveness.PREEMPTED, f"was preempted: the cloud took the spot VM away\nhint: {PREEMPTED_HINT}"),
        (300, False, Liveness.LOST, f"was deleted before it had a result\nhint: launch status {NAME}"),
        (
            3600,
            False,
            Liveness.OUT_OF_TIME,
            "reached its time limit of 60 min and left no result\nhint: --max-run-time, longer",
        ),
    ],
    ids=["preempted", "deleted", "limit"],
)
def test_gone_without_a_result(cloud: Cloud, gone_s: float, was_preempted: bool, ended: Liveness, report: str) -> None:
    cloud.was_preempted = was_preempted
    cloud.beats(200, gone_s)
    cloud.at(gone_s, cloud.gone)
    followed, _ = run(cloud)
    assert (followed.liveness, followed.is_gone) == (ended, True)
    assert followed.error is not None
    assert (followed.error.exit_code, followed.error.report()) == (6, f"error: '{NAME}' {report}")


@pytest.mark.parametrize("status", ["TERMINATED", "REPAIRING"])
def test_a_vm_that_its_host_stopped_is_awaited(cloud: Cloud, status: str) -> None:
    cloud.beats(200, 400)
    stands(cloud, 400, status)
    stands(cloud, 1250, "RUNNING")
    cloud.at(1500, cloud.beat)
    cloud.at(1520, lambda: cloud.result(exit_code=6))
    followed, events = run(cloud)
    assert followed.liveness is Liveness.ENDED
    waits = f"'{NAME}' is {status}: the cloud starts it again, to save its results"
    assert told(events, EventKind.NOTE) == [waits], "its silence meanwhile is no sign of anything"


def test_a_vm_that_is_started_again_in_its_boot_gets_its_time(cloud: Cloud) -> None:
    stands(cloud, 500, "TERMINATED")
    stands(cloud, 900, "RUNNING")
    cloud.at(1700, cloud.beat)
    cloud.at(1720, cloud.result)
    assert run(cloud)[0].liveness is Liveness.ENDED


def test_an_outage_changes_nothing_and_is_told_once(cloud: Cloud) -> None:
    """The time without answers is no silence of the VM: its next heartbeat comes 150 s after the outage."""
    cloud.beats(200, 400)
    cloud.at(410, lambda: setattr(cloud, "outage", "Compute Engine cannot be reached: no route"))
    cloud.at(1900, lambda: setattr(cloud, "outage", ""))
    cloud.at(2050, cloud.beat)
    cloud.at(2100, cloud.result)
    followed, events = run(cloud)
    assert followed.liveness is Liveness.ENDED
    assert told(events, EventKind.NOTE) == [
        "Compute Engine cannot be reached: no route; the VM continues by itself; trying again",
        "the cloud answers again",
    ]
    asked = [seconds for seconds in cloud.asked_at if 410 <= seconds < 1900]
    assert 20 < len(asked) < 40, "looks that fail are a minute apart"


def test_ctrl_c_that_a_library_caught_ends_following(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    def look(*_: object) -> Listing[Machine]:
        with suppress(InterruptedRunError):
            signal.raise_signal(signal.SIGINT)
        raise ToolError("Compute Engine cannot be reached", hint="try later")

    monkeypatch.setattr(cloud, "look", look)
    with stoppable(), pytest.raises(InterruptedRunError):
        run(cloud)


def test_an_unreadable_result_ends_no_vm_that_lives(cloud: Cloud) -> None:
    cloud.at(20, lambda: cloud.put(result_object(NAME), b"no result"))
    cloud.beats(30, 900)
    cloud.at(900, cloud.gone)
    followed, _ = run(cloud)
    assert (followed.liveness, cloud.calls["stop"]) == (Liveness.LOST, 0)
    assert followed.heartbeat is not None
    assert str(followed.error) == (
        f"'{NAME}' has ended, but it is unknown how: not a readable result of a launch: no JSON "
        "(Expecting value: line 1 column 1 (char 0))"
    )


def test_hostile_records_and_attributes_are_passed_over(cloud: Cloud) -> None:
    cloud.phase(LaunchPhase.BOOTED)
    cloud.attributes["evil"] = "\x1b[2J"
    cloud.at(10, lambda: cloud.put(status_object(NAME), b"{"))
    cloud.at(20, lambda: cloud.beat("\x1b[2Jstep\r\n1\x07"))
    cloud.at(30, lambda: cloud.put(result_object(NAME), b"no result"))
    cloud.at(60, cloud.result)
    followed, events = run(cloud)
    assert followed.liveness is Liveness.ENDED
    assert told(events, EventKind.PHASE) == ["booted", "run_started"]
    assert "\\x1b[2Jstep 1\\x07" in told(events, EventKind.PROGRESS)

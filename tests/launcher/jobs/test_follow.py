"""A single launch that is followed, on a clock of the test's own: requests and their times, and texts of its end.

Which end it is: test_liveness.py. Several launches under one watch: test_watch.py.
"""

import io
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.jobs.run import follow
from launcher.jobs.session import Event, EventKind, LaunchProgress, Session
from launcher.jobs.watch import WatchedLaunch, interval_s
from launcher.protocol.backend import Condition, Listing, Machine, Output, Removed
from launcher.protocol.records import Heartbeat, LaunchPhase, Request, Result, result_object, status_object
from tests.launcher import rented_vm
from tests.launcher.rented_vm import LAUNCHED_S, NAME, ZONE
from tests.launcher.told import Golden
from workload.contract.errors import InterruptedRunError, ToolError
from workload.contract.process import stoppable
from workload.storage.store import StoredObject

BEGAN_S = LAUNCHED_S
AT = "2026-11-21T12:01:00.000+00:00"
REQUEST = replace(rented_vm.REQUEST, spot=True, prices={})
DAY_S = 86400.0
THERE = replace(rented_vm.MACHINE, deadline_s=None)


class Cloud:
    """A VM and its bucket: `script` says what changes, and after how many seconds. Time passes in `sleep` alone."""

    name = "my-bucket"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.script: list[tuple[float, Callable[[], object]]] = []
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
        self.noun = "VM"

    def at(self, seconds: float, change: Callable[[], object]) -> None:
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

    def booted(self) -> None:
        self.attributes[LaunchPhase.BOOTED] = AT

    def driver_ready(self) -> None:
        self.attributes[LaunchPhase.DRIVER_READY] = AT

    def image_pulled(self) -> None:
        self.attributes[LaunchPhase.IMAGE_PULLED] = AT

    def beat(self, line: str = "step 1") -> None:
        phases = {LaunchPhase.BOOTED: AT, LaunchPhase.RUN_STARTED: AT}
        self.put(status_object(NAME), Heartbeat(at=AT, zone=ZONE, phases=phases, last_line=line).to_bytes())

    def result(self, exit_code: int = 0) -> None:
        phases = {LaunchPhase.FINISHED: AT}
        result = Result(exit_code=exit_code, zone=ZONE, runs=[], phases=phases, ended_at=AT)
        self.put(result_object(NAME), result.to_bytes())

    def gone(self) -> None:
        self.instance = None

    def put(self, name: str, content: bytes) -> None:
        generation = self.objects_by_name.get(name, (0, b""))[0] + 1
        self.objects_by_name[name] = (generation, content)

    # What the follower asks.

    place = "my-project"

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


def run(cloud: Cloud, request: Request = REQUEST) -> tuple[WatchedLaunch, list[Event]]:
    events: list[Event] = []
    both: Any = cloud
    session = Session(machines=both, store=both, sleep=cloud.sleep, on_event=events.append)
    return follow(session, request, ZONE, output=cloud.folder / "new"), events


Step = Callable[[Cloud], object]


def at(seconds: float, change: Step) -> Step:
    return lambda cloud: cloud.at(seconds, lambda: change(cloud))


def beats(first_s: int, last_s: int) -> Step:
    return lambda cloud: [cloud.at(seconds, cloud.beat) for seconds in range(first_s, last_s, 15)]


def sets(seconds: float, **values: object) -> Step:
    return at(seconds, lambda cloud: vars(cloud).update(values))


def puts(seconds: float, name: str, content: bytes) -> Step:
    return at(seconds, lambda cloud: cloud.put(name, content))


def stands(seconds: float, status: str, **changes: Any) -> Step:
    """From then on the machine is listed like this."""
    condition = Condition.RUNNING if status == "RUNNING" else Condition.STOPPED
    machine = replace(THERE, **{"condition": condition, "status": status, "restarts": True, **changes})
    return sets(seconds, instance=machine)


def waits(seconds: float, why: str = "", *, queued: bool = True) -> Step:
    """From then on it waits in the queue of a cluster, or is held there."""
    told = {"condition": Condition.STARTING, "queued": queued, "why": why, "restarts": False}
    return stands(seconds, f"pending ({why or 'Resources'})", **told)


def is_over(seconds: float, why: str, *, preempted: bool = False) -> Step:
    return stands(seconds, "over", condition=Condition.GONE, why=why, preempted=preempted)


GOES_WELL = (
    *(at(40, Cloud.booted), at(50, Cloud.driver_ready), at(180, Cloud.image_pulled), beats(200, 400)),
    *(at(390, lambda cloud: cloud.beat("uploading")), at(400, Cloud.result)),
)
# The time without answers is no silence of the VM: its next heartbeat comes 150 s after the outage.
OUTAGE = (
    *(beats(200, 400), sets(410, outage="Compute Engine cannot be reached: no route"), sets(1900, outage="")),
    *(at(2050, Cloud.beat), at(2100, Cloud.result)),
)
RESULT, STATUS = result_object(NAME), status_object(NAME)
HELD = waits(60, "held; scontrol release 12_1 lets it start", queued=False)
VM: dict[str, Sequence[Step]] = {
    "goes well": GOES_WELL,
    "never comes up": [at(40, Cloud.booted)],
    "cannot be removed": [sets(0, serial_text="", deletion_works=False)],
    "falls silent": [beats(200, 300)],
    "is stopped by itself": [stands(90, "TERMINATED", restarts=False)],
    "is not started again": [beats(200, 400), stands(400, "TERMINATED")],
    "passes its limit": [stands(0, "RUNNING", deadline_s=int(BEGAN_S) + 1000), beats(200, 2000)],
    "is preempted": [sets(0, was_preempted=True), beats(200, 300), at(300, Cloud.gone)],
    "is deleted": [beats(200, 300), at(300, Cloud.gone)],
    "vanishes at its limit": [beats(200, 3600), at(3600, Cloud.gone)],
    "vanishes as its result arrives": [at(301, Cloud.gone), at(319, Cloud.result)],
    **{
        f"is {status}, and started again": [
            *(beats(200, 400), stands(400, status), stands(1250, "RUNNING"), at(1500, Cloud.beat)),
            at(1520, lambda cloud: cloud.result(exit_code=6)),
        ]
        for status in ("TERMINATED", "REPAIRING")
    },
    "is started again in its boot": [
        *(stands(500, "TERMINATED"), stands(900, "RUNNING"), at(1700, Cloud.beat), at(1720, Cloud.result))
    ],
    "cannot be asked for a time": OUTAGE,
    "writes a result that cannot be read": [puts(20, RESULT, b"no result"), beats(30, 900), at(900, Cloud.gone)],
    "writes hostile records": [
        *(at(0, Cloud.booted), at(0, lambda cloud: cloud.attributes.update(evil="\x1b[2J")), puts(10, STATUS, b"{")),
        *(at(20, lambda cloud: cloud.beat("\x1b[2Jstep\r\n1\x07")), puts(30, RESULT, b"no"), at(60, Cloud.result)),
    ],
}
JOB: dict[str, Sequence[Step]] = {
    "waits for days, and once more after it was sent back": [
        *(waits(0), stands(3 * DAY_S, "RUNNING"), waits(3 * DAY_S + 300), stands(5 * DAY_S, "RUNNING")),
        at(5 * DAY_S + 300, Cloud.result),
    ],
    "is held": [waits(0), HELD],
    "is held after it has run": [at(0, Cloud.beat), HELD],
    "reaches its time limit": [beats(200, 3590), is_over(3590, "the job reached its time limit")],
    "loses its node": [is_over(590, "another job took the node", preempted=True)],
}


def begin(cloud: Cloud, steps: Sequence[Step]) -> None:
    for step in steps:
        step(cloud)
    cloud.sleep(0)


def followed(cloud: Cloud, steps: Sequence[Step], request: Request) -> str:
    """How a launch ended and when, and its events."""
    begin(cloud, steps)
    launch, events = run(cloud, request)
    error = f"{launch.error.report()}\nexit code {int(launch.error.exit_code)}\n" if launch.error else ""
    told = [f"{event.kind.name.lower()}: {event.text}\n" for event in events]
    # A line of progress is told at every look.
    told = [line for place, line in enumerate(told) if line not in told[:place] or not line.startswith("progress")]
    ended = f"{launch.liveness} after {cloud.time_s - BEGAN_S:.0f} s, {'gone' if launch.is_gone else 'still there'}\n"
    return (ended + error + "".join(told)).replace(str(cloud.folder), "")


def test_what_becomes_of_a_launch_that_is_followed(golden: Golden, tmp_path: Path) -> None:
    texts = []
    for noun, stories, request in (("VM", VM, REQUEST), ("job", JOB, replace(REQUEST, spot=False))):
        for name, steps in stories.items():
            cloud = Cloud(tmp_path)
            cloud.noun = noun
            texts.append(f"## the {noun} {name}\n{followed(cloud, steps, request)}")
    golden("followed.txt", "\n".join(texts))
    assert (tmp_path / "new" / f"{NAME}-serial.txt").read_text() == "boot\nlast words\n"


@pytest.mark.parametrize(
    ("elapsed_s", "every_s"),
    [(0, 5), (119.9, 5), (120, 10), (599.9, 10), (600, 30), (86400, 30)],
)
def test_pause_between_looks(elapsed_s: float, every_s: float) -> None:
    assert interval_s(elapsed_s) == every_s


def test_requests_of_a_follower(cloud: Cloud) -> None:
    begin(cloud, GOES_WELL)
    run(cloud)
    # Every 5 s for 2 minutes, then every 10 s.
    assert cloud.asked_at == [*range(0, 120, 5), *range(120, 401, 10)]
    looks = len(cloud.asked_at)
    # Its own phases until the first heartbeat; a heartbeat is read when it has changed, by listing.
    assert cloud.calls == {"look": looks, "list": looks, "phases": 32, "read": 15}


def test_looks_that_fail_are_a_minute_apart(cloud: Cloud) -> None:
    begin(cloud, OUTAGE)
    run(cloud)
    assert 20 < len([seconds for seconds in cloud.asked_at if 410 <= seconds < 1900]) < 40


def test_ctrl_c_that_a_library_caught_ends_following(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    def look(*_: object) -> Listing[Machine]:
        with suppress(InterruptedRunError):
            signal.raise_signal(signal.SIGINT)
        raise ToolError("Compute Engine cannot be reached", hint="try later")

    monkeypatch.setattr(cloud, "look", look)
    with stoppable(), pytest.raises(InterruptedRunError):
        run(cloud)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_a_line_a_phase_and_on_a_terminal_a_live_line(
    golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    live = Event(kind=EventKind.PROGRESS, text="step 7 of 110, " + "long " * 20)
    phase = Event(kind=EventKind.PHASE, text="image_pulled", at_s=1090.0)
    note = Event(kind=EventKind.NOTE, text="the cloud answers again")
    shown = []
    for stream in (io.StringIO(), Terminal()):
        clock = [1000.0]
        progress = LaunchProgress(stream, lambda clock=clock: clock[0])  # type: ignore[misc]
        for clock[0], event in ((1010.0, phase), (1020.0, live), (1100.0, note), (1129.0, live), (1130.0, live)):
            if clock[0] <= 1100.0 or not stream.isatty():
                progress(event)
        shown.append(ascii(stream.getvalue()).replace("\\n", "\n"))
    golden("progress.txt", "\n\n".join(shown) + "\n")

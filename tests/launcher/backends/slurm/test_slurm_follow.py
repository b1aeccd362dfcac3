"""Following a job that waits in a queue, for longer than any machine takes to boot. No Slurm is asked."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.jobs.liveness import Liveness
from launcher.jobs.run import follow
from launcher.jobs.session import Event, EventKind, Session
from launcher.jobs.watch import WatchedLaunch
from launcher.protocol.backend import Condition, Listing, Machine, Output, Removed
from launcher.protocol.records import Heartbeat, Request, Result, result_object, status_object
from workload.storage.folder import Folder

NAME = "rooflaunch-slurm-20261121-120000-abcdef"
REQUEST = Request(
    name=NAME, backend="slurm", launched_at="2026-11-21T12:00:00Z", store="/r", place="slurm", runtime="process",
    limit_s=600, spec={},
)  # fmt: skip
DAY_S = 86400.0
WAITS = Machine(name=NAME, zone="gpu", condition=Condition.STARTING, status="pending (Resources)", queued=True)
RUNS = Machine(name=NAME, zone="gpu", condition=Condition.RUNNING, status="running")


class Queue:
    """Machines with a script: what is seen from which second on."""

    noun, place, calls = "job", "this login node", {}

    def __init__(self, *script: tuple[float, Machine]) -> None:
        self.script, self.time_s = script, 1e9

    def now_s(self) -> float:
        return self.time_s

    def sleep(self, seconds: float) -> None:
        self.time_s += seconds

    def look(self, _: Any) -> Listing[Machine]:
        return Listing(there=([machine for from_s, machine in self.script if self.time_s >= 1e9 + from_s][-1],))

    def phases(self, _: Machine) -> dict[str, str]:
        return {}

    def output(self, _: Machine, start: int) -> Output:
        return Output(text="", next_start=start)

    def stop(self, machines: Any) -> list[Removed]:
        return [Removed(kind="job", name=machine.name, zone="gpu", gone=True) for machine in machines]


def followed(queue: Any, folder: Path) -> tuple[WatchedLaunch, list[str]]:
    events: list[Event] = []
    session = Session(machines=queue, store=Folder(folder), sleep=queue.sleep, on_event=events.append)
    outcome = follow(session, REQUEST, "gpu", output=folder)
    return outcome, [event.text for event in events if event.kind is EventKind.PROGRESS]


def test_a_job_may_wait_for_days_and_once_more_after_it_was_sent_back(tmp_path: Path) -> None:
    result = Result(exit_code=0, zone="gpu", runs=[], phases={}, ended_at="2026-11-21T12:00:00Z")
    queue = Queue((0, WAITS), (3 * DAY_S, RUNS), (3 * DAY_S + 300, WAITS), (5 * DAY_S, RUNS))
    end_s = 1e9 + 5 * DAY_S + 300

    def sleep(seconds: float) -> None:
        queue.time_s += seconds
        if queue.time_s > end_s:
            Folder(tmp_path).write(result_object(NAME), result.to_bytes())

    queue.sleep = sleep  # type: ignore[method-assign] # the job ends meanwhile
    outcome, progress = followed(queue, tmp_path)
    assert outcome.liveness is Liveness.ENDED
    assert set(progress) == {"the job waits: pending (Resources)", "the job starts"}


@pytest.mark.parametrize(
    ("state", "preempted", "ended", "message", "hint"),
    [
        (
            "the job reached its time limit",
            False,
            Liveness.OUT_OF_TIME,
            "ended without a result: the job reached its time limit",
            "logs",
        ),
        ("another job took the node", True, Liveness.PREEMPTED, "was preempted: another job took the node", ""),
    ],
)
def test_the_place_says_why_there_is_no_result(
    state: str, preempted: bool, ended: Liveness, message: str, hint: str, tmp_path: Path
) -> None:
    gone = Machine(name=NAME, zone="gpu", condition=Condition.GONE, why=state, preempted=preempted)
    outcome, _ = followed(Queue((0, RUNS), (590, gone)), tmp_path)
    assert outcome.liveness is ended
    assert str(outcome.error) == f"'{NAME}' {message}"
    assert outcome.error
    assert outcome.error.hint == (f"launch logs {NAME}" if hint else "launch again")


@pytest.mark.parametrize("has_run", [False, True])
def test_held_job_is_announced_once_and_removed_after_the_time_for_a_boot(has_run: bool, tmp_path: Path) -> None:
    status, why = "pending (held; scontrol release 12_1 lets it start)", "Slurm holds the job (held)"
    queue = Queue((0, RUNS if has_run else WAITS), (60, replace(WAITS, queued=False, status=status, why=why)))
    beat = Heartbeat(at="2026-11-21T12:00:00Z", zone="gpu", phases={}).to_bytes()
    if has_run:
        Folder(tmp_path).write(status_object(NAME), beat)
    events: list[Event] = []
    session = Session(machines=queue, store=Folder(tmp_path), sleep=queue.sleep, on_event=events.append)
    outcome = follow(session, REQUEST, "gpu", output=tmp_path)
    assert str(outcome.error) == f"'{NAME}' was not started: {why}"
    assert 300 < queue.time_s - 1e9 < 1000
    notes = [event.text for event in events if event.kind is EventKind.NOTE]
    assert notes == [f"'{NAME}' waits: {status}", f"'{NAME}' was not started: {why}: removing the job"]
    assert f"the job waits: {status}" in [event.text for event in events if event.kind is EventKind.PROGRESS]

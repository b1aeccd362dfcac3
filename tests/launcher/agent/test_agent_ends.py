"""What ends an agent's work early, and what a second start of the machine makes good."""

from dataclasses import replace
from pathlib import Path

import pytest
from agent_machine import BOOTED_S, CPU, NAME, PREEMPTED, Crash, Machine, crash, until

from launcher.agent import home as home_files
from launcher.agent import lease
from launcher.agent.agent import MARGIN_S
from launcher.agent.home import WorkEnd
from launcher.agent.stop import Stop, Why
from launcher.protocol import records
from launcher.protocol.records import Result, utc
from launcher.protocol.task import TaskRun
from workload.contract import bundle
from workload.contract.errors import ExitCode, ToolError
from workload.contract.record import Status
from workload.contract.spec import RunSpec


@pytest.mark.parametrize("status", [Status.INTERRUPTED, Status.RUNNING], ids=["sealed in time", "killed"])
def test_a_preemption_ends_the_run_in_order(status: Status, machine: Machine) -> None:
    is_sealed = status is Status.INTERRUPTED
    signal = "SIGTERM" if is_sealed else "SIGKILL"
    machine.trains_until_stopped(machine.host.taken.set, signal=signal, sealed=is_sealed, status=status)
    result = machine.work()
    assert (result.exit_code, result.preempted, result.timed_out) == (ExitCode.RUN_FAILED, True, False)
    assert (result.error, result.hint) == (PREEMPTED, "--rerun-preempted 1, or leave --spot out")
    assert result.runs == ["run-1"]
    record = machine.bucket.record("run-1")
    assert record["environment"]["cloud"]["preempted"] is True
    assert (record["status"], record["error"]) == ("preempted", PREEMPTED)
    assert machine.docker.containers.created[0].signals[0] == "SIGTERM"


@pytest.mark.parametrize("comes_back", [True, False])
def test_where_the_place_starts_it_again_a_preemption_is_no_end(comes_back: bool, machine: Machine) -> None:
    machine.host.is_back_later = comes_back
    machine.trains_until_stopped(machine.host.taken.set)
    machine.agent().work()
    assert machine.bucket.record("run-1")["status"] == "preempted"
    assert (records.result_object(machine.request.name) in machine.bucket.held) is not comes_back
    assert (machine.agent().home.ended() is None) is comes_back, "started again, it goes on"


def test_started_again_after_a_preemption_it_measures_once_more(machine: Machine) -> None:
    machine.host.is_back_later = True
    machine.trains_until_stopped(machine.host.taken.set)
    machine.agent().work()
    machine.host.taken.clear()
    machine.stop = Stop()
    machine.docker.containers.exit_code = ExitCode.DONE
    machine.trains(*machine.run_of("run-2"))
    result = machine.agent().work()
    assert (result.exit_code, result.runs) == (0, ["run-1", "run-2"])


def test_a_run_that_was_done_before_the_preemption_counts(machine: Machine) -> None:
    machine.trains(*machine.run_of("run-1"), machine.host.taken.set, until(lambda: machine.stop.why))
    result = machine.work()
    assert (result.exit_code, result.error, result.preempted) == (0, "", True)
    assert machine.bucket.record("run-1")["status"] == "completed"


# What the host says of the machine's creation and end, and seconds from the boot to the end that counts.
ENDS: dict[str, tuple[float | None, float | None, int]] = {
    "its deletion": (BOOTED_S - 30, BOOTED_S + 600, 600),
    "its creation": (BOOTED_S - 30, None, 1170),
    "nothing": (None, None, 1200),
}


@pytest.mark.parametrize(("created_s", "deleted_s", "after_s"), ENDS.values(), ids=list(ENDS))
def test_the_run_ends_before_the_machine_is_deleted(
    created_s: float | None, deleted_s: float | None, after_s: int, machine: Machine
) -> None:
    machine.request = machine.asked(CPU, limit_s=1200)
    # The launcher's clock may have been two hours slow or fast: that changes nothing.
    machine.request = replace(machine.request, launched_at="2026-11-21T08:00:00.000Z")
    machine.host.created, machine.host.deleted = created_s, deleted_s
    machine.now_s = BOOTED_S + after_s - MARGIN_S - 0.2
    assert machine.agent()._deadline_s() == BOOTED_S + after_s - MARGIN_S
    machine.trains_until_stopped(lambda: None)
    result = machine.work()
    assert (result.exit_code, result.preempted, result.timed_out) == (ExitCode.RUN_FAILED, False, True)
    assert result.error == "the launch reached its time limit of 1200 s"
    assert result.hint == "a longer --max-run-time (--time on Slurm), or fewer --iterations"
    assert machine.bucket.record("run-1")["status"] == "timed_out"


@pytest.mark.parametrize("taken", [True, False])
def test_a_signal_is_explained_by_a_preemption(taken: bool, machine: Machine) -> None:
    run = machine.run_of("run-1", status=Status.INTERRUPTED)

    def ask() -> None:
        machine.stop.ask(Why.ASKED)
        if taken:
            machine.host.taken.set()

    machine.trains(*run[:2], ask, run[2])
    machine.docker.containers.exit_code = ExitCode.INTERRUPTED
    result = machine.work()
    told = (result.exit_code, result.error, result.preempted, machine.bucket.record("run-1")["status"])
    expected = (ExitCode.INTERRUPTED, "the machine was asked to stop", False, "interrupted")
    assert told == ((ExitCode.RUN_FAILED, PREEMPTED, True, "preempted") if taken else expected)


def test_the_first_reason_counts() -> None:
    stop = Stop(press_every_s=0.01)
    stop.ask(Why.TIMED_OUT)
    stop.ask(Why.PREEMPTED)
    stop.close()
    assert stop.why is Why.TIMED_OUT


def test_a_second_start_saves_what_the_first_has_left(machine: Machine) -> None:
    first, second = machine.run_of("run-1"), machine.run_of("run-2")
    machine.request = machine.asked({**CPU, "repeats": "2"})
    machine.trains_in_turn(first, [*second[:2], until(lambda: machine.bucket.complete == ["run-1"]), crash])
    with pytest.raises(Crash):
        machine.work()
    sent = dict(machine.bucket.held)
    assert machine.bucket.complete == ["run-1"]
    machine.now_s += 30
    machine.stop = Stop()
    result = machine.work()
    broken = "the job was broken off: its machine was restarted, or its processes were killed"
    assert (result.exit_code, result.error, result.runs) == (ExitCode.RUN_FAILED, broken, ["run-1", "run-2"])
    assert machine.bucket.held.items() >= {name: sent[name] for name in sent if name.startswith("runs/")}.items()
    record = machine.bucket.record("run-2")
    assert (record["status"], record["error"]) == ("failed", broken)
    assert len(machine.docker.containers.created) == 2
    # From the end of the first run, which the first start has charged.
    assert machine.bucket.record("run-1")["cost"]["billed_to"] == record["cost"]["billed_from"]


def test_that_a_run_has_begun_survives_the_end_of_power(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(
        home_files.os, "fsync", lambda number: synced.append(Path(f"/proc/self/fd/{number}").readlink().name)
    )
    machine.trains(lambda: synced.append("the run begins"), *machine.run_of("run-1"))
    machine.work()
    assert synced[:3] == [home_files.STARTED, machine.home.name, "the run begins"]


def test_a_closed_bundle_is_sent_as_it_is_the_second_time(machine: Machine) -> None:
    machine.bucket.broken = 99
    machine.trains(*machine.run_of("run-1"))
    assert machine.work().exit_code == ExitCode.TOOL
    closed = (machine.home / "results/run-1" / bundle.MANIFEST).read_bytes()
    del machine.bucket.held[records.result_object(NAME)]
    machine.bucket.broken, machine.stop = 0, Stop()
    machine.now_s += 1000
    assert machine.work().runs == ["run-1"]
    assert machine.bucket.held[f"runs/run-1/{bundle.MANIFEST}"] == closed
    assert machine.bucket.record("run-1")["status"] == "completed"


def test_a_result_that_could_not_be_written_is_written_by_the_second_start(machine: Machine) -> None:
    machine.bucket.no_result = True
    machine.trains(*machine.run_of("run-1"))
    with pytest.raises(ToolError):
        machine.work()
    assert machine.bucket.complete == ["run-1"]
    machine.bucket.no_result, machine.stop = False, Stop()
    result = machine.work()
    assert (result.exit_code, result.error, result.runs) == (0, "", ["run-1"])
    assert machine.bucket.record("run-1")["status"] == "completed"


def test_an_agent_that_was_taken_over_ends_its_run_and_leaves_the_records_alone(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "HEARTBEAT_PAUSE_S", 0.01)
    monkeypatch.setattr(lease, "HEARTBEAT_EVERY_S", 0.01)
    run = machine.run_of("run-1", status=Status.INTERRUPTED)
    beats: list[int] = []

    def lose() -> None:
        machine.is_lost = True

    def count() -> None:
        beats.append(len(machine.bucket.beats))

    signals = until(lambda: "SIGTERM" in machine.docker.containers.created[0].signals)
    machine.trains(*run[:2], lose, signals, count, run[2])
    machine.docker.containers.exit_code = ExitCode.INTERRUPTED
    result = machine.agent().work()
    assert (result.exit_code, result.error) == (ExitCode.INTERRUPTED, "another agent has taken the launch over")
    assert records.result_object(NAME) not in machine.bucket.held
    assert [len(machine.bucket.beats)] == beats, "the heartbeat is the other agent's"
    assert machine.agent().home.ended() is None
    assert machine.bucket.record("run-1")["status"] == "interrupted", "what was measured is stored"


@pytest.mark.parametrize("status", [Status.COMPLETED, Status.INTERRUPTED])
def test_a_complete_bundle_that_comes_late_is_stored_beside_the_broken_one(
    status: Status, machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two agents share a folder: the second seals and stores the run that the first one is still in."""
    machine.host.is_back_later = True
    first = machine.run_of("run-1", status=status, run_key="key-1")

    def take_over() -> None:
        second = Machine(machine.home, machine.docker)
        second.bucket, second.host = machine.bucket, machine.host
        agent = second.agent()
        agent.delivery.take_up()
        agent.delivery.deliver_all("broken off")
        assert machine.bucket.record("run-1")["status"] == "failed"

    machine.trains(*first[:2], take_over, first[2])
    machine.docker.containers.exit_code = ExitCode.DONE if status is Status.COMPLETED else ExitCode.INTERRUPTED
    result = machine.agent().work()
    assert machine.bucket.record("run-1")["status"] == "failed"
    if status is Status.INTERRUPTED:
        assert (result.exit_code, machine.bucket.complete) == (ExitCode.INTERRUPTED, ["run-1"])
        assert "error: another bundle of 'run-1' is in " in capsys.readouterr().err
        return
    [late] = set(machine.bucket.complete) - {"run-1"}
    record = machine.bucket.record(late)
    assert (record["run_id"], record["status"], record["run_key"]) == (late, "completed", "key-1")
    assert result.runs == ["run-1", late]
    assert bundle.read(machine.home / "results" / late).document == record


@pytest.mark.parametrize("is_sweep", [False, True], ids=["one run", "a sweep"])
@pytest.mark.parametrize("told", ["", "the job was removed by `launch down`"])
def test_a_start_that_only_saves_measures_nothing(machine: Machine, told: str, is_sweep: bool) -> None:
    """It stores what a killed agent left, also past the launch's limit, and keeps what the launcher said of the end."""
    if is_sweep:
        machine.sweeps(*(TaskRun(spec=RunSpec.from_json(machine.request.spec), run_key=key * 64) for key in "ab"))
    machine.trains(*machine.run_of("run-1")[:2], crash)
    with pytest.raises(Crash):
        machine.work()
    assert machine.bucket.complete == []
    if told:
        earlier = Result(exit_code=ExitCode.INTERRUPTED, zone="z", runs=[], phases={}, ended_at=utc(1.8e9), error=told)
        machine.bucket.held[records.result_object(NAME)] = earlier.to_bytes()
    (machine.home / home_files.SAVING).touch()
    machine.now_s += 1e6
    machine.stop = Stop()
    result = machine.work()
    killed = "the job was broken off: its machine was restarted, or its processes were killed"
    code = ExitCode.INTERRUPTED if told else ExitCode.RUN_FAILED
    assert (result.exit_code, result.error, result.runs) == (code, told or killed, ["run-1"])
    record = machine.bucket.record("run-1")
    assert (record["status"], record["error"]) == ("failed", told or killed)
    assert len(machine.docker.containers.created) == 1


FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full here")
def test_a_full_disk_has_words_of_its_own(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    """Phases that cannot be kept end nothing; how the work ended has its room, or the result says what failed."""

    def fill() -> None:
        for name in (home_files.ENDED, home_files.OWN_PHASES):
            (machine.home / name).unlink()
        (machine.home / home_files.ENDED).symlink_to(FULL)
        (machine.home / home_files.OWN_PHASES).mkdir()

    machine.trains(*machine.run_of("run-1"), fill)
    result = machine.work()
    said = f"No space left on device while writing '{machine.home / home_files.ENDED}'"
    assert (result.exit_code, result.error) == (ExitCode.TOOL, said)
    assert result.hint == "free some space there (df -h; quota -s)"
    assert result.runs == ["run-1"]
    assert "Traceback" not in capsys.readouterr().err


def test_how_it_ended_takes_no_room_that_was_not_reserved(tmp_path: Path) -> None:
    home = home_files.Home(path=tmp_path)
    assert home.ended() is None
    home.note_begun()
    assert home.ended() is None
    before = (tmp_path / home_files.ENDED).stat()
    home.note_ended(WorkEnd(exit_code=4, error="No space left", hint="df"))
    after = (tmp_path / home_files.ENDED).stat()
    assert (after.st_size, after.st_ino) == (before.st_size, before.st_ino)
    assert home.ended() == WorkEnd(exit_code=4, error="No space left", hint="df")

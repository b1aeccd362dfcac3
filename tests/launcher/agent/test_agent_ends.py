"""What ends an agent's work, early or not, and what a second start of the machine makes good, as short stories."""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import docker.errors as docker_errors
import pytest
from agent_machine import BOOTED_S, CPU, NAME, Crash, Machine, crash, until

from benchmarks.synthetic_bundles import make
from launcher.agent import home as home_files
from launcher.agent import lease
from launcher.agent.agent import MARGIN_S
from launcher.agent.home import WorkEnd
from launcher.agent.lease import Stop, Why
from launcher.protocol import records
from launcher.protocol.records import Result, TaskRun, utc
from tests.launcher.told import Golden
from workload.contract import bundle
from workload.contract.errors import ExitCode, ToolError
from workload.contract.record import Status
from workload.contract.spec import Device, RunSpec
from workload.storage.inventory import upload

Story = Callable[[Machine], Result]
TWICE = {**CPU, "repeats": "2"}


def again(machine: Machine) -> Result:
    """Start the agent once more."""
    machine.stop = Stop()
    return machine.agent().work()


def crashes(machine: Machine) -> None:
    with pytest.raises(Crash):
        machine.work()


# One run, or its repeats


def upload_fails(machine: Machine, times: int) -> Result:
    machine.bucket.broken = times
    machine.request = machine.asked(TWICE)
    first, second = machine.run_of("run-1"), machine.run_of("run-2")
    machine.trains_in_turn(first, [*second[:2], until(lambda: machine.bucket.broken != times), second[2]])
    return machine.work()


def engine_goes_away(machine: Machine) -> Result:
    def go() -> None:
        raise docker_errors.APIError("gone", explanation="the engine is gone")

    machine.request = machine.asked(TWICE)
    machine.trains_in_turn(machine.run_of("run-1"), [*machine.run_of("run-2")[:2], go])
    return machine.work()


def trainer_fails(machine: Machine, said: bytes, code: int, *, out_of_memory: bool = False) -> Result:
    machine.trains((None, said))
    machine.docker.containers.exit_code, machine.docker.containers.out_of_memory = code, out_of_memory
    return machine.work()


def image_is_missing(machine: Machine) -> Result:
    machine.docker.held.clear()
    return machine.work()


def price_is_unknown(machine: Machine) -> Result:
    machine.request = machine.asked(CPU, prices={"europe-west4": {"usd_per_h": 1.0, "source": "s", "read": "r"}})
    machine.trains(*machine.run_of("run-1"))
    return machine.work()


def clock_was_set_back(machine: Machine) -> Result:
    """And a line of the boot's phases is half; the record can be read all the same."""
    (machine.home / home_files.BOOT_PHASES).write_text("booted 2026-11-21T12:00:00.000Z\nimage_pulled 2026-11-2")
    machine.trains(*machine.run_of("run-1"))
    result = machine.work()
    assert Result.from_bytes(machine.bucket.held[records.result_object(NAME)]) == result
    return result


def nobody_hears_the_heart(machine: Machine) -> Result:
    machine.bucket.silent = machine.host.dumb = True
    machine.trains(*machine.run_of("run-1"))
    return machine.work()


# Preemptions and limits


def is_preempted(machine: Machine, status: Status) -> Result:
    is_sealed = status is Status.INTERRUPTED
    signal = "SIGTERM" if is_sealed else "SIGKILL"
    machine.trains_until_stopped(machine.host.taken.set, signal=signal, sealed=is_sealed, status=status)
    result = machine.work()
    assert machine.docker.containers.created[0].signals[0] == "SIGTERM"
    return result


def is_preempted_and_comes_back(machine: Machine) -> Result:
    """That is no end: started again, it goes on."""
    machine.host.is_back_later = True
    machine.trains_until_stopped(machine.host.taken.set)
    result = machine.agent().work()
    assert machine.agent().home.ended() is None
    return result


def measures_once_more_after_a_preemption(machine: Machine) -> Result:
    is_preempted_and_comes_back(machine)
    machine.host.taken.clear()
    machine.docker.containers.exit_code = ExitCode.DONE
    machine.trains(*machine.run_of("run-2"))
    return again(machine)


def was_done_before_the_preemption(machine: Machine) -> Result:
    machine.trains(*machine.run_of("run-1"), machine.host.taken.set, until(lambda: machine.stop.why))
    return machine.work()


def reaches_its_limit(machine: Machine, created_s: float | None, deleted_s: float | None, after_s: int) -> Result:
    """`created_s`, `deleted_s`: what the host says; `after_s`: seconds from the boot to the end that counts."""
    machine.request = machine.asked(CPU, limit_s=1200)
    # The launcher's clock may have been two hours slow or fast: that changes nothing.
    machine.request = replace(machine.request, launched_at="2026-11-21T08:00:00.000Z")
    machine.host.created, machine.host.deleted = created_s, deleted_s
    machine.now_s = BOOTED_S + after_s - MARGIN_S - 0.2
    assert machine.agent()._deadline_s() == BOOTED_S + after_s - MARGIN_S
    machine.trains_until_stopped(lambda: None)
    return machine.work()


def gets_a_signal(machine: Machine, *, taken: bool) -> Result:
    run = machine.run_of("run-1", status=Status.INTERRUPTED)

    def ask() -> None:
        machine.stop.ask(Why.ASKED)
        if taken:
            machine.host.taken.set()

    machine.trains(*run[:2], ask, run[2])
    machine.docker.containers.exit_code = ExitCode.INTERRUPTED
    return machine.work()


# A second start


def saves_what_the_first_start_left(machine: Machine) -> Result:
    first, second = machine.run_of("run-1"), machine.run_of("run-2")
    machine.request = machine.asked(TWICE)
    machine.trains_in_turn(first, [*second[:2], until(lambda: machine.bucket.complete == ["run-1"]), crash])
    crashes(machine)
    sent = dict(machine.bucket.held)
    machine.now_s += 30
    result = again(machine)
    assert machine.bucket.held.items() >= {name: sent[name] for name in sent if name.startswith("runs/")}.items()
    # From the end of the first run, which the first start has charged.
    costs = [machine.bucket.record(name)["cost"] for name in ("run-1", "run-2")]
    assert costs[0]["billed_to"] == costs[1]["billed_from"]
    return result


def sends_a_closed_bundle_as_it_is(machine: Machine) -> Result:
    machine.bucket.broken = 99
    machine.trains(*machine.run_of("run-1"))
    assert machine.work().exit_code == ExitCode.TOOL
    closed = (machine.home / "results/run-1" / bundle.MANIFEST).read_bytes()
    del machine.bucket.held[records.result_object(NAME)]
    machine.bucket.broken = 0
    machine.now_s += 1000
    result = again(machine)
    assert machine.bucket.held[f"runs/run-1/{bundle.MANIFEST}"] == closed
    return result


def writes_the_result_that_could_not_be_written(machine: Machine) -> Result:
    machine.bucket.no_result = True
    machine.trains(*machine.run_of("run-1"))
    with pytest.raises(ToolError):
        machine.work()
    machine.bucket.no_result = False
    return again(machine)


def only_saves(machine: Machine, *, told: str = "", is_sweep: bool = False) -> Result:
    """It stores what a killed agent left, also past the launch's limit, and keeps what the launcher said of the end."""
    if is_sweep:
        machine.sweeps(*(TaskRun(spec=RunSpec.from_json(machine.request.spec), run_key=key * 64) for key in "ab"))
    machine.trains(*machine.run_of("run-1")[:2], crash)
    crashes(machine)
    if told:
        earlier = Result(exit_code=ExitCode.INTERRUPTED, zone="z", runs=[], phases={}, ended_at=utc(1.8e9), error=told)
        machine.bucket.held[records.result_object(NAME)] = earlier.to_bytes()
    (machine.home / home_files.SAVING).touch()
    machine.now_s += 1e6
    return again(machine)


# The task of a sweep


def run_of(number: int, batch_size: int = 4, *, block: int = 1) -> TaskRun:
    return TaskRun(spec=RunSpec(device=Device.CPU, batch_size=batch_size), block=block, run_key=f"key-{number}")


def works_through_a_task(machine: Machine) -> Result:
    """A run that fails, by itself or before it began, stops no other; out of memory is a result."""
    machine.sweeps(run_of(1), run_of(2, 8), run_of(3, 16), run_of(4, block=2), run_of(5, block=2))
    failing = machine.run_of("run-1", status=Status.FAILED, run_key="key-1")
    failing[1] = (failing[1][0], b"error: the loss is nan\nhint: a lower rate\n")
    machine.trains_in_turn(
        [ExitCode.RUN_FAILED, *failing],
        [ExitCode.OUT_OF_MEMORY, *machine.run_of("run-2", status=Status.OUT_OF_MEMORY, run_key="key-2")],
        [ExitCode.USAGE, (None, b"error: no such data\nhint: --download\n")],
        machine.run_of("run-5", run_key="key-5"),
    )
    return machine.work()


def finds_runs_in_the_store(machine: Machine) -> Result:
    machine.sweeps(run_of(1), run_of(2, 8), run_of(3, 2))
    for number, status in ((1, "completed"), (3, "failed")):
        upload(machine.bucket, make(machine.home / "earlier", number, status=status, run_key=f"key-{number}"))
    machine.trains_in_turn(
        [ExitCode.OUT_OF_MEMORY, *machine.run_of("run-2", status=Status.OUT_OF_MEMORY, run_key="key-2")],
        machine.run_of("run-3", run_key="key-3"),
    )
    machine.bucket.lists = 0
    result = machine.work()
    assert machine.bucket.lists == 1, "the store is asked once"
    return result


def finds_a_damaged_bundle_in_the_store(machine: Machine) -> Result:
    machine.sweeps(run_of(1), run_of(2))
    for number in (1, 2):
        upload(machine.bucket, made := make(machine.home / "earlier", number, run_key=f"key-{number}"))
    steps = f"runs/{made.name}/steps.csv"
    machine.bucket.held[steps] = machine.bucket.held[steps].replace(b"0", b"1", 1)
    machine.trains(*machine.run_of("run-2", run_key="key-2"))
    return machine.work()


def finds_a_bundle_with_the_labels_of_another_run(machine: Machine) -> Result:
    machine.sweeps(run_of(1))
    upload(machine.bucket, made := make(machine.home / "earlier", spec__model="vgg16", run_key="key-9"))
    machine.bucket.labels[f"runs/{made.name}/MANIFEST.json"]["run_key"] = "key-1"
    machine.trains(*machine.run_of("run-1", run_key="key-1"))
    return machine.work()


def starts_no_run_that_does_not_fit(machine: Machine) -> Result:
    machine.sweeps(run_of(1), run_of(2), run_of(3))
    machine.host.deleted = machine.now_s + MARGIN_S + 250
    machine.trains_in_turn(machine.run_of("run-1", run_key="key-1"), machine.run_of("run-2", run_key="key-2"))
    return machine.work()


def is_preempted_in_a_task(machine: Machine) -> Result:
    """Only the run under way was preempted."""
    machine.sweeps(run_of(1), run_of(2), run_of(3))
    failed = [ExitCode.RUN_FAILED, *machine.run_of("run-1", status=Status.FAILED, run_key="key-1")]
    run = machine.run_of("run-2", status=Status.INTERRUPTED, run_key="key-2")
    signals = until(lambda: "SIGTERM" in machine.docker.containers.created[1].signals)
    machine.trains_in_turn(failed, [ExitCode.INTERRUPTED, *run[:2], machine.host.taken.set, signals, run[2]])
    return machine.work()


def goes_on_with_what_is_missing(machine: Machine) -> Result:
    machine.sweeps(run_of(1), run_of(2), run_of(3))
    second = machine.run_of("run-2", run_key="key-2")
    is_sent = until(lambda: machine.bucket.complete == ["run-1"])
    machine.trains_in_turn(machine.run_of("run-1", run_key="key-1"), [*second[:2], is_sent, crash])
    crashes(machine)
    machine.trains_in_turn(machine.run_of("run-2b", run_key="key-2"), machine.run_of("run-3", run_key="key-3"))
    result = again(machine)
    billed = sum(machine.bucket.record(name)["cost"]["billed_s"] for name in result.runs)
    assert billed == machine.now_s - BOOTED_S, "together the VM's time"
    return result


def gives_up_a_run_that_breaks_it_off_twice(machine: Machine) -> Result:
    machine.sweeps(run_of(1), run_of(2))
    for attempt in range(2):
        machine.trains_in_turn([*machine.run_of(f"run-1{attempt}", run_key="key-1")[:2], crash])
        crashes(machine)
        machine.stop = Stop()
    machine.trains_in_turn(machine.run_of("run-2", run_key="key-2"))
    return again(machine)


OWN_ERROR = b"error: unknown model 'resnet19'\nhint: did you mean resnet18?\n"
REMOVED = "the job was removed by `launch down`"
STORIES: dict[str, Story] = {
    "an upload fails once": partial(upload_fails, times=1),
    "uploads fail for ever": partial(upload_fails, times=99),
    "the engine goes away": engine_goes_away,
    "the trainer says its error": partial(trainer_fails, said=OWN_ERROR, code=ExitCode.USAGE),
    "the trainer ends without a word": partial(trainer_fails, said=b"", code=6),
    "the trainer is killed before it makes a bundle": partial(trainer_fails, said=b"", code=137, out_of_memory=True),
    "the image is missing": image_is_missing,
    "the price is unknown": price_is_unknown,
    "the clock was set back": clock_was_set_back,
    "nobody hears the heart": nobody_hears_the_heart,
    "it is preempted": partial(is_preempted, status=Status.INTERRUPTED),
    "it is preempted, and the trainer is killed": partial(is_preempted, status=Status.RUNNING),
    "it is preempted, and comes back": is_preempted_and_comes_back,
    "it measures once more after a preemption": measures_once_more_after_a_preemption,
    "it was done before the preemption": was_done_before_the_preemption,
    "it reaches the limit of its deletion": partial(
        reaches_its_limit, created_s=BOOTED_S - 30, deleted_s=BOOTED_S + 600, after_s=600
    ),
    "it reaches the limit since its creation": partial(
        reaches_its_limit, created_s=BOOTED_S - 30, deleted_s=None, after_s=1170
    ),
    "it reaches the limit since its boot": partial(reaches_its_limit, created_s=None, deleted_s=None, after_s=1200),
    "it gets a signal": partial(gets_a_signal, taken=False),
    "it gets a signal because of a preemption": partial(gets_a_signal, taken=True),
    "a second start saves what the first has left": saves_what_the_first_start_left,
    "a second start sends a closed bundle as it is": sends_a_closed_bundle_as_it_is,
    "a second start writes the result": writes_the_result_that_could_not_be_written,
    "a start only saves": only_saves,
    "a start only saves what was removed": partial(only_saves, told=REMOVED),
    "a start only saves a run of a sweep": partial(only_saves, is_sweep=True),
    "a start only saves a run of a sweep that was removed": partial(only_saves, told=REMOVED, is_sweep=True),
    "a task is worked through": works_through_a_task,
    "a task finds runs in the store": finds_runs_in_the_store,
    "a task finds a damaged bundle in the store": finds_a_damaged_bundle_in_the_store,
    "a task finds a bundle with the labels of another run": finds_a_bundle_with_the_labels_of_another_run,
    "a task starts no run that does not fit": starts_no_run_that_does_not_fit,
    "a task is preempted": is_preempted_in_a_task,
    "a second start of a task goes on with what is missing": goes_on_with_what_is_missing,
    "a task gives up a run that breaks it off twice": gives_up_a_run_that_breaks_it_off_twice,
}


def ended(machine: Machine, result: Result) -> str:
    """What the result says, the bundles in the bucket, and how many containers there were."""
    is_kept = records.result_object(NAME) in machine.bucket.held
    marks = [mark for mark in ("preempted", "timed_out") if getattr(result, mark)]
    lines = [", ".join((f"exit code {int(result.exit_code)}", *marks, *([] if is_kept else ["no result is written"])))]
    lines += [f"error: {result.error}", f"hint: {result.hint}"] if result.error else []
    lines.append(f"phases: {' '.join(result.phases)}; {result.usd and round(result.usd, 3)} USD")
    for name in sorted(machine.bucket.complete):
        record = machine.bucket.record(name)
        billed = f", {record['cost']['billed_s']:.0f} s billed" if name in result.runs else ", not ours"
        lines.append(f"{name}: {record['status']}{billed}{(record['error'] and ': ' + record['error']) or ''}")
    return "\n".join([*lines, f"{len(machine.docker.containers.created)} containers\n"])


def test_how_the_work_of_an_agent_ends(
    golden: Golden, machines: Callable[[str], Machine], capsys: pytest.CaptureFixture[str]
) -> None:
    texts = []
    for name, story in STORIES.items():
        machine = machines(name)
        text = ended(machine, story(machine))
        said = capsys.readouterr().out.splitlines()
        runs = [f"{line}\n" for line in said if line.startswith("run ") or line.endswith("it runs again")]
        text = f"## {name}\n{text}{''.join(runs)}".replace(str(machine.home), "HOME").replace(
            f"{machine.bucket}", "BUCKET"
        )
        texts.append(re.sub(r"\d{8}T\d{6}Z-\S+-b16-\S+-[0-9a-f]{6}", "a new run", text))
    golden("ends.txt", "\n".join(texts))


def test_the_first_reason_counts() -> None:
    stop = Stop(press_every_s=0.01)
    stop.ask(Why.TIMED_OUT)
    stop.ask(Why.PREEMPTED)
    stop.close()
    assert stop.why is Why.TIMED_OUT


def test_that_a_run_has_begun_survives_the_end_of_power(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(
        home_files.os, "fsync", lambda number: synced.append(Path(f"/proc/self/fd/{number}").readlink().name)
    )
    machine.trains(lambda: synced.append("the run begins"), *machine.run_of("run-1"))
    machine.work()
    assert synced[:3] == [home_files.STARTED, machine.home.name, "the run begins"]


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

"""The agent works through the task of a sweep; who lets its machine: nobody, or what a launch brings with it."""

from pathlib import Path

import pytest
from agent_machine import BOOTED_S, PREEMPTED, Crash, Machine, context_of, crash, until

from benchmarks.synthetic_bundles import make
from launcher.agent import host_facts
from launcher.agent.agent import MARGIN_S
from launcher.agent.host_facts import OwnMachine, host_facts_of
from launcher.agent.stop import Stop
from launcher.protocol.task import TaskRun
from tests.launcher.backends.gcp.fake_vm import make_request
from workload.contract.errors import ExitCode, ToolError
from workload.contract.record import Status
from workload.contract.spec import Device, RunSpec
from workload.storage.inventory import upload


def run_of(number: int, batch_size: int = 4, *, block: int = 1) -> TaskRun:
    return TaskRun(spec=RunSpec(device=Device.CPU, batch_size=batch_size), block=block, run_key=f"key-{number}")


def test_a_sweeps_task_is_worked_through(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
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
    result = machine.work()
    assert (result.exit_code, result.timed_out) == (ExitCode.RUN_FAILED, False)
    assert (result.error, result.hint) == ("2 of 5 runs are missing: the loss is nan", "a lower rate")
    assert sorted(machine.bucket.complete) == ["run-1", "run-2", "run-5"]
    told = capsys.readouterr().out.splitlines()
    assert [line for line in told if line.startswith("run ")] == [
        "run 1 of 5: failed: the loss is nan",
        "run 2 of 5: out of memory: the trainer ended with exit code 7",
        "run 3 of 5: skipped: batch 8 of the same configuration ran out of memory",
        "run 4 of 5: failed: no such data",
        "run 5 of 5: completed",
    ]
    [first, *_] = [context_of(made.arguments) for made in machine.docker.containers.created]
    assert (first["job"], first["run_key"]) == ({"name": "night", "task": 1, "block": 1, "position": 1}, "key-1")
    billed = [machine.bucket.record(name)["cost"]["billed_s"] for name in ("run-1", "run-2", "run-5")]
    assert billed == [160.0, 100.0, 100.0]


def test_of_a_sweep_out_of_memory_and_what_is_in_the_store_are_no_failures(machine: Machine) -> None:
    machine.sweeps(run_of(1), run_of(2, 8), run_of(3, 2))
    for number, status in ((1, "completed"), (3, "failed")):
        upload(machine.bucket, make(machine.home / "earlier", number, status=status, run_key=f"key-{number}"))
    machine.trains_in_turn(
        [ExitCode.OUT_OF_MEMORY, *machine.run_of("run-2", status=Status.OUT_OF_MEMORY, run_key="key-2")],
        machine.run_of("run-3", run_key="key-3"),
    )
    machine.bucket.lists = 0
    result = machine.work()
    assert (result.exit_code, result.error, result.runs) == (0, "", ["run-2", "run-3"])
    assert len(machine.docker.containers.created) == 2
    assert machine.bucket.lists == 1, "the store is asked once"


def test_a_run_whose_bundle_is_damaged_in_the_store_is_measured_again(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.sweeps(run_of(1), run_of(2))
    earlier = [make(machine.home / "earlier", number, run_key=f"key-{number}").name for number in (1, 2)]
    for name in earlier:
        upload(machine.bucket, machine.home / "earlier" / name)
    steps = f"runs/{earlier[1]}/steps.csv"
    machine.bucket.held[steps] = machine.bucket.held[steps].replace(b"0", b"1", 1)
    machine.trains(*machine.run_of("run-2", run_key="key-2"))
    result = machine.work()
    assert (result.exit_code, result.runs) == (0, ["run-2"])
    why = "steps.csv was changed after the run: its crc32c differs"
    assert f"'{earlier[1]}' in {machine.bucket} is damaged: {why}; it runs again\n" in capsys.readouterr().out


def test_a_bundle_with_the_labels_of_another_run_does_not_replace_the_run(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.sweeps(run_of(1))
    earlier = make(machine.home / "earlier", spec__model="vgg16", run_key="key-9").name
    upload(machine.bucket, machine.home / "earlier" / earlier)
    labels = machine.bucket.labels[f"runs/{earlier}/MANIFEST.json"]
    labels["run_key"] = "key-1"
    machine.trains(*machine.run_of("run-1", run_key="key-1"))
    assert machine.work().runs == ["run-1"]
    why = "its label run_key is 'key-1', and run.json says 'key-9'"
    assert f"'{earlier}' in {machine.bucket} is damaged: {why}; it runs again\n" in capsys.readouterr().out


def test_a_run_that_does_not_fit_before_the_end_is_not_started(machine: Machine) -> None:
    machine.sweeps(run_of(1), run_of(2), run_of(3))
    machine.host.deleted = machine.now_s + MARGIN_S + 250
    machine.trains_in_turn(machine.run_of("run-1", run_key="key-1"), machine.run_of("run-2", run_key="key-2"))
    result = machine.work()
    assert (result.exit_code, result.timed_out, result.runs) == (ExitCode.RUN_FAILED, True, ["run-1", "run-2"])
    missing = "1 of 3 runs are missing: the launch reached its time limit of 3600 s"
    assert (result.error, result.hint) == (missing, "a longer --max-run-time")
    assert [machine.bucket.record(name)["status"] for name in result.runs] == ["completed"] * 2


def test_a_preemption_ends_the_task_and_only_the_run_under_way_was_preempted(machine: Machine) -> None:
    machine.sweeps(run_of(1), run_of(2), run_of(3))
    failed = [ExitCode.RUN_FAILED, *machine.run_of("run-1", status=Status.FAILED, run_key="key-1")]
    run = machine.run_of("run-2", status=Status.INTERRUPTED, run_key="key-2")
    signals = until(lambda: "SIGTERM" in machine.docker.containers.created[1].signals)
    machine.trains_in_turn(failed, [ExitCode.INTERRUPTED, *run[:2], machine.host.taken.set, signals, run[2]])
    result = machine.work()
    assert (result.exit_code, result.preempted, result.error) == (ExitCode.RUN_FAILED, True, PREEMPTED)
    assert [machine.bucket.record(name)["status"] for name in ("run-1", "run-2")] == ["failed", "preempted"]
    assert len(machine.docker.containers.created) == 2


def test_a_second_start_of_a_sweep_goes_on_with_what_is_missing(machine: Machine) -> None:
    machine.sweeps(run_of(1), run_of(2), run_of(3))
    second = machine.run_of("run-2", run_key="key-2")
    machine.trains_in_turn(
        machine.run_of("run-1", run_key="key-1"),
        [*second[:2], until(lambda: machine.bucket.complete == ["run-1"]), crash],
    )
    with pytest.raises(Crash):
        machine.work()
    machine.stop = Stop()
    machine.trains_in_turn(machine.run_of("run-2b", run_key="key-2"), machine.run_of("run-3", run_key="key-3"))
    result = machine.work()
    assert (result.exit_code, result.error) == (0, "")
    assert result.runs == ["run-1", "run-2", "run-2b", "run-3"]
    statuses = [machine.bucket.record(name)["status"] for name in result.runs]
    assert statuses == ["completed", "failed", "completed", "completed"]
    billed = sum(machine.bucket.record(name)["cost"]["billed_s"] for name in result.runs)
    assert billed == machine.now_s - BOOTED_S, "together the VM's time"


def test_a_run_that_breaks_the_machine_off_twice_is_given_up(machine: Machine) -> None:
    machine.sweeps(run_of(1), run_of(2))
    for _ in range(2):
        machine.trains_in_turn([*machine.run_of(f"run-1{_}", run_key="key-1")[:2], crash])
        with pytest.raises(Crash):
            machine.work()
        machine.stop = Stop()
    machine.trains_in_turn(machine.run_of("run-2", run_key="key-2"))
    result = machine.work()
    missing = "1 of 2 runs are missing: the run was interrupted 2 times"
    assert (result.exit_code, result.error) == (ExitCode.RUN_FAILED, missing)
    assert result.runs == ["run-10", "run-11", "run-2"]


def test_a_bundle_that_was_made_for_a_trainer_that_made_none_is_sent(machine: Machine) -> None:
    machine.docker.containers.exit_code, machine.docker.containers.out_of_memory = 137, True
    result = machine.work()
    assert (result.exit_code, result.error) == (ExitCode.OUT_OF_MEMORY, "the run was killed because memory ran out")
    assert machine.bucket.record(result.runs[0])["status"] == "out_of_memory"


REQUEST = make_request("rooflaunch-tower-20261121-100000-0000aa", "", {})


def test_a_machine_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / host_facts.REQUEST).write_bytes(REQUEST.to_bytes())
    nobody = host_facts_of(tmp_path)
    assert isinstance(nobody, OwnMachine)
    assert (nobody.zone, nobody.request()) == ("", REQUEST.to_bytes())
    assert nobody.is_preempted() is False
    assert nobody.comes_back() is False
    assert nobody.await_preemption(lambda _: False) is False
    assert nobody.facts(REQUEST) == {}
    nobody.report("heartbeat", "now")


def test_a_machine_without_a_request(tmp_path: Path) -> None:
    with pytest.raises(ToolError) as caught:
        host_facts_of(tmp_path).request()
    assert str(caught.value) == f"no request in '{tmp_path}': No such file or directory"
    assert caught.value.hint == "launch again"


def test_a_cloud_travels_with_the_launch(tmp_path: Path) -> None:
    (tmp_path / host_facts.FILE).write_text("def this_machine():\n    return 'the host'\n")
    assert str(host_facts_of(tmp_path)) == "the host"

"""The agent from the request to the result, and as a program."""

import json
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agent_machine import BOOTED_S, CPU, NAME, ZONE, Machine, context_of, until

from launcher import docker_engine
from launcher.agent import __main__ as program
from launcher.agent import agent as agent_module
from launcher.agent import home as home_files
from launcher.agent.home import OwnMachine, host_facts_of
from launcher.images import contents
from launcher.machine import runtime
from launcher.protocol import records
from launcher.protocol.records import LaunchPhase
from tests.launcher.backends.gcp.fake_vm import make_request
from tests.launcher.told import Golden
from workload.contract import bundle
from workload.contract.errors import BundleError, ExitCode, ToolError


def test_a_run_from_request_to_result(golden: Golden, machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.host.created = BOOTED_S - 20
    machine.host.own_facts = {"zone": ZONE, "physical_host": "/block/sub/host-7"}
    beside = {"disk_usd_per_h": 0.02, "address_usd_per_h": 0.01}
    region, price = next(iter(machine.request.prices.items()))
    machine.request = replace(machine.request, prices={region: {**price, **beside}})
    machine.trains(*machine.run_of("run-1"))
    result, told = machine.work(), capsys.readouterr()
    [trainer] = machine.docker.containers.created
    record, context = machine.bucket.record("run-1"), context_of(trainer.arguments)
    cloud = record["environment"]["cloud"]
    # From the insert, 20 s before the boot, to the result: 180 s of 0.36 + 0.02 + 0.01 USD per hour.
    shown = {
        "result": json.loads(result.to_bytes()),
        "cost": record["cost"],
        "preempted": cloud["preempted"],
        "phases": cloud["phases"],
        "context": {name: context[name] for name in ("backend", "runtime", "place", "spec_origin", "outside")},
        "trainer": {name: trainer.arguments[name] for name in ("network_mode", "cap_add", "environment")},
        "reported": {name: at for name, at in machine.host.reported.items() if name != "heartbeat"},
        "last heartbeat": {name: getattr(machine.bucket.beats[-1], name) for name in ("zone", "runs", "last_line")},
    }
    golden("a_run.json", json.dumps(shown, indent=1) + "\n")
    assert machine.bucket.complete == ["run-1"]
    assert "rooflaunch: phase run_started 2026-11-21T10:01:00.000Z\n" in told.out
    assert "warmup     1/3 steps\n" in told.err


def test_a_repeat_is_sent_while_the_next_one_sets_up(machine: Machine) -> None:
    first, second = machine.run_of("run-1"), machine.run_of("run-2")
    machine.request = machine.asked({**CPU, "repeats": "2"})
    machine.trains_in_turn(first, [*second[:2], until(lambda: machine.bucket.complete == ["run-1"]), second[2]])
    assert machine.work().runs == ["run-1", "run-2"]
    contexts = [context_of(made.arguments) for made in machine.docker.containers.created]
    assert [(context.get("repeat"), context["repeats"], context.get("job")) for context in contexts] == [
        (None, 2, None),
        (2, 2, None),
    ]
    lines = [beat.last_line for beat in machine.bucket.beats]
    assert lines[-1] == "run 2 of 2: warmup     1/3 steps"
    costs = [machine.bucket.record(name)["cost"]["billed_s"] for name in ("run-1", "run-2")]
    assert costs == [160.0, 100.0], "together the VM's time"


@pytest.mark.parametrize(("kind", "privileged"), [("ncu", True), ("torch", False)])
def test_the_profiled_repeat_is_sent_with_its_profile(kind: str, privileged: bool, machine: Machine) -> None:
    machine.request = machine.asked({**CPU, "profile": kind, "repeats": "2"})
    parameters = machine.home / "host/proc/driver/nvidia/params"
    parameters.parent.mkdir(parents=True)
    parameters.write_text("RmProfilingAdminOnly: 1\n")

    def profile() -> None:
        assert machine.bucket.complete == [], "sent now it would lack the profile"
        machine.now_s += 40
        folder = machine.home / "results/run-1"
        (folder / "ncu").mkdir()
        (folder / "ncu/kernels.csv").write_text("ID\n")
        bundle.write_document(folder, json.loads((folder / bundle.RECORD).read_text()))
        bundle.seal(folder)

    machine.trains_in_turn(machine.run_of("run-1"), [profile], machine.run_of("run-2"))
    result = machine.work()
    assert (result.exit_code, result.runs) == (0, ["run-1", "run-2"])
    assert list(result.phases)[2:] == ["run_started", "run_ended", "uploaded", "finished"], "of both runs"
    assert "runs/run-1/ncu/kernels.csv" in machine.bucket.held
    costs = [machine.bucket.record(name)["cost"]["billed_s"] for name in result.runs]
    assert costs == [60 + 100 + 40, 100]
    timing, second, last = (each.arguments for each in machine.docker.containers.created)
    assert timing["cap_add"] == last["cap_add"] == []
    assert ("SYS_ADMIN" in second["cap_add"]) is privileged
    assert second["network_mode"] == "none"


def test_a_run_by_itself_has_phases_for_its_profile(machine: Machine) -> None:
    machine.request = machine.asked({**CPU, "profile": "torch"})
    machine.trains_in_turn(machine.run_of("run-1"), [lambda: None])
    assert list(machine.work().phases)[2:] == [phase.value for phase in list(LaunchPhase)[5:]]


@pytest.mark.parametrize(("gpus", "index"), [(True, None), (True, 1), (False, None)])
def test_a_gpu_is_given_to_the_trainer_alone(
    gpus: bool, index: int | None, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docker_engine, "connect", lambda: machine.docker.engine(gpus=gpus))
    monkeypatch.setattr(runtime, "gpu_capability", lambda _: None)  # the agent's container has no nvidia-smi
    asked = machine.asked({"device": "cuda"})
    machine.request = replace(asked, options={**asked.options, **({"gpu_index": index} if index else {})})
    machine.trains(*machine.run_of("run-1"))
    result = machine.work()
    if not gpus:
        assert (result.exit_code, result.error) == (4, "the Docker engine cannot give containers access to the GPU")
        return
    assert result.exit_code == 0
    [trainer] = machine.docker.containers.created
    [request] = trainer.arguments["device_requests"]
    assert (request["Capabilities"], request["DeviceIDs"] or []) == ([["gpu"]], ["1"] if index else [])
    told = context_of(trainer.arguments)["outside"].get("device")
    assert told == ({"gpu_index": 1} if index else None)


def test_a_data_set_is_downloaded_into_the_vms_own_folder(machine: Machine) -> None:
    machine.request = machine.asked({**CPU, "dataset": "imagenette", "download": True, "data_dir": "~/mine"})
    machine.trains(*machine.run_of("run-1"))
    assert machine.work().exit_code == 0
    [trainer] = machine.docker.containers.created
    assert [mount["Source"] for mount in trainer.arguments["mounts"]] == [
        str(machine.home / "results"),
        str(machine.home / "data"),
    ]
    assert trainer.arguments["network_mode"] == "bridge"


def test_a_bug_of_ours_is_a_result_too(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(agent_module, "choose", lambda *_, **__: {}["nothing"])
    result = machine.work()
    assert (result.exit_code, result.error) == (ExitCode.BUG, "KeyError: 'nothing'")
    assert result.hint == "startup.log has the traceback: launch logs RUN"
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("there", [True, False])
def test_main_reads_its_request_and_does_nothing_twice(
    there: bool, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "host_facts_of", lambda _: machine.host)
    machine.host.asked = machine.request.to_bytes()
    machine.host.deleted = time.time() + 3600
    connected: list[Any] = []
    monkeypatch.setattr(
        program, "open_store", lambda *words, **named: connected.append((words, named)) or machine.bucket
    )
    if there:
        machine.bucket.held[records.result_object(NAME)] = b"{}"
    machine.trains(*machine.run_of("run-1"))
    assert program.main([str(machine.home)]) == 0
    assert (machine.bucket.complete == ["run-1"]) is not there
    [(words, named)] = connected
    assert (words, named["probe"]) == ((machine.request.store,), f"launches/{NAME}/")


def test_main_without_a_readable_request(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(program, "host_facts_of", lambda _: machine.host)
    machine.host.asked = b"{"
    assert program.main([str(machine.home)]) == BundleError.exit_code
    assert capsys.readouterr().err.startswith("error: not a readable request of a launch: ")


LISTED = """
import sys
import launcher.agent.__main__, launcher.agent.further
print(*sorted(sys.modules))
"""


@pytest.mark.world
def test_the_files_in_the_image_are_all_that_a_vm_needs(tmp_path: Path) -> None:
    for name, content in contents.agent_code().items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    done = subprocess.run(
        [sys.executable, "-c", LISTED],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    ours = {re.sub(r"(/__init__)?\.py$", "", name).replace("/", ".") for name in contents.AGENT_FILES}
    assert {name for name in loaded if name.startswith("launcher")} == ours, "no file more either"
    assert not {name for name in loaded if name.split(".")[0] in ("torch", "google", "docker")}
    assert "workload.storage.inventory" in loaded


# Who lets the machine: nobody, or what a launch brings with it as guest.py

REQUEST = make_request("rooflaunch-tower-20261121-100000-0000aa", "", {})


def test_a_machine_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / home_files.REQUEST).write_bytes(REQUEST.to_bytes())
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
    (tmp_path / home_files.FILE).write_text("def this_machine():\n    return 'the host'\n")
    assert str(host_facts_of(tmp_path)) == "the host"

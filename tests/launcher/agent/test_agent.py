import base64
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import docker.errors as docker_errors
import pytest
from fake_docker import FakeDocker

from launcher import images
from launcher.agent import __main__ as program
from launcher.agent import agent as agent_module
from launcher.agent import home as home_files
from launcher.agent.agent import MARGIN_S, Agent
from launcher.agent.stop import Stop, Why
from launcher.jobs import records
from launcher.jobs.records import Heartbeat, LaunchPhase, Request, Result
from launcher.machine import containers, runtime
from launcher.machine import engine as docker_engine
from tests.launcher.backends.gcp.fake_vm import make_request
from workload.contract import bundle
from workload.contract.bundle import Status
from workload.contract.environment_record import CloudFacts, Environment
from workload.contract.errors import BundleError, ExitCode, ToolError
from workload.contract.record import Record, Spec
from workload.contract.spec import Device, RunSpec
from workload.contract.task import Task, TaskRun
from workload.storage.store import Patience, StoredObject

NAME = "rooflaunch-t4-20261121-100000-0000aa"
IMAGE = "us-central1-docker.pkg.dev/p/rooflaunch/trainer@sha256:" + "ab" * 32
ZONE = "us-central1-a"
BOOTED_S = 1_795_255_200.0  # 2026-11-21T10:00:00Z
LONG_S = 10.0
CPU = {"device": "cpu"}


class StubBucket:
    """A bucket in memory. `broken`: how often an upload fails yet; `silent`: no status can be written."""

    def __init__(self) -> None:
        self.name, self.kind = "b", "bucket"
        self.labels: dict[str, Any] = {}
        self.lists = 0
        self.held: dict[str, bytes] = {}
        self.broken = 0
        self.silent = False
        self.no_result = False
        self.beats: list[Heartbeat] = []

    def objects(self, prefix: str) -> Any:
        self.lists += prefix == records.RUNS
        for name, content in sorted(self.held.items()):
            if name.startswith(prefix):
                crc = base64.b64encode(bundle.crc32c(content).to_bytes(4, "big")).decode()
                labels = self.labels.get(name, {})
                yield StoredObject(name=name, bytes=len(content), crc32c=crc, version="1", metadata=labels)

    def read(self, name: str) -> bytes | None:
        return self.held.get(name)

    def with_patience(self, _: Patience) -> "StubBucket":
        return self

    def write(self, name: str, content: bytes, *, if_absent: bool = False) -> bool:
        refused = {records.status_object(NAME): self.silent, records.result_object(NAME): self.no_result}
        if refused.get(name):
            raise ToolError("no answer", hint="wait")
        if if_absent and name in self.held:
            return False
        self.held[name] = content
        if name == records.status_object(NAME):
            self.beats.append(Heartbeat.from_bytes(content))
        return True

    def upload(self, name: str, path: Path, *, crc32c: str, replaces: str = "", metadata: object = None) -> bool:
        assert crc32c
        assert not replaces
        assert bool(metadata) is name.endswith(bundle.MANIFEST)
        if self.broken:
            self.broken -= 1
            raise ToolError("the bucket does not answer", hint="wait")
        self.held[name], self.labels[name] = path.read_bytes(), metadata or {}
        return True

    @property
    def complete(self) -> list[str]:
        """The runs that have their manifest."""
        return [name.split("/")[1] for name in self.held if name.endswith("/" + bundle.MANIFEST)]

    def record(self, run_id: str) -> dict[str, Any]:
        return dict(json.loads(self.held[f"runs/{run_id}/{bundle.RECORD}"]))


class StubLandlord:
    """A cloud in memory; `taken` is set when the machine is taken away, and where it is `dumb` nothing is reported."""

    zone = ZONE

    def __init__(self) -> None:
        self.taken = threading.Event()
        self.reported: dict[str, str] = {}
        self.created: float | None = None
        self.deleted: float | None = None
        self.own_facts: dict[str, Any] = {}
        self.asked = b""
        self.dumb = False
        self.is_back_later = False

    def request(self) -> bytes:
        return self.asked

    def report(self, name: str, value: str) -> None:
        if self.dumb:
            raise ToolError("guest attributes are switched off", hint="none")
        self.reported[str(name)] = value

    def created_s(self) -> float | None:
        return self.created

    def deleted_s(self) -> float | None:
        return self.deleted

    def is_preempted(self) -> bool:
        return self.taken.is_set()

    def await_preemption(self, is_over: Callable[[float], bool]) -> bool:
        while not self.taken.wait(0.01):
            if is_over(0):
                return False
        return True

    def comes_back(self) -> bool:
        return self.is_back_later

    def facts(self, request: Request) -> dict[str, Any]:
        return {"spot": request.spot, **self.own_facts}


class Machine:
    """A VM whose agent can be started, with the engine, bucket and metadata server that it meets."""

    def __init__(self, home: Path, docker: FakeDocker) -> None:
        self.home, self.docker = home, docker
        self.bucket, self.landlord = StubBucket(), StubLandlord()
        self.now_s = BOOTED_S + 60
        self.stop = Stop(press_every_s=0.02, seal_s=0.1)
        self.request = self.asked(CPU)
        (home / home_files.BOOT_PHASES).write_text(
            "booted 2026-11-21T10:00:00.000Z\nimage_pulled 2026-11-21T10:00:50.000Z\n"
        )

    def asked(self, spec: dict[str, object], **changes: Any) -> Request:
        return make_request(NAME, IMAGE, spec, **changes)

    def trains(self, *pieces: Any) -> None:
        self.docker.containers.pieces = pieces

    def trains_in_turn(self, *containers: list[Any]) -> None:
        """One container after the other, a run in each; one that is `[code, *pieces]` ends with that exit code."""
        [first, *rest] = containers
        code = first.pop(0) if first and isinstance(first[0], int) else ExitCode.DONE
        self.docker.containers.exit_code = code
        self.trains(*first, *([lambda: self.trains_in_turn(*rest)] if rest else []))

    def sweeps(self, *runs: TaskRun, **changes: Any) -> None:
        """Ask for these runs of a sweep."""
        self.request = self.asked(CPU, **changes)
        task = Task(job="night", number=1, runs=runs)
        self.request = replace(self.request, task=task.to_json(RunSpec.from_json(self.request.spec)))

    def run_of(
        self, name: str, *, sealed: bool = True, status: Status = Status.COMPLETED, run_key: str | None = None
    ) -> list[Any]:
        """What a trainer does for one run: makes its bundle, says where, and completes it."""
        folder = self.home / "results" / name

        def begin() -> None:
            bundle.create(folder.parent, name)
            spec, environment = Spec(model="resnet18", batch_size=4), Environment(cloud=CloudFacts(zone=ZONE))
            record = Record(run_id=name, status=Status.RUNNING, spec=spec, environment=environment)
            bundle.write_record(folder, replace(record, run_key=run_key))
            (folder / bundle.STEPS).write_text("step,loss\n0,6.9\n")

        def end() -> None:
            self.now_s += 100
            if sealed:
                record = json.loads((folder / bundle.RECORD).read_text())
                bundle.write_document(folder, {**record, "status": status})
                bundle.seal(folder)

        return [begin, (f"{folder}\n".encode(), b"warmup     1/3 steps\n"), end]

    def agent(self) -> Agent:
        return Agent(
            self.request,
            self.landlord,
            self.bucket,
            self.home,
            root=self.home / "host",
            now=lambda: self.now_s,
            stop=self.stop,
        )

    def work(self) -> Result:
        result = self.agent().work()
        assert self.bucket.held[records.result_object(NAME)] == result.to_bytes()
        return result


@pytest.fixture
def machine(tmp_path: Path, docker: FakeDocker, monkeypatch: pytest.MonkeyPatch) -> Machine:
    docker.hold("sha256:ab", IMAGE)
    monkeypatch.setattr(docker_engine, "connect", docker.engine)
    outside = {"host": {"kernel": "6.1"}, "cloud": {"provider": "gce", "machine_type": "n1-standard-4"}}
    monkeypatch.setattr(agent_module, "outside_facts", lambda _: outside)
    for name in containers.FORWARDED:
        monkeypatch.delenv(name, raising=False)
    return Machine(tmp_path, docker)


def context_of(arguments: dict[str, Any]) -> dict[str, Any]:
    words = arguments["command"]
    return dict(json.loads(words[words.index("--context") + 1]))


def until(is_there: Callable[[], object]) -> Callable[[], None]:
    """A piece of a container's output that comes once something has happened elsewhere."""

    def wait() -> None:
        deadline_s = time.monotonic() + LONG_S
        while not is_there():
            assert time.monotonic() < deadline_s
            threading.Event().wait(0.005)

    return wait


def test_a_run_from_request_to_result(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.landlord.created = BOOTED_S - 20
    machine.landlord.own_facts = {"zone": ZONE, "physical_host": "/block/sub/host-7"}
    beside = {"disk_usd_per_h": 0.02, "address_usd_per_h": 0.01}
    region, price = next(iter(machine.request.prices.items()))
    machine.request = replace(machine.request, prices={region: {**price, **beside}})
    machine.trains(*machine.run_of("run-1"))
    result = machine.work()
    assert result == Result(
        exit_code=0,
        zone=ZONE,
        runs=["run-1"],
        phases={
            "booted": "2026-11-21T10:00:00.000Z",
            "image_pulled": "2026-11-21T10:00:50.000Z",
            "run_started": "2026-11-21T10:01:00.000Z",
            "run_ended": "2026-11-21T10:02:40.000Z",
            "uploaded": "2026-11-21T10:02:40.000Z",
            "finished": "2026-11-21T10:02:40.000Z",
        },
        ended_at="2026-11-21T10:02:40.000Z",
        # From the insert, 20 s before the boot, to the result: 180 s of 0.36 + 0.02 + 0.01 USD per hour.
        usd=pytest.approx(0.39 * 180 / 3600),  # type: ignore[arg-type]
        billed_from="2026-11-21T09:59:40.000Z",
    )
    assert machine.bucket.complete == ["run-1"]
    record = machine.bucket.record("run-1")
    assert record["cost"] == {
        "usd_per_h": 0.36,
        "disk_usd_per_h": 0.02,
        "address_usd_per_h": 0.01,
        "price_date": "2026-11-20",
        "price_source": "a test",
        "billed_from": "2026-11-21T09:59:40.000Z",
        "billed_to": "2026-11-21T10:02:40.000Z",
        "billed_s": 180.0,
        "usd": pytest.approx(0.0195),
    }
    assert record["environment"]["cloud"]["preempted"] is False
    assert record["environment"]["cloud"]["phases"]["run_ended"] == "2026-11-21T10:02:40.000Z"
    [trainer] = machine.docker.containers.created
    context = context_of(trainer.arguments)
    assert (context["backend"], context["runtime"], context["place"]) == ("gcp", "docker", f"gcp-t4-{ZONE}")
    assert context["spec_origin"] == {"device": "option"}
    assert context["outside"]["cloud"] == {
        "provider": "gce",
        "zone": ZONE,
        "machine_type": "n1-standard-4",
        "spot": True,
        "physical_host": "/block/sub/host-7",
    }
    assert trainer.arguments["network_mode"] == "none"
    assert trainer.arguments["cap_add"] == []
    assert trainer.arguments["environment"] == {"ROOFLAUNCH_LIFELINE": "stdin"}
    told = capsys.readouterr()
    assert "rooflaunch: phase run_started 2026-11-21T10:01:00.000Z\n" in told.out
    assert "warmup     1/3 steps\n" in told.err
    assert machine.landlord.reported["run_ended"] == "2026-11-21T10:02:40.000Z"
    last = machine.bucket.beats[-1]
    assert (last.runs, last.last_line, last.zone) == (["run-1"], "warmup     1/3 steps", ZONE)


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


@pytest.mark.parametrize(
    ("kind", "restricted", "privileged"), [("ncu", "1", True), ("ncu", "0", False), ("torch", "1", False)]
)
def test_the_profiled_repeat_is_sent_with_its_profile(
    kind: str, restricted: str, privileged: bool, machine: Machine
) -> None:
    machine.request = machine.asked({**CPU, "profile": kind, "repeats": "2"})
    parameters = machine.home / "host/proc/driver/nvidia/params"
    parameters.parent.mkdir(parents=True)
    parameters.write_text(f"RmProfilingAdminOnly: {restricted}\n")

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


@pytest.mark.parametrize("gpus", [True, False])
def test_a_gpu_is_given_to_the_trainer_alone(gpus: bool, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docker_engine, "connect", lambda: machine.docker.engine(gpus=gpus))
    monkeypatch.setattr(runtime, "gpu_capability", lambda: None)  # the agent's container has no nvidia-smi
    machine.request = machine.asked({"device": "cuda"})
    machine.trains(*machine.run_of("run-1"))
    result = machine.work()
    if gpus:
        [trainer] = machine.docker.containers.created
        assert trainer.arguments["device_requests"][0]["Capabilities"] == [["gpu"]]
        assert result.exit_code == 0
    else:
        assert (result.exit_code, result.error) == (4, "the Docker engine cannot give a container the GPU")


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


PREEMPTED = f"the spot VM was taken away (preempted) in {ZONE}"


@pytest.mark.parametrize("status", [Status.INTERRUPTED, Status.RUNNING], ids=["sealed in time", "killed"])
def test_a_preemption_ends_the_run_in_order(status: Status, machine: Machine) -> None:
    run = machine.run_of("run-1", sealed=status is Status.INTERRUPTED, status=status)
    wanted = "SIGTERM" if status is Status.INTERRUPTED else "SIGKILL"
    signals = until(lambda: wanted in machine.docker.containers.created[0].signals)
    machine.trains(*run[:2], machine.landlord.taken.set, signals, run[2])
    machine.docker.containers.exit_code = ExitCode.INTERRUPTED
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
    machine.landlord.is_back_later = comes_back
    run = machine.run_of("run-1", status=Status.INTERRUPTED)
    signals = until(lambda: "SIGTERM" in machine.docker.containers.created[0].signals)
    machine.trains(*run[:2], machine.landlord.taken.set, signals, run[2])
    machine.docker.containers.exit_code = ExitCode.INTERRUPTED
    machine.agent().work()
    assert machine.bucket.record("run-1")["status"] == "preempted"
    assert (records.result_object(machine.request.name) in machine.bucket.held) is not comes_back
    assert (machine.agent().home.ended() is None) is comes_back, "started again, it goes on"


def test_started_again_after_a_preemption_it_measures_once_more(machine: Machine) -> None:
    machine.landlord.is_back_later = True
    run = machine.run_of("run-1", status=Status.INTERRUPTED)
    signals = until(lambda: "SIGTERM" in machine.docker.containers.created[0].signals)
    machine.trains(*run[:2], machine.landlord.taken.set, signals, run[2])
    machine.docker.containers.exit_code = ExitCode.INTERRUPTED
    machine.agent().work()
    machine.landlord.taken.clear()
    machine.stop = Stop()
    machine.docker.containers.exit_code = ExitCode.DONE
    machine.trains(*machine.run_of("run-2"))
    result = machine.agent().work()
    assert (result.exit_code, result.runs) == (0, ["run-1", "run-2"])


def test_a_run_that_was_done_before_the_preemption_counts(machine: Machine) -> None:
    machine.trains(*machine.run_of("run-1"), machine.landlord.taken.set, until(lambda: machine.stop.why))
    result = machine.work()
    assert (result.exit_code, result.error, result.preempted) == (0, "", True)
    assert machine.bucket.record("run-1")["status"] == "completed"


# What the landlord says of the machine's creation and end, and seconds from the boot to the end that counts.
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
    machine.landlord.created, machine.landlord.deleted = created_s, deleted_s
    machine.now_s = BOOTED_S + after_s - MARGIN_S - 0.2
    assert machine.agent()._deadline_s() == BOOTED_S + after_s - MARGIN_S
    run = machine.run_of("run-1", status=Status.INTERRUPTED)
    machine.trains(*run[:2], until(lambda: "SIGTERM" in machine.docker.containers.created[0].signals), run[2])
    machine.docker.containers.exit_code = ExitCode.INTERRUPTED
    result = machine.work()
    assert (result.exit_code, result.preempted, result.timed_out) == (ExitCode.RUN_FAILED, False, True)
    assert result.error == "the launch came to its time limit of 1200 s"
    assert result.hint == "a longer --max-run-time, or fewer --iterations"
    assert machine.bucket.record("run-1")["status"] == "timed_out"


@pytest.mark.parametrize("taken", [True, False])
def test_a_signal_is_explained_by_a_preemption(taken: bool, machine: Machine) -> None:
    run = machine.run_of("run-1", status=Status.INTERRUPTED)

    def ask() -> None:
        machine.stop.ask(Why.ASKED)
        if taken:
            machine.landlord.taken.set()

    machine.trains(*run[:2], ask, run[2])
    machine.docker.containers.exit_code = ExitCode.INTERRUPTED
    result = machine.work()
    told = (result.exit_code, result.error, result.preempted, machine.bucket.record("run-1")["status"])
    expected = (ExitCode.INTERRUPTED, "the machine was told to stop", False, "interrupted")
    assert told == ((ExitCode.RUN_FAILED, PREEMPTED, True, "preempted") if taken else expected)


def test_the_first_reason_counts() -> None:
    stop = Stop(press_every_s=0.01)
    stop.ask(Why.TIMED_OUT)
    stop.ask(Why.PREEMPTED)
    stop.close()
    assert stop.why is Why.TIMED_OUT


@pytest.mark.parametrize(("failures", "code"), [(1, ExitCode.DONE), (99, ExitCode.TOOL)])
def test_an_upload_that_fails_is_tried_again_at_the_end(failures: int, code: ExitCode, machine: Machine) -> None:
    machine.bucket.broken = failures
    machine.request = machine.asked({**CPU, "repeats": "2"})
    first, second = machine.run_of("run-1"), machine.run_of("run-2")
    machine.trains_in_turn(first, [*second[:2], until(lambda: machine.bucket.broken != failures), second[2]])
    result = machine.work()
    assert result.exit_code == code
    assert result.runs == (["run-1", "run-2"] if code == ExitCode.DONE else [])
    assert result.error == ("" if code == ExitCode.DONE else "the bucket does not answer")
    assert (LaunchPhase.UPLOADED in result.phases) is (code == ExitCode.DONE)


def test_an_engine_that_goes_away_keeps_what_was_measured(machine: Machine) -> None:
    def go() -> None:
        raise docker_errors.APIError("gone", explanation="the engine is gone")

    machine.request = machine.asked({**CPU, "repeats": "2"})
    first, second = machine.run_of("run-1"), machine.run_of("run-2")
    machine.trains_in_turn(first, [*second[:2], go])
    result = machine.work()
    assert result.exit_code == ExitCode.TOOL
    assert result.error.startswith("the Docker engine went away while container fake_1 ran: ")
    assert result.runs == ["run-1", "run-2"]
    assert machine.bucket.record("run-1")["status"] == "completed"
    assert machine.bucket.record("run-2")["status"] == "failed"


def test_the_trainers_own_error_is_the_results(machine: Machine) -> None:
    machine.trains((None, b"error: unknown model 'resnet19'\nhint: did you mean resnet18?\n"))
    machine.docker.containers.exit_code = ExitCode.USAGE
    result = machine.work()
    assert (result.exit_code, result.error, result.hint) == (2, "unknown model 'resnet19'", "did you mean resnet18?")
    assert result.runs == []


def test_a_trainer_that_ends_without_a_word(machine: Machine) -> None:
    machine.docker.containers.exit_code = 6
    result = machine.work()
    assert (result.error, result.hint) == ("the trainer ended with exit code 6", "launch logs RUN")


def test_an_image_that_is_not_there(machine: Machine) -> None:
    machine.docker.held.clear()
    result = machine.work()
    assert (result.exit_code, result.error) == (ExitCode.TOOL, f"the engine holds no image '{IMAGE}'")


def test_a_bug_of_ours_is_a_result_too(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(agent_module, "choose", lambda *_, **__: {}["nothing"])
    result = machine.work()
    assert (result.exit_code, result.error) == (ExitCode.BUG, "KeyError: 'nothing'")
    assert result.hint == "startup.log has the traceback: launch logs RUN"
    assert "Traceback" in capsys.readouterr().err


def test_a_price_that_nobody_knows_is_none(machine: Machine) -> None:
    machine.request = machine.asked(CPU, prices={"europe-west4": {"usd_per_h": 1.0, "source": "s", "read": "r"}})
    machine.trains(*machine.run_of("run-1"))
    assert machine.work().usd is None
    cost = machine.bucket.record("run-1")["cost"]
    assert (cost["usd_per_h"], cost["usd"], cost["price_date"], cost["billed_s"]) == (None, None, None, 160.0)


def test_a_clock_that_was_set_back_and_half_a_line_leave_a_record_that_can_be_read(machine: Machine) -> None:
    (machine.home / home_files.BOOT_PHASES).write_text("booted 2026-11-21T12:00:00.000Z\nimage_pulled 2026-11-2")
    machine.trains(*machine.run_of("run-1"))
    result = machine.work()
    assert (result.usd, list(result.phases)[:2]) == (None, ["booted", "run_started"])
    assert Result.from_bytes(machine.bucket.held[records.result_object(NAME)]) == result


def test_nobody_hearing_the_heart_is_no_reason_to_end(machine: Machine) -> None:
    machine.bucket.silent = True
    machine.landlord.dumb = True
    machine.trains(*machine.run_of("run-1"))
    assert machine.work().exit_code == 0


def test_a_second_start_saves_what_the_first_has_left(machine: Machine) -> None:
    first, second = machine.run_of("run-1"), machine.run_of("run-2")
    machine.request = machine.asked({**CPU, "repeats": "2"})
    machine.trains_in_turn(first, [*second[:2], until(lambda: machine.bucket.complete == ["run-1"]), _crash])
    with pytest.raises(_Crash):
        machine.work()
    sent = dict(machine.bucket.held)
    assert machine.bucket.complete == ["run-1"]
    machine.now_s += 30
    machine.stop = Stop()
    result = machine.work()
    broken = "the machine broke off the run and started again"
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
        name = f"runs/earlier-{number}/{bundle.MANIFEST}"
        machine.bucket.held[name] = b"{}"
        machine.bucket.labels[name] = {"status": status, "run_key": f"key-{number}"}
    machine.trains_in_turn(
        [ExitCode.OUT_OF_MEMORY, *machine.run_of("run-2", status=Status.OUT_OF_MEMORY, run_key="key-2")],
        machine.run_of("run-3", run_key="key-3"),
    )
    result = machine.work()
    assert (result.exit_code, result.error, result.runs) == (0, "", ["run-2", "run-3"])
    assert machine.bucket.lists == 1, "the store is asked once"


def test_a_run_that_does_not_fit_before_the_end_is_not_started(machine: Machine) -> None:
    machine.sweeps(run_of(1), run_of(2), run_of(3))
    machine.landlord.deleted = machine.now_s + MARGIN_S + 250
    machine.trains_in_turn(machine.run_of("run-1", run_key="key-1"), machine.run_of("run-2", run_key="key-2"))
    result = machine.work()
    assert (result.exit_code, result.timed_out, result.runs) == (ExitCode.RUN_FAILED, True, ["run-1", "run-2"])
    missing = "1 of 3 runs are missing: the launch came to its time limit of 3600 s"
    assert (result.error, result.hint) == (missing, "a longer --max-run-time")
    assert [machine.bucket.record(name)["status"] for name in result.runs] == ["completed"] * 2


def test_a_preemption_ends_the_task_and_only_the_run_under_way_was_preempted(machine: Machine) -> None:
    machine.sweeps(run_of(1), run_of(2), run_of(3))
    failed = [ExitCode.RUN_FAILED, *machine.run_of("run-1", status=Status.FAILED, run_key="key-1")]
    run = machine.run_of("run-2", status=Status.INTERRUPTED, run_key="key-2")
    signals = until(lambda: "SIGTERM" in machine.docker.containers.created[1].signals)
    machine.trains_in_turn(failed, [ExitCode.INTERRUPTED, *run[:2], machine.landlord.taken.set, signals, run[2]])
    result = machine.work()
    assert (result.exit_code, result.preempted, result.error) == (ExitCode.RUN_FAILED, True, PREEMPTED)
    assert [machine.bucket.record(name)["status"] for name in ("run-1", "run-2")] == ["failed", "preempted"]
    assert len(machine.docker.containers.created) == 2


def test_a_second_start_of_a_sweep_goes_on_with_what_is_missing(machine: Machine) -> None:
    machine.sweeps(run_of(1), run_of(2), run_of(3))
    second = machine.run_of("run-2", run_key="key-2")
    machine.trains_in_turn(
        machine.run_of("run-1", run_key="key-1"),
        [*second[:2], until(lambda: machine.bucket.complete == ["run-1"]), _crash],
    )
    with pytest.raises(_Crash):
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
        machine.trains_in_turn([*machine.run_of(f"run-1{_}", run_key="key-1")[:2], _crash])
        with pytest.raises(_Crash):
            machine.work()
        machine.stop = Stop()
    machine.trains_in_turn(machine.run_of("run-2", run_key="key-2"))
    result = machine.work()
    missing = "1 of 2 runs are missing: it was broken off 2 times here"
    assert (result.exit_code, result.error) == (ExitCode.RUN_FAILED, missing)
    assert result.runs == ["run-10", "run-11", "run-2"]


def test_a_bundle_that_was_made_for_a_trainer_that_made_none_is_sent(machine: Machine) -> None:
    machine.docker.containers.exit_code, machine.docker.containers.out_of_memory = 137, True
    result = machine.work()
    assert (result.exit_code, result.error) == (ExitCode.OUT_OF_MEMORY, "the run was killed for want of memory")
    assert machine.bucket.record(result.runs[0])["status"] == "out_of_memory"


class _Crash(BaseException):
    """What no handler of ours sees, like SIGKILL."""


def _crash() -> None:
    raise _Crash


@pytest.mark.parametrize("there", [True, False])
def test_main_reads_its_request_and_does_nothing_twice(
    there: bool, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "landlord_of", lambda _: machine.landlord)
    machine.landlord.asked = machine.request.to_bytes()
    machine.landlord.deleted = time.time() + 3600
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
    monkeypatch.setattr(program, "landlord_of", lambda _: machine.landlord)
    machine.landlord.asked = b"{"
    assert program.main([str(machine.home)]) == BundleError.exit_code
    assert capsys.readouterr().err.startswith("error: no readable request of a launch: ")


LISTED = """
import sys
import launcher.agent.__main__
print(*sorted(sys.modules))
"""


@pytest.mark.world
def test_the_files_in_the_image_are_all_that_a_vm_needs(tmp_path: Path) -> None:
    for name, content in images.agent_code().items():
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
    ours = {re.sub(r"(/__init__)?\.py$", "", name).replace("/", ".") for name in images.AGENT_FILES}
    assert {name for name in loaded if name.startswith("launcher")} == ours, "no file more either"
    assert not {name for name in loaded if name.split(".")[0] in ("torch", "google", "docker")}
    assert "workload.storage.upload" in loaded

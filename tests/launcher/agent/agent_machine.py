"""The machine that an agent runs on, in memory: its bucket, its host and its engine."""

import base64
import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from fake_docker import FakeDocker

from launcher.agent import home as home_files
from launcher.agent.agent import Agent
from launcher.agent.lease import Stop
from launcher.protocol import records
from launcher.protocol.records import Heartbeat, Request, Result, Task, TaskRun
from tests.launcher.backends.gcp.fake_vm import make_request
from workload.contract import bundle
from workload.contract.errors import ExitCode, ToolError
from workload.contract.record import Record, Spec, Status
from workload.contract.record_sections import CloudFacts, Environment
from workload.contract.spec import RunSpec
from workload.storage.store import Patience, StoredObject

NAME = "rooflaunch-t4-20261121-100000-0000aa"
IMAGE = "us-central1-docker.pkg.dev/p/rooflaunch/trainer@sha256:" + "ab" * 32
ZONE = "us-central1-a"
BOOTED_S = 1_795_255_200.0  # 2026-11-21T10:00:00Z
LONG_S = 100.0
CPU = {"device": "cpu"}
PREEMPTED = f"the spot VM was taken away (preempted) in {ZONE}"


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

    def read(self, name: str, *, most_bytes: int = 0) -> bytes | None:
        del most_bytes
        return self.held.get(name)

    def locate(self, name: str) -> str:
        return f"gs://{self.name}/{name}"

    def removal(self, name: str) -> str:
        return f"gcloud storage rm {self.locate(name)}"

    def with_patience(self, _: Patience) -> "StubBucket":
        return self

    def write(self, name: str, content: bytes, *, if_absent: bool = False, is_private: bool = False) -> bool:
        del is_private
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


class StubHost:
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

    def await_preemption(self, wait: Callable[[float], bool]) -> bool:
        while not self.taken.wait(0.01):
            if wait(0):
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
        self.bucket, self.host = StubBucket(), StubHost()
        self.now_s = BOOTED_S + 60
        self.is_lost = False
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

    def trains_until_stopped(self, stop: Callable[[], object], *, signal: str = "SIGTERM", **changes: Any) -> None:
        """A run that is interrupted by `stop`: its trainer ends once it got the signal."""
        run = self.run_of("run-1", **{"status": Status.INTERRUPTED, **changes})
        signals = until(lambda: signal in self.docker.containers.created[0].signals)
        self.trains(*run[:2], stop, signals, run[2])
        self.docker.containers.exit_code = ExitCode.INTERRUPTED

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
            self.host,
            self.bucket,
            self.home,
            root=self.home / "host",
            now=lambda: self.now_s,
            stop=self.stop,
            is_lost=lambda: self.is_lost,
        )

    def work(self) -> Result:
        result = self.agent().work()
        assert self.bucket.held[records.result_object(NAME)] == result.to_bytes()
        return result


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


class Crash(BaseException):
    """What no handler of ours sees, like SIGKILL."""


def crash() -> None:
    raise Crash

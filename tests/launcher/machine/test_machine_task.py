import json
from collections.abc import Callable
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest
from fake_docker import FakeDocker

from launcher.machine import containers, local
from launcher.machine.containers import ContainerLimits
from launcher.machine.local import LocalPlan
from launcher.machine.runtime import Choice
from launcher.machine.task import Outcome, work_through
from launcher.protocol.records import Task, TaskRun
from launcher.values import Runtime
from tests.launcher.told import Golden
from workload.contract import bundle
from workload.contract.errors import ExitCode, ToolError
from workload.contract.record import CeilingsRecord, Record, Settling, Spec, Status
from workload.contract.spec import Profile, Resolved, RunSpec
from workload.contract.trainer import Context

CODES = {
    Status.COMPLETED: ExitCode.DONE,
    Status.FAILED: ExitCode.RUN_FAILED,
    Status.OUT_OF_MEMORY: ExitCode.OUT_OF_MEMORY,
    Status.INTERRUPTED: ExitCode.INTERRUPTED,
}


class Machine:
    """This machine with an engine whose containers end as `ends` says, by model and batch size, each after 10 s."""

    def __init__(self, docker: FakeDocker, folder: Path) -> None:
        docker.hold("sha256:ab", "rooflaunch:cpu")
        self.docker, self.folder = docker, folder
        engine = docker.engine()
        self.choice = Choice(runtime=Runtime.DOCKER, why="t", engine=engine, image=engine.image("sha256:ab"))
        self.ends: dict[tuple[str, int | None], Status] = {}
        self.seconds: dict[str, float] = {}
        self.now_s = 0.0
        self.with_ceilings = True
        self.contexts: list[Context] = []
        self.during: Callable[[], None] = lambda: None

    def plan(self, spec: RunSpec, context: Context) -> LocalPlan:
        self.contexts.append(context)
        status = self.ends.get((spec.model, spec.batch_size), Status.COMPLETED)
        name = f"run-{len(self.contexts)}"

        def train() -> None:
            path = bundle.create(self.folder, name)
            spec_made = Spec(model=spec.model, batch_size=spec.batch_size or 32)
            record = Record(run_id=name, status=status, error=_error(status), spec=spec_made)
            measures = self.with_ceilings and status is Status.COMPLETED
            settling = Settling(target_c=41.0 + len(self.contexts)) if context.settles else None
            ceilings = CeilingsRecord(age_s=0) if measures else None
            bundle.write_record(path, replace(record, settling=settling, ceilings=ceilings))
            bundle.seal(path)
            self.now_s += self.seconds.get(spec.model, 10.0)
            self.docker.containers.pieces = ()
            self.during()

        self.docker.containers.pieces = [train, (f"{self.folder}/{name}\n".encode(), None)]
        self.docker.containers.exit_code = CODES[status]
        resolved = Resolved(spec=spec, origin={})
        return local.make_plan(resolved, self.choice, output=self.folder, limits=ContainerLimits(), context=context)

    def work(self, task: Task, **options: Any) -> list[Outcome]:
        return list(work_through(task, self.plan, now_s=lambda: self.now_s, **options))


def _error(status: Status) -> str | None:
    return None if status is Status.COMPLETED else f"it is {status}"


@pytest.fixture
def machine(docker: FakeDocker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    for name in containers.FORWARDED:
        monkeypatch.delenv(name, raising=False)
    return Machine(docker, tmp_path)


def run_of(model: str, batch_size: int | None = 32, *, block: int = 1, position: int = 1) -> TaskRun:
    key = f"{model}-{batch_size}-{block}"
    return TaskRun(spec=RunSpec(model=model, batch_size=batch_size), block=block, position=position, run_key=key)


def sweep(*runs: TaskRun) -> Task:
    return Task(job="night", number=2, runs=runs)


def shown(outcomes: list[Outcome]) -> list[tuple[str, str]]:
    return [(outcome.end.value, outcome.why) for outcome in outcomes]


def test_one_device_gets_the_share_of_the_cpus_that_it_has_beside_others(machine: Machine) -> None:
    machine.work(replace(sweep(run_of("vgg11"), run_of("alexnet", position=2)), devices=2))
    machine.work(sweep(run_of("vgg11")))
    assert [context.cpu_shares for context in machine.contexts] == [2, 2, 1]


def test_each_run_is_a_container_of_its_own_that_knows_its_place(machine: Machine) -> None:
    task = sweep(run_of("vgg11"), run_of("alexnet", position=2), run_of("alexnet", block=2), run_of("vgg11", block=2))
    outcomes = machine.work(task)
    assert shown(outcomes) == [("completed", "")] * 4
    assert [(outcome.number, outcome.seconds) for outcome in outcomes] == [(1, 10), (2, 10), (3, 10), (4, 10)]
    assert [outcome.bundle.path.name for outcome in outcomes if outcome.bundle] == ["run-1", "run-2", "run-3", "run-4"]
    commands = [made.arguments["command"] for made in machine.docker.containers.created]
    assert [command[command.index("--model") + 1] for command in commands] == ["vgg11", "alexnet", "alexnet", "vgg11"]
    assert not [command for command in commands if "--repeats" in command]
    told = [json.loads(command[command.index("--context") + 1]) for command in commands]
    assert [(context["job"]["block"], context["job"]["position"], context["run_key"]) for context in told] == [
        *((1, 1, "vgg11-32-1"), (1, 2, "alexnet-32-1"), (2, 1, "alexnet-32-2"), (2, 1, "vgg11-32-2"))
    ]
    assert [context.get("repeat", 1) for context in told] == [1, 1, 2, 2]
    assert {(context["job"]["name"], context["job"]["task"], context["repeats"]) for context in told} == {
        ("night", 2, 2)
    }


def test_repeats_of_a_launch_are_no_part_of_a_sweep_and_the_first_holds_the_profile(machine: Machine) -> None:
    outcomes = machine.work(Task.of_repeats(RunSpec(profile=Profile.TORCH, repeats=2)))
    assert shown(outcomes) == [("completed", "")] * 2
    repeats = [(context.repeat, context.repeats, context.job) for context in machine.contexts]
    assert repeats == [(1, 2, None), (2, 2, None)]
    commands = [made.arguments["command"][0] for made in machine.docker.containers.created]
    assert commands == ["train", "profile", "train"]


def test_a_block_measures_its_ceilings_once_and_another_launch_once_an_hour(machine: Machine) -> None:
    machine.ends = {("vgg11", 32): Status.FAILED}
    models = [("alexnet", "resnet18", "vgg11"), ("vgg11", "alexnet", "resnet18")]
    machine.work(sweep(*(run_of(model, block=block) for block, names in enumerate(models, 1) for model in names)))
    # The first of the second block broke off before it had any.
    kept = " ".join(context.kept_ceilings for context in machine.contexts)
    assert kept == "none block block none none block"
    machine.contexts.clear()
    machine.folder = machine.folder / "repeats"
    machine.work(Task.of_repeats(RunSpec(repeats=2)))
    assert [(context.kept_ceilings, context.settles) for context in machine.contexts] == [("hour", False)] * 2


def test_configurations_begin_at_the_temperature_before_the_first_of_them(machine: Machine) -> None:
    machine.work(sweep(run_of("vgg11"), run_of("alexnet"), run_of("vgg11", block=2)))
    settling = [(context.settles, context.settle_to_c) for context in machine.contexts]
    assert settling == [(True, None), (True, 42.0), (True, 42.0)]
    machine.contexts.clear()
    machine.folder = machine.folder / "block"
    machine.work(sweep(run_of("vgg11"), run_of("alexnet")), settle_to_c=38.0)
    assert [context.settle_to_c for context in machine.contexts] == [38.0, 38.0], "of a task before"
    machine.contexts.clear()
    machine.folder = machine.folder / "again"
    machine.work(sweep(run_of("vgg11"), run_of("vgg11", block=2)))
    assert [context.settles for context in machine.contexts] == [False, False], "one configuration: all alike"


OOM = Status.OUT_OF_MEMORY
VGG = ("vgg11", 32)
TASK = sweep(run_of("vgg11"), run_of("alexnet"))
AMP = RunSpec.from_json({"model": "vgg11", "batch_size": 128, "precision": "amp"})
SIZES = sweep(
    run_of("vgg11", 64), run_of("vgg11", 128), run_of("vgg11", 32), run_of("alexnet", 128),
    replace(run_of("vgg11", 128), spec=AMP), run_of("vgg11", None),
    run_of("vgg11", 64, block=2), run_of("vgg11", 128, block=2),
)  # fmt: skip
# Of the fourth model nothing is known: it takes the median of those before it.
TIMED = sweep(
    run_of("alexnet"), run_of("resnet18"), run_of("vgg11"), run_of("resnet50"), run_of("vgg11", block=2),
    run_of("alexnet", block=2), run_of("alexnet", block=3),
)  # fmt: skip
TWO = sweep(run_of("vgg11"), run_of("vgg11", 64))
# The task, how runs of some configurations end, and options of `work_through`.
ENDS: dict[str, tuple[Task, dict[tuple[str, int | None], Status], dict[str, Any]]] = {
    "a repeat fails": (Task.of_repeats(RunSpec(model="vgg11", batch_size=32, repeats=3)), {VGG: Status.FAILED}, {}),
    "a run fails": (TASK, {VGG: Status.FAILED}, {}),
    "a run is interrupted": (TASK, {VGG: Status.INTERRUPTED}, {}),
    "larger batches than one that ran out of memory": (SIZES, {("vgg11", 64): OOM}, {}),
    "completed in the store": (TWO, {}, {"done": {"vgg11-32-1": "completed"}}),
    "out of memory in the store": (TWO, {}, {"done": {"vgg11-32-1": "out_of_memory"}}),
    "failed in the store": (TWO, {}, {"done": {"vgg11-32-1": "failed"}}),
    "preempted in the store": (TWO, {}, {"done": {"vgg11-32-1": "preempted", "": "completed"}}),
    "little time is left": (TIMED, {}, {"left_s": 165.0}),
    "no time is left": (TASK, {}, {"left_s": 0.0}),
}


def test_how_a_task_ends(golden: Golden, machine: Machine) -> None:
    machine.seconds = {"vgg11": 100.0, "alexnet": 10.0, "resnet18": 20.0}
    texts = []
    for number, (name, (task, ends, options)) in enumerate(ENDS.items()):
        machine.folder, machine.ends, machine.now_s = machine.folder / str(number), ends, 0.0
        left_s = options.get("left_s", inf)
        given = {key: value for key, value in options.items() if key != "left_s"}
        outcomes = machine.work(task, time_left_s=lambda left_s=left_s: left_s - machine.now_s, **given)
        texts.append(f"## {name}")
        texts += [f"{one.end}{one.why and f': {one.why}'}{', out of time' * one.out_of_time}" for one in outcomes]
    golden("tasks.txt", "\n".join([*texts, ""]))


def test_a_plan_that_cannot_be_made_stops_no_other(machine: Machine) -> None:
    def plan(spec: RunSpec, context: Context) -> LocalPlan:
        if spec.model == "vgg11":
            raise ToolError("no image for it", hint="build one")
        return machine.plan(spec, context)

    outcomes = list(work_through(sweep(run_of("vgg11"), run_of("alexnet")), plan))
    assert shown(outcomes) == [("failed", "no image for it"), ("completed", "")]
    assert (outcomes[0].hint, outcomes[0].code, outcomes[0].bundle) == ("build one", ExitCode.TOOL, None)


def test_after_a_stop_nothing_is_started(machine: Machine) -> None:
    asked: list[str] = []
    machine.during = lambda: asked.append("it was told to stop")
    outcomes = machine.work(sweep(run_of("vgg11"), run_of("alexnet")), stopped=lambda: "".join(asked))
    assert shown(outcomes) == [("completed", ""), ("not started", "it was told to stop")]
    assert not outcomes[1].out_of_time

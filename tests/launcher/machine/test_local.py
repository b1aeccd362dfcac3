import json
import shlex
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest
from fake_docker import FakeDocker

from launcher import docker_engine
from launcher.machine import containers, local, runtime
from launcher.machine.containers import ContainerLimits
from launcher.machine.local import LocalOutcome, LocalPlan
from launcher.machine.runtime import Choice
from launcher.values import Runtime
from tests.launcher.told import Golden, printed, told
from workload.contract import bundle
from workload.contract.errors import ExitCode, UsageError
from workload.contract.record import Record, Spec, Status
from workload.contract.spec import RunSpec, resolve
from workload.environment import gpu_index
from workload.environment.gpu_index import ListedGpu

PROCESS = Choice(runtime=Runtime.PROCESS, why="asked for")
Launch = Callable[..., int]


def make_plan(given: dict[str, object], choice: Choice = PROCESS, **changes: Any) -> LocalPlan:
    plain: dict[str, Any] = {"output": Path("out"), "limits": ContainerLimits()}
    return local.make_plan(resolve(given, {}, None), choice, **plain | changes)


@pytest.fixture
def choice(docker: FakeDocker) -> Choice:
    """A container of an image that has been pushed, on a rootless engine: files are the caller's as root's."""
    labels = {"rooflaunch.base": "unpinned"}
    docker.hold("sha256:ab", "rooflaunch:cpu", labels=labels, RepoDigests=["host/trainer@sha256:cd"])
    engine = docker.engine(version="20.10.24", SecurityOptions=["name=rootless"])
    return Choice(runtime=Runtime.DOCKER, why="an image was named", engine=engine, image=engine.image("sha256:ab"))


def test_plans_of_a_process_and_of_a_container(golden: Golden, choice: Choice, caller: Path) -> None:
    process = make_plan({"model": "mobilenet_v2", "repeats": "3", "device": "cpu"}, output=Path("my results"))
    outside = {"host": {"kernel": "6.1"}}
    given: dict[str, object] = {"device": "cpu", "profile": "torch"}
    container = make_plan(given, choice, output=Path("my results"), outside=outside)
    texts = []
    for plan in (process, container):
        told = json.loads(json.dumps(plan.to_json()))
        shown = {name: told[name] for name in ("runtime", "runtime_reason", "image")}
        texts.append(f"{plan.text()}\n{json.dumps(shown)}\n{shlex.join(told['command'])}\n")
    assert process.container is None
    assert container.container is not None
    assert container.container.command == container.command
    golden("plans.txt", "\n".join(texts).replace(str(caller), "HERE").replace(sys.executable, "PYTHON"))


def test_mistakes_are_two_lines(golden: Golden, launch: Launch, capsys: pytest.CaptureFixture[str]) -> None:
    mistakes = (
        *("--model resnet18x", "--cpu --cuda", "--runtime podman", "--runtime process --image x"),
        *("--runtime process --memory 8g", "--memory lots", "--shm-size 0", "--cpus nan", "--frobnicate"),
    )
    golden("mistakes.txt", printed(launch, capsys, (f"local {words}" for words in mistakes)))


def open_bundle(output: Path) -> Path:
    """What a trainer leaves that was killed in its second step."""
    folder = bundle.create(output, "run-1")
    spec = Spec(model="resnet18", batch_size=4)
    bundle.write_record(folder, Record(run_id="run-1", status=Status.RUNNING, spec=spec))
    (folder / bundle.STEPS).write_text("step,loss\n0,6.9\n1,6.")
    return folder


def ended(outcome: LocalOutcome) -> str:
    lines = [f"exit code {int(outcome.exit_code)}", *([outcome.error.report()] if outcome.error else [])]
    for found in outcome.bundles:
        document, spec = found.document, found.record.spec
        facts = found.record.environment.host
        host = "with" if facts and facts.kernel else "without"
        lines.append(f"bundle: {document['status']}: {document.get('error')}; {spec.model}, batch {spec.batch_size}")
        lines.append(f"        {len(found.steps())} steps, {host} facts of the host")
    return "\n".join(lines)


@pytest.mark.world
def test_how_a_trainer_ends(golden: Golden, tmp_path: Path) -> None:
    def ran(script: str, *, leaves_bundle: bool = False, is_sealed: bool = False) -> str:
        output = tmp_path / str(len(list(tmp_path.iterdir())))
        output.mkdir()
        if leaves_bundle:
            left = open_bundle(output)
            script = f"print({str(left)!r}, flush=True); {script}"
        if is_sealed:
            bundle.seal_unfinished(left, Status.OUT_OF_MEMORY, "too big")
        command = (sys.executable, "-c", f"import os; {script}")
        return ended(local.run(replace(make_plan({"device": "cpu"}, output=output), command=command)))

    cases = {
        "killed": partial(ran, "os.kill(os.getpid(), 9)", leaves_bundle=True),
        "killed before its first bundle": partial(ran, "os.kill(os.getpid(), 6)"),
        "a bug before its first bundle": partial(ran, "raise ValueError"),
        "failed, and said it": partial(ran, "raise SystemExit(7)", leaves_bundle=True),
        "failed, and sealed its bundle": partial(ran, "raise SystemExit(7)", leaves_bundle=True, is_sealed=True),
    }
    golden("trainers.txt", told(cases))


def test_how_a_container_ends(
    golden: Golden, docker: FakeDocker, choice: Choice, caller: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def ran(
        *pieces: Callable[[], None], is_announced: bool = True, of_profile: dict[str, Any] | None = None, **ends: Any
    ) -> str:
        """Run a container with these pieces, by default a whole run; `of_profile`: how that of its profile ends."""
        output = Path(f"out{len(docker.containers.created)}")

        def train() -> None:
            bundle.seal(open_bundle(caller / output))
            docker.containers.pieces = ()
            vars(docker.containers).update(of_profile or {})

        announced = [(f"{caller}/{output}/run-1\n".encode(), b"warmup 1/3\n")] if is_announced else []
        docker.containers.pieces = [*announced, *pieces] if pieces or not is_announced else [train, *announced]
        vars(docker.containers).update({"exit_code": 0, "out_of_memory": False, "absent": None, **ends})
        limits, facts = ContainerLimits(memory_bytes=300 * 2**20), {"host": {"kernel": "6.1"}}
        given: dict[str, object] = {"device": "cpu", "profile": "none" if of_profile is None else "torch"}
        outcome = local.run(make_plan(given, choice, output=output, limits=limits, outside=facts))
        said = [line for line in capsys.readouterr().err.splitlines() if "docker run" not in line]
        return "\n".join([ended(outcome), *said])

    def interrupt() -> None:
        signal.raise_signal(signal.SIGINT)

    def vanish() -> NoReturn:
        raise LOST

    cases = {
        "whole": ran,
        "its profile has said why it failed": partial(ran, of_profile={"exit_code": ExitCode.TOOL}),
        "its profile is killed": partial(ran, of_profile={"exit_code": 137}),
        "its profile does not start": partial(ran, of_profile={"absent": LOST}),
        "memory runs out before its first bundle": partial(ran, is_announced=False, exit_code=137, out_of_memory=True),
        "interrupted before its first bundle": partial(ran, interrupt, interrupt, is_announced=False),
        "the engine goes away": partial(ran, vanish, is_announced=False),
        "the engine goes away after its first bundle": partial(ran, vanish),
    }
    golden("containers.txt", told(cases))
    assert {each.arguments["image"] for each in docker.containers.created} == {"sha256:ab"}


LOST = ConnectionResetError("Connection reset by peer")


@pytest.mark.parametrize(
    ("profile", "restricted", "privileged"), [("torch", True, False), ("ncu", False, False), ("ncu", True, True)]
)
def test_profile_is_a_container_of_its_own(
    profile: str,
    restricted: bool,
    privileged: bool,
    docker: FakeDocker,
    choice: Choice,
    caller: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def train() -> None:
        bundle.seal(open_bundle(caller / "out"))
        docker.containers.pieces = ()

    docker.containers.pieces = [train, (f"{caller}/out/run-1\n".encode(), None)]
    monkeypatch.setattr(containers, "counters_restricted", lambda _: restricted)
    assert local.run(make_plan({"profile": profile}, choice)).exit_code == 0
    timing, second = (each.arguments for each in docker.containers.created)
    folder = Path("out/run-1").absolute()
    assert second["command"] == ["profile", str(folder)]
    assert ("SYS_ADMIN" in second["cap_add"], "SYS_ADMIN" in timing["cap_add"]) == (privileged, False)
    assert second["mounts"] == timing["mounts"]
    assert f"profile {folder}\n" in capsys.readouterr().err, "the command is echoed"
    assert docker.containers.there == {}


def test_folder_that_cannot_be_made_is_said_before_the_start(docker: FakeDocker, choice: Choice, caller: Path) -> None:
    (caller / "out").touch()
    with pytest.raises(UsageError, match=r"^output folder 'out' cannot be written: File exists$"):
        local.run(make_plan({}, choice))
    assert docker.containers.created == []


def test_command_plans_a_container_with_the_facts_of_the_host(
    command: FakeDocker, caller: Path, launch: Launch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert launch("local", "--cpu", "--memory", "1g", "--cpus", "1.5", "--dry-run", "--format", "json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["runtime"], told["image"]["id"]) == ("docker", "sha256:ab")
    words = told["command"]
    assert json.loads(words[-1])["outside"]["host"] == {"kernel": str(caller)}
    assert words[words.index("--memory") + 1] == "1073741824"
    assert words[words.index("--cpus") + 1] == "1.5"
    assert words[words.index("--shm-size") + 1] == "2147483648"
    assert command.containers.created == []


def test_command_asks_for_a_container_where_limits_do(
    command: FakeDocker, launch: Launch, capsys: pytest.CaptureFixture[str]
) -> None:
    command.held.clear()
    assert launch("local", "--cpu", "--memory", "1g", "--dry-run") == ExitCode.TOOL
    assert capsys.readouterr().err == (
        "error: no image of flavour cpu is built for this code\nhint: launch build --flavour cpu\n"
    )
    assert launch("local", "--cpu", "--dry-run") == ExitCode.DONE
    assert "runtime    process (no image of flavour cpu is built for this code; to use it: " in capsys.readouterr().out


def test_how_far_a_script_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = RunSpec(script=("train.py", "--token", "abc"))
    plan = make_plan({}, PROCESS)
    plan = replace(plan, spec=spec)
    local._print_steps(plan, [], 30.2)
    local._print_steps(plan, [tmp_path / "gone"], 60.2)
    (tmp_path / bundle.STEPS).write_text("step,phase\n0,warmup\n1,measured\n")
    local._print_steps(plan, [tmp_path], 90.0)
    local._print_steps(plan, [tmp_path], 120.0)
    local._print_steps(plan, [tmp_path], 150.1)
    assert capsys.readouterr().err.splitlines() == [
        "script     train.py: 30 s, no step is measured yet",
        "script     train.py: 60 s, no step is measured yet",
        "script     train.py: 90 s, 2 steps so far",
        "script     train.py: 2 min, 2 steps so far",
        "script     train.py: 2.5 min, 2 steps so far",
    ]


@pytest.mark.usefixtures("caller")
def test_ranks_in_a_container(choice: Choice) -> None:
    plan = make_plan({"device": "cpu", "devices": 2}, choice)
    assert plan.container is not None
    assert list(plan.container.command[:5]) == ["train", "--device", "cpu", "--devices", "2"]
    script = resolve({"devices": 2}, {}, None, script=["train.py", "--lr", "1"])
    planned = local.make_plan(script, choice, output=Path("results"), limits=ContainerLimits())
    assert planned.container is not None
    assert list(planned.container.command[:3]) == ["script", "--devices", "2"]
    assert list(planned.container.command[-4:]) == ["--", "train.py", "--lr", "1"]


TWO_GPUS = tuple(ListedGpu(index=index, uuid=f"GPU-{index}{index}", is_split=False) for index in (0, 1))


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch, caller: Path) -> Path:
    """A machine with two GPUs of compute capability 8.9; returns the caller's folder."""
    monkeypatch.setattr(gpu_index, "listed", lambda: TWO_GPUS)
    monkeypatch.setattr(runtime, "gpu_capability", lambda _=None: (8, 9))
    (caller / "train.py").touch()
    return caller


@pytest.mark.parametrize(
    ("words", "trainer"),
    [
        ((), ["workload", "train", "--device", "cuda", "--gpu-index", "1", "-o", "results", "--context"]),
        (("--", "train.py"), ["rooflaunch", "script", "--gpu-index", "1", "-o", "results", "--context"]),
    ],
    ids=["our trainer", "a script"],
)
@pytest.mark.usefixtures("two_gpus")
def test_the_trainer_gets_the_index_of_the_gpu(
    words: tuple[str, ...], trainer: list[str], launch: Launch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("--runtime", "process", "--gpu-index", "1", "--dry-run", "--format", "json")
    assert launch("local", *asked, *words) == ExitCode.DONE
    command = json.loads(capsys.readouterr().out)["command"]
    assert command[3 : 3 + len(trainer)] == trainer


@pytest.mark.parametrize("words", [("--", "---", "--precision", "amp"), ("--", "train.py", "---", "train.py", "--b")])
@pytest.mark.usefixtures("two_gpus")
def test_both_sides_of_a_duel_get_the_index_of_the_gpu(
    words: tuple[str, ...], launch: Launch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert launch("duel", "--gpu-index", "1", "--dry-run", "--format", "json", *words) == ExitCode.DONE
    plan = json.loads(capsys.readouterr().out)
    for side in (plan["A"], plan["B"]):
        assert side["command"][side["command"].index("--gpu-index") + 1] == "1"
        assert side["spec"]["device"] == "cuda"


@pytest.mark.usefixtures("two_gpus")
def test_a_container_gets_that_gpu_alone_and_is_told_its_index(
    command: FakeDocker, launch: Launch, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docker_engine, "connect", lambda: command.engine(gpus=True))
    asked = ("--image", "rooflaunch:cpu", "--gpu-index", "1", "--dry-run", "--format", "json")
    assert launch("local", *asked) == ExitCode.DONE
    words = json.loads(capsys.readouterr().out)["command"]
    assert words[words.index("--gpus") + 1] == "device=1"
    assert "--gpu-index" not in words
    assert json.loads(words[-1])["outside"]["device"] == {"gpu_index": 1}


@pytest.mark.usefixtures("two_gpus")
def test_an_index_that_cannot_be(
    golden: Golden, launch: Launch, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = ("--gpu-index 2", "--gpu-index 1 --cpu", "--gpu-index 1 --mps", "--gpu-index -1")
    commands = ("local --runtime process {}", "duel {} -- ---")
    lines = [command.format(words) for command in commands for words in wrong]
    text = printed(launch, capsys, lines)
    monkeypatch.setattr(gpu_index, "listed", tuple)
    golden("gpu_index.txt", text + "\n" + printed(launch, capsys, [commands[0].format("--gpu-index 0")]))

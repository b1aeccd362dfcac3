import json
import shlex
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
from fake_docker import FakeDocker

from launcher import docker_engine
from launcher.kinds import Runtime
from launcher.machine import containers, local, runtime
from launcher.machine.containers import ContainerLimits
from launcher.machine.local import LocalPlan
from launcher.machine.runtime import Choice
from tests.launcher.told import Golden, printed
from workload.contract import bundle
from workload.contract.errors import ExitCode, RunFailedError, ToolError, UsageError
from workload.contract.record import Record, Spec, Status, to_json
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


@pytest.mark.world
def test_killed_trainer_leaves_a_bundle_that_says_so(tmp_path: Path) -> None:
    left = open_bundle(tmp_path)
    script = f"import os; print({str(left)!r}, flush=True); os.kill(os.getpid(), 9)"
    outcome = local.run(replace(make_plan({}), command=(sys.executable, "-c", script)))
    assert outcome.exit_code == ExitCode.RUN_FAILED
    assert isinstance(outcome.error, RunFailedError)
    assert str(outcome.error).startswith("the trainer was killed by SIGKILL")
    assert outcome.error.hint == "if `dmesg` shows that memory ran out, try a smaller --batch-size"
    (found,) = outcome.bundles
    assert (found.path, found.document["status"], found.document["error"]) == (
        left,
        "failed",
        str(outcome.error),
    )
    assert outcome.to_json() == {"exit_code": 6, "runs": [{"path": str(left), **to_json(found.record)}]}


@pytest.mark.world
@pytest.mark.parametrize(
    ("script", "code", "status", "error"),
    [
        (
            "os.kill(os.getpid(), 6)",
            ExitCode.RUN_FAILED,
            "failed",
            "the trainer was killed by SIGABRT; its bundle keeps the steps so far",
        ),
        ("raise ValueError", ExitCode.BUG, "failed", "the trainer ended with a traceback"),
    ],
)
def test_trainer_that_ended_before_its_first_bundle_leaves_one(
    script: str, code: int, status: str, error: str, tmp_path: Path
) -> None:
    plan = make_plan({"device": "cpu"}, output=tmp_path)
    outcome = local.run(replace(plan, command=(sys.executable, "-c", f"import os; {script}")))
    (found,) = outcome.bundles
    assert (outcome.exit_code, found.document["status"], found.document["error"]) == (code, status, error)
    assert (found.document["spec"]["model"], found.document["spec"]["batch_size"]) == ("resnet18", 16)
    assert found.document["environment"]["host"]["kernel"]
    assert found.steps() == []


@pytest.mark.world
def test_trainer_that_failed_by_itself_has_said_it(tmp_path: Path) -> None:
    left = open_bundle(tmp_path)
    script = f"print({str(left)!r}); raise SystemExit(7)"
    outcome = local.run(replace(make_plan({}), command=(sys.executable, "-c", script)))
    assert (outcome.exit_code, outcome.bundles, outcome.error) == (7, (), None)
    bundle.seal_unfinished(left, Status.OUT_OF_MEMORY, "too big")
    outcome = local.run(replace(make_plan({}), command=(sys.executable, "-c", script)))
    assert (outcome.exit_code, [each.path for each in outcome.bundles], outcome.error) == (7, [left], None)


Train = Callable[[], None]


@pytest.fixture
def train(docker: FakeDocker, caller: Path) -> Train:
    """What the trainer in the container does: a complete bundle in `out`; the next container prints nothing."""

    def run() -> None:
        bundle.seal(open_bundle(caller / "out"))
        docker.containers.pieces = ()

    docker.containers.pieces = [run, (f"{caller}/out/run-1\n".encode(), b"warmup 1/3\n")]
    return run


@pytest.mark.usefixtures("train")
def test_container_runs_the_plan(docker: FakeDocker, choice: Choice, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = local.run(make_plan({}, choice))
    assert (outcome.exit_code, outcome.error) == (ExitCode.DONE, None)
    assert [found.path for found in outcome.bundles] == [Path("out/run-1")]
    assert capsys.readouterr() == ("", "warmup 1/3\n")
    assert [each.arguments["image"] for each in docker.containers.created] == ["sha256:ab"]


@pytest.mark.usefixtures("train")
@pytest.mark.parametrize(
    ("profile", "restricted", "privileged"), [("torch", True, False), ("ncu", False, False), ("ncu", True, True)]
)
def test_profile_is_a_container_of_its_own(
    profile: str,
    restricted: bool,
    privileged: bool,
    docker: FakeDocker,
    choice: Choice,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(containers, "counters_restricted", lambda _: restricted)
    assert local.run(make_plan({"profile": profile}, choice)).exit_code == 0
    timing, second = (each.arguments for each in docker.containers.created)
    folder = Path("out/run-1").absolute()
    assert second["command"] == ["profile", str(folder)]
    assert ("SYS_ADMIN" in second["cap_add"], "SYS_ADMIN" in timing["cap_add"]) == (privileged, False)
    assert second["mounts"] == timing["mounts"]
    assert f"profile {folder}\n" in capsys.readouterr().err, "the command is echoed"
    assert docker.containers.there == {}


LOST = ConnectionResetError("Connection reset by peer")
NO_START = "a container of 'sha256:ab' did not start: Connection reset by peer"


@pytest.mark.parametrize(
    ("changes", "warning"),
    [
        # The pass has said itself why there is no profile.
        ({"exit_code": ExitCode.TOOL}, ""),
        ({"exit_code": 137}, "warning: the profile pass ended with exit code 137; the run is complete\n"),
        ({"absent": LOST}, f"warning: the run is complete, but without a profile: {NO_START}\n"),
    ],
)
def test_profile_that_fails_or_does_not_start_costs_nothing(
    changes: dict[str, Any],
    warning: str,
    docker: FakeDocker,
    choice: Choice,
    train: Train,
    caller: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run() -> None:
        train()
        vars(docker.containers).update(changes)

    docker.containers.pieces = [run, (f"{caller}/out/run-1\n".encode(), None)]
    outcome = local.run(make_plan({"profile": "torch"}, choice))
    assert (outcome.exit_code, outcome.error, len(outcome.bundles)) == (ExitCode.DONE, None, 1)
    assert capsys.readouterr().err.partition("\n")[2] == warning


def test_container_that_was_killed_while_it_imported_torch_leaves_a_bundle(
    docker: FakeDocker, choice: Choice, caller: Path
) -> None:
    docker.containers.exit_code, docker.containers.out_of_memory = 137, True
    limits = ContainerLimits(memory_bytes=300 * 2**20)
    outcome = local.run(make_plan({"device": "cpu"}, choice, limits=limits, outside={"host": {"kernel": "6.1"}}))
    (found,) = outcome.bundles
    assert (outcome.exit_code, found.path.parent.absolute()) == (ExitCode.OUT_OF_MEMORY, caller / "out")
    assert (found.document["status"], found.document["error"]) == (
        "out_of_memory",
        "the run was killed at the container's limit of 300m of memory",
    )
    assert found.document["environment"]["container"]["image"] == "rooflaunch:cpu"


def test_interrupted_container_leaves_no_bundle_of_a_run_that_had_not_begun(
    docker: FakeDocker, choice: Choice, caller: Path
) -> None:
    docker.containers.pieces = [lambda: signal.raise_signal(signal.SIGINT), lambda: signal.raise_signal(signal.SIGINT)]
    outcome = local.run(make_plan({"device": "cpu"}, choice))
    assert (outcome.exit_code, outcome.bundles, list((caller / "out").iterdir())) == (ExitCode.INTERRUPTED, (), [])
    assert str(outcome.error) == "interrupted by Ctrl-C"


@pytest.mark.parametrize(
    ("pieces", "told"), [([], ""), ([(b"{home}/out/run-1\n", None)], "; its measurements are in 'out/run-1'")]
)
def test_engine_that_goes_away_is_said_with_what_was_measured(
    pieces: list[tuple[bytes, None]], told: str, docker: FakeDocker, choice: Choice, caller: Path
) -> None:
    def vanish() -> NoReturn:
        raise ConnectionResetError("Connection reset by peer")

    printed = [(out.replace(b"{home}", str(caller).encode()), err) for out, err in pieces]
    docker.containers.pieces = [*printed, vanish]
    with pytest.raises(ToolError) as caught:
        local.run(make_plan({}, choice))
    lost = "the Docker engine stopped while container fake_0 ran: Connection reset by peer"
    assert str(caught.value) == f"{lost}{told}"
    assert caught.value.hint == "start Docker (`sudo systemctl start docker`, or Docker Desktop)"


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
    assert capsys.readouterr().err.splitlines() == [
        "script     train.py: 30 s, no step is measured yet",
        "script     train.py: 60 s, no step is measured yet",
        "script     train.py: 90 s, 2 steps so far",
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

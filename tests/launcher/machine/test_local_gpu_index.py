"""`launch local --gpu-index N` on a machine with two GPUs."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_docker import FakeDocker

from launcher import docker_engine
from launcher.machine import runtime
from tests.launcher.told import Golden, printed
from workload.contract.errors import ExitCode
from workload.environment import gpu_index
from workload.environment.gpu_index import ListedGpu

Launch = Callable[..., int]
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

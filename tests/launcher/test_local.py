import json
import shlex
import sys
from pathlib import Path

import pytest

from launcher import local
from launcher.__main__ import main
from workload import bundle
from workload.errors import ExitCode, RooflaunchError, ToolError, UsageError
from workload.spec import resolve


def launch(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["launch", *words])
    return main()


def test_plan_is_the_command_it_shows() -> None:
    resolved = resolve({"model": "mobilenet_v2", "repeats": "3", "device": "cpu"}, {}, None)
    plan = local.make_plan(resolved, runtime="auto", output=Path("my results"))
    assert plan.runtime == "process"
    assert plan.command == (
        sys.executable,
        *("-m", "workload", "train", "--model", "mobilenet_v2", "--device", "cpu", "--repeats", "3"),
        *("-o", "my results", "--context"),
        '{"spec_origin": {"model": "option", "device": "option", "repeats": "option"}}',
    )
    assert plan.text().splitlines() == [
        "plan       mobilenet_v2, the device's default batch, fp32, on cpu; 3 runs, a process each",
        "set by     model: option, device: option, repeats: option",
        "runtime    process",
        "bundles    my results/",
        f"command    {shlex.join(plan.command)}",
    ]
    assert json.loads(json.dumps(plan.to_json()))["command"] == list(plan.command)


@pytest.mark.parametrize(
    ("runtime", "error", "message"),
    [
        ("docker", ToolError, "runtime docker comes with the container image, which is not built yet"),
        ("podman", UsageError, "runtime must be one of auto, process, docker; got 'podman'"),
    ],
)
def test_runtimes_that_are_not_there(runtime: str, error: type[RooflaunchError], message: str) -> None:
    with pytest.raises(error) as caught:
        local.make_plan(resolve({}, {}, None), runtime=runtime, output=Path())
    assert str(caught.value) == message
    assert caught.value.hint == "--runtime process"


def test_help_has_examples_and_nothing_that_does_not_work_yet(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert launch(monkeypatch, "local", "--help") == 0
    text = capsys.readouterr().out
    assert "\n    launch local --cpu\n" in text
    assert "--batch-size N" in text
    assert "--profile" not in text
    assert "docker" not in text


def test_dry_run_starts_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert launch(monkeypatch, "local", "--cpu", "--dry-run", "--format", "json") == 0
    assert json.loads(capsys.readouterr().out)["spec"]["device"] == "cpu"
    assert launch(monkeypatch, "local", "--dry-run", "--batch-size", "7", "--no-augment") == 0
    text = capsys.readouterr().out
    assert "batch 7, fp32, on the best device found; one run" in text
    assert "--no-augment" in text


@pytest.mark.parametrize(
    ("words", "code", "message", "hint"),
    [
        (["--batch-size", "0"], 2, "batch size must be a positive integer; got '0'", "--batch-size 32"),
        (["--batch-size", "x"], 2, "batch size must be a positive integer; got 'x'", "--batch-size 32"),
        (["--cpu", "--cuda"], 2, "a run has one device; got --cpu and --cuda", "--cpu, or none"),
        (["--cpu", "--precision", "tf32"], 2, "precision tf32 needs an NVIDIA GPU", "--precision fp32"),
        (["--runtime", "docker"], 4, "runtime docker comes with the container image", "--runtime process"),
        (["--frobnicate"], 2, "No such option: --frobnicate", "launch --help"),
        (["extra"], 2, "Got unexpected extra argument", "launch --help"),
        (["--format", "xml"], 2, "Invalid value for '--format'", "launch --help"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_are_two_lines(
    words: list[str],
    code: int,
    message: str,
    hint: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert launch(monkeypatch, "local", *words) == code
    captured = capsys.readouterr()
    lines = captured.err.strip().splitlines()
    assert captured.out == ""
    assert len(lines) == 2, lines
    assert lines[0].startswith(f"error: {message}")
    assert lines[1].startswith(f"hint: {hint}")


def test_config_with_an_unknown_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rooflaunch.toml").write_text("batch-size = 3\n")
    monkeypatch.chdir(tmp_path)
    assert launch(monkeypatch, "local") == ExitCode.USAGE
    assert "unknown key 'batch-size'" in capsys.readouterr().err


@pytest.mark.world
def test_two_repeats_for_real(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    small = ["--cpu", "--image-size", "32", "--batch-size", "2", "--warmup", "1", "--iterations", "2", "--no-ceilings"]
    assert launch(monkeypatch, "local", *small, "--repeats", "2", "--format", "json", "-o", "out") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["exit_code"] == 0
    assert len(printed["runs"]) == 2
    for found in printed["runs"]:
        assert bundle.read(Path(found["path"])).record["status"] == "completed"
        assert found["spec_origin"]["repeats"] == "option"


@pytest.mark.world
def test_failed_run_gives_its_exit_code_and_shows_its_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    huge = ["--cpu", "--image-size", "1024", "--batch-size", "1000000", "--no-ceilings"]
    assert launch(monkeypatch, "local", *huge) == ExitCode.OUT_OF_MEMORY
    assert "out of memory resnet18 at batch size 1000000 in fp32" in capsys.readouterr().out


@pytest.mark.world
def test_killed_trainer_is_said() -> None:
    suicide = (sys.executable, "-c", "import os; os.kill(os.getpid(), 9)")
    plan = local.make_plan(resolve({}, {}, None), runtime="auto", output=Path())
    with pytest.raises(RooflaunchError, match="the trainer was killed by SIGKILL: its bundle is incomplete") as caught:
        local.run(local.Plan(**{**vars(plan), "command": suicide}))
    assert caught.value.exit_code is ExitCode.RUN_FAILED

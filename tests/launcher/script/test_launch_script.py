"""`launch local … -- train.py ARGS`."""

import json
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.machine import local, task
from launcher.machine.runtime import Workplace
from tests.launcher.script import tiny
from tests.launcher.told import Golden, printed
from workload.contract import bundle
from workload.contract.errors import ExitCode, RunFailedError, UsageError
from workload.contract.record import Status
from workload.contract.spec import SCRIPT_OPTIONS, RunSpec, options, resolve
from workload.contract.trainer import Context
from workload.run import unfinished

SHOWN = "train.py --root '{data}' --token '[redacted]'"
APART = "Model and data, without a script"
Launch = Callable[..., int]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder, with a script that would end with 7 if it ran."""
    (tmp_path / "train.py").write_text("raise SystemExit(7)\n")
    (tmp_path / "package").mkdir()
    (tmp_path / "README.md").write_text("# Title\n\nWhat it does.\n")
    (tmp_path / "my work.ipynb").write_text("{}\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


REFUSED = (
    *("--", "--cpu train.py --lr 1", "--data a.txt b.txt -- train.py", "--cpu train", "-- trian.py", "-- package"),
    *("-- 'my work.ipynb'", "-- -m no.such.module", "-- -m package.train", "-- -m package", "-- -m"),
    *("-o README.md -- train.py", "-o README.md/results -- train.py", "-- torchrun train.py"),
    *("--cpu --profile ncu -- train.py", "--profile ncu --profile-throughput -- train.py"),
    *("--model resnet50 -- train.py", "--no-augment -- train.py", "--dataset cifar10 -- train.py", "--mps -- train.py"),
    *("--iterations 0 -- train.py", "--samples-per-step 8", "--data .", "--data nowhere -- train.py"),
    *("--data gs://bucket/x -- train.py", "-- train.py --root {data}/a"),
)


def test_refused(golden: Golden, folder: Path, launch: Launch, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(launch, capsys, (f"local --runtime process {words}" for words in REFUSED))
    golden("refused.txt", text.replace(str(folder), "HERE").replace(shlex.quote(sys.executable), "PYTHON"))


def test_the_help_lists_apart_what_a_script_refuses(
    launch: Launch, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert launch("local", "--help") == 0
    text = capsys.readouterr().out
    assert len(text.splitlines()) <= 66
    headings = re.findall(r"^ *(\w.*):$", text, re.MULTILINE)
    assert headings == ["Most used", "Your own script", APART, "Measuring", "Place", "Output", "Examples"]
    parts = dict(zip(headings, re.split(r"^ *\w.*:\n", text, flags=re.MULTILINE)[1:], strict=True))
    for option in options():
        flag = "cpu" if option.name == "device" else option.flag[2:]
        row = rf"^  --(\[no-\])?{flag}[ ,]"
        heading = next(name for name, part in parts.items() if re.search(row, part, re.MULTILINE))
        if heading != "Most used":
            assert (heading == APART) == (option.name not in {*SCRIPT_OPTIONS, "devices"}), flag
    assert parts["Most used"].startswith("  -- train.py ARGS  ")


def test_every_option_is_a_scripts_too_or_has_a_reason() -> None:
    """An option that is neither would be taken and do nothing."""
    for option in options():
        value = {bool: not option.default, int: 1, float: 1.0}.get(option.kind, option.example)
        if option.name in SCRIPT_OPTIONS:
            needed = {"profile": "ncu"} if option.name == "ncu_metrics" else {}
            spec = resolve({option.name: value, **needed}, {}, None, script=["train.py"]).spec
            assert getattr(spec, option.name) == option.parse(value)
            continue
        with pytest.raises(UsageError, match="is only for our own trainer: ") as caught:
            resolve({option.name: value}, {}, None, script=["train.py"])
        assert str(caught.value).startswith(option.flag if value is not False else option.off_flag)


def test_the_trainers_options_in_a_file_or_a_variable_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "rooflaunch.toml").write_text('model = "vgg11"\niterations = 7\n')
    found = resolve({}, {"ROOFLAUNCH_BATCH_SIZE": "9", "ROOFLAUNCH_WARMUP": "2"}, tmp_path, script=["train.py"])
    assert found.spec == RunSpec(script=("train.py",), iterations=7, warmup=2)
    assert {name: str(origin) for name, origin in found.origin.items()} == {
        "warmup": "environment",
        "iterations": "rooflaunch.toml",
    }


def test_the_plan_shows_no_secret(folder: Path, launch: Launch, capsys: pytest.CaptureFixture[str]) -> None:
    line = "--cpu --repeats 2 --iterations 5 --data package --dry-run -- train.py --root {data} --token hunter2"
    assert launch("local", *shlex.split(line)) == 0
    python = f"env CUDA_VISIBLE_DEVICES= {shlex.quote(sys.executable)} -P -m rooflaunch"
    assert capsys.readouterr().out.splitlines() == [
        (f"plan       {SHOWN}, on the CPU (NVIDIA GPUs are hidden from the script); 2 runs, each in its own process"),
        "set by     device: option, iterations: option, repeats: option",
        "runtime    process (a script's packages are in this Python)",
        "bundles    results/",
        f"command    {python} script --iterations 5 --data {folder}/package -o results -- {SHOWN}",
    ]
    assert launch("local", *shlex.split(line.replace("--dry-run", "--dry-run --format json"))) == 0
    printed = capsys.readouterr().out
    assert "hunter2" not in printed
    assert json.loads(printed)["spec"]["script"][0] == "train.py"


def test_what_follows_the_dashes_is_the_scripts_alone(
    folder: Path, launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans: list[local.LocalPlan] = []

    def repeated(spec: RunSpec, plan_of: task.PlanOf) -> local.LocalOutcome:
        plans.append(plan_of(spec, Context()))
        return local.LocalOutcome(exit_code=0, bundles=())

    monkeypatch.setattr(task, "repeated", repeated)
    assert launch("local", "--", "train.py", "--cpu", "--dry-run", "--", "-o", "x") == 0
    [plan] = plans
    assert plan.spec == RunSpec(script=("train.py", "--cpu", "--dry-run", "--", "-o", "x"))
    assert plan.command[plan.command.index("--") + 1 :] == plan.spec.script
    assert plan.workplace == Workplace(folder=folder)


@pytest.mark.slow
@pytest.mark.world
def test_a_script_runs_here_as_by_itself(folder: Path, launch: Launch, capsys: pytest.CaptureFixture[str]) -> None:
    """Twice, in its user's folder, next to a package that is called as ours; it sees no GPU."""
    (folder / "data").mkdir()
    (folder / "workload").mkdir()
    (folder / "workload" / "__init__.py").write_text("raise SystemExit('the wrong workload')\n")
    for name, text in tiny.FILES.items():
        (folder / name).write_text(text)
    line = ("--repeats", "2", "--data", "data", "--", "train.py", "--root", "{data}", "--api-key", "hunter2")
    assert launch("local", *tiny.FEW, *line) == 0
    printed = capsys.readouterr()
    bundles = [bundle.read(path) for path in sorted((folder / "results").iterdir())]
    assert [one.record.status for one in bundles] == [Status.COMPLETED, Status.COMPLETED]
    assert sorted(one.record.repeat.index for one in bundles if one.record.repeat) == [1, 2]
    script = bundles[0].record.spec.script
    assert script is not None
    assert script.command == "train.py --root '{data}' --api-key '[redacted]'"
    assert "hunter2" not in (bundles[0].path / "run.json").read_text()
    assert printed.out.startswith("train.py --root '{data}' --api-key '[redacted]', batch 4, fp32, on cpu")
    assert "1 backward pass and 1 SGD step, 4 samples from DataLoader at train.py:10" in printed.out
    assert "  samples/s     " in printed.out


@pytest.mark.slow
@pytest.mark.world
def test_a_script_that_fails_ends_the_repeats(folder: Path, launch: Launch, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "train.py").write_text("import torch\nprint('mine')\nraise ValueError('wrong path')\n")
    assert launch("local", *tiny.FEW, "--repeats", "3", "--", "train.py") == ExitCode.RUN_FAILED
    printed = capfd.readouterr()
    assert printed.err.count("ValueError: wrong path") == 1
    assert "error: train.py failed with ValueError before its training step was known\n" in printed.err
    assert "mine\n" in printed.err
    assert printed.out == ""


def test_the_bundle_of_a_script_that_was_killed_says_what_it_was(tmp_path: Path) -> None:
    spec = RunSpec(script=("runs/my train.py", "--token", "abc"))
    left = bundle.read(
        unfinished.write_new(tmp_path, spec, Context(outside={"host": {}}), RunFailedError("killed", hint="run again"))
    ).record
    assert "-my-train.py-b1-" in left.run_id
    assert (left.spec.model, left.status) == ("my train.py", Status.FAILED)
    assert left.spec.script is not None
    assert left.spec.script.argv == ("runs/my train.py", "--token", "[redacted]")
    # What is known of a script is not enough to run it again.
    assert left.spec.run_spec().script == ()

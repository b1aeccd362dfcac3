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
from workload import cli
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
    (tmp_path / "package" / "train.py").touch()
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "main.py").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "run.sh").write_text(
        "set -e\n# python other.py\ntorchrun --nproc-per-node 2 train.py \\\n  --lr 0.3  # slow\n"
    )
    (tmp_path / "other.sh").write_text("python $SCRIPT.py\n")
    (tmp_path / "README.md").write_text("# Title\n\nWhat it does.\n")
    (tmp_path / "my work.ipynb").write_text("{}\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


REFUSED = (
    *("--", "--cpu train.py --lr 1", "--data a.txt b.txt -- train.py", "--cpu train", "-- trian.py", "-- package"),
    *("-- 'my work.ipynb'", "-- -m no.such.module", "-- -m package.eval", "-- -m package", "-- -m"),
    *("-o README.md -- train.py", "-o README.md/results -- train.py", "-- torchrun train.py"),
    *("--cpu --profile ncu -- train.py", "--profile ncu --profile-throughput -- train.py"),
    *("--model resnet50 -- train.py", "--no-augment -- train.py", "--dataset cifar10 -- train.py", "--mps -- train.py"),
    *("--iterations 0 -- train.py", "--samples-per-step 8", "--data .", "--data nowhere -- train.py"),
    *("--data gs://bucket/x -- train.py", "-- train.py --root {data}/a"),
    # Programs before the script, in the words of `launch` itself.
    *("-- python", "-- python -m", "-- python -c 'print(1)' 2", "-- python -O train.py --lr 1", "-- torchrun"),
    *("-- torchrun --nproc-per-node gpu train.py", "-- torchrun --nnodes=2 --nproc_per_node=2 train.py --lr 1"),
    *("-- torchrun --log-dir /tmp train.py", "--devices 3 -- torchrun --nproc-per-node 2 train.py --token hunter2"),
    *("-- uv run --with 'einops<1' train.py", "-- uv run --extra gpu python train.py", "-- uv run --quiet"),
    "-- accelerate launch --mixed_precision bf16 --num_processes 2 train.py",
    *("-- PYTHONPATH=src python train.py", "-- env HF_TOKEN=hunter2 A='b c' train.py", "-- /usr/bin/python3 train.py"),
    *(
        "-- bash run.sh 3",
        "-- ./run.sh",
        "-- sh",
        "-- bash other.sh",
        "-- make -j train",
        "-- nohup python train.py --lr 1",
    ),
    *("-- mpirun -n 2 python train.py --lr 1", "-- train --lr 1", "-- package.train --lr 1", "-- runs --lr 1"),
    *("-- empty", "-- nowhere/train.py", "-- --cpu train.py --lr 1", "-- train.ipynb", "--cpu torchrun train.py"),
    *("--cpu --repeats 3 uv run python train.py", "-- missing-program train data=x"),
)


def test_refused(golden: Golden, folder: Path, launch: Launch, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(launch, capsys, (f"local --runtime process {words}" for words in REFUSED))
    text = text.replace(str(folder), "HERE").replace(shlex.quote(sys.executable), "PYTHON")
    golden("refused.txt", text.replace(str(Path(sys.executable).parent), "FOLDER_OF_PYTHON"))


# What people type after `--`: the words that run, and the number of devices.
STARTED = {
    "python train.py --lr 1": ("train.py --lr 1", 1),
    "python3 -u train.py -u": ("train.py -u", 1),
    f"{sys.executable} train.py": ("train.py", 1),
    "python -m package.train --lr 1": ("-m package.train --lr 1", 1),
    "uv run train.py": ("train.py", 1),
    "uv run --frozen -- python train.py --frozen": ("train.py --frozen", 1),
    "poetry run python -m package.train": ("-m package.train", 1),
    "torchrun --standalone --nproc-per-node 2 train.py --nproc-per-node 3": ("train.py --nproc-per-node 3", 2),
    "torchrun --nnodes=1 --nproc_per_node=2 --master_port 29501 -m package.train": ("-m package.train", 2),
    "uv run python -m torch.distributed.run --nproc-per-node=2 train.py": ("train.py", 2),
    "accelerate launch train.py python": ("train.py python", 1),
    "accelerate launch --num_processes 1 --mixed_precision no -m package.train": ("-m package.train", 1),
    "accelerate launch --multi_gpu --num-processes=2 train.py": ("train.py", 2),
    "deepspeed --num_gpus 2 train.py": ("train.py", 2),
}


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("typed", "expected"), STARTED.items(), ids=[typed[:40] for typed in STARTED])
def test_programs_before_the_script_are_read(
    typed: str, expected: tuple[str, int], launch: Launch, capsys: pytest.CaptureFixture[str]
) -> None:
    words, devices = expected
    assert launch("local", "--dry-run", "--format", "json", "--", *shlex.split(typed)) == 0
    spec = json.loads(capsys.readouterr().out)["spec"]
    assert (shlex.join(spec["script"]), spec.get("devices", 1)) == (words, devices)
    parsed = cli.parse(["script", "--", *shlex.split(typed)])
    assert (shlex.join(parsed.script_words), int(getattr(parsed, "devices", 1))) == (words, devices)


def test_a_file_named_as_a_program_is_the_script(
    folder: Path, launch: Launch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "torchrun").touch()
    assert launch("local", "--dry-run", "--", "torchrun", "train.py") == 0
    assert capsys.readouterr().out.startswith("plan       torchrun train.py, ")


@pytest.mark.usefixtures("folder")
def test_a_command_of_an_installed_package_is_a_script(launch: Launch, capsys: pytest.CaptureFixture[str]) -> None:
    program = Path(sys.executable).with_name("pytest")
    assert launch("local", "--dry-run", "--format", "json", "--", "pytest", "-q") == 0
    assert json.loads(capsys.readouterr().out)["spec"]["script"] == [str(program), "-q"]
    # There is no such program on another machine.
    assert launch("ssh", "--host", "box", "--dry-run", "--", "pytest", "-q") == ExitCode.USAGE
    assert "error: no script 'pytest'" in capsys.readouterr().err


@pytest.mark.usefixtures("folder")
def test_programs_before_both_scripts_of_a_duel_are_read(launch: Launch, capsys: pytest.CaptureFixture[str]) -> None:
    """And a mistake in B is answered with the whole line."""
    line = "duel --cpu --dry-run -- torchrun --nproc-per-node 2 train.py --- accelerate launch --num_processes 2"
    assert launch(*shlex.split(line), "train.py", "--lr", "2") == 0
    plan = capsys.readouterr().out
    assert "--devices 2 --no-ceilings -o results -- train.py\n" in plan
    assert "--devices 2 --no-ceilings -o results -- train.py --lr 2\n" in plan
    assert launch(*shlex.split("duel --cpu -- python train.py --lr 1 --- trian.py --lr 2")) == ExitCode.USAGE
    assert "hint: launch duel --cpu -- train.py --lr 1 --- train.py --lr 2\n" in capsys.readouterr().err


@pytest.mark.world
def test_programs_in_a_matrix_are_read(folder: Path, launch: Launch, capsys: pytest.CaptureFixture[str]) -> None:
    def planned(command: str) -> str:
        (folder / "m.toml").write_text(
            f"repeats = 1\n[script]\ncommand = {command}\n[matrix]\nargs.lr = [1]\n[[on]]\nbackend = 'local'\n"
        )
        launch("sweep", "m.toml", "--dry-run")
        printed = capsys.readouterr()
        return printed.out + printed.err

    assert "train.py --lr 1" in planned('["python", "train.py", "--lr", "{lr}"]')
    assert "python train.py" not in planned('["python", "train.py", "--lr", "{lr}"]')
    told = planned('["torchrun", "--nproc-per-node", "2", "train.py", "--lr", "{lr}"]')
    assert 'hint: [defaults] with devices = 2, and command = ["train.py", "--lr", "{lr}"]\n' in told
    told = planned('["python", "-O", "train.py", "--lr", "{lr}"]')
    assert 'hint: PYTHONOPTIMIZE=1 launch sweep m.toml, with command = ["python", "train.py", ' in told


def test_the_help_lists_apart_what_a_script_refuses(
    launch: Launch, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert launch("local", "--help") == 0
    text = capsys.readouterr().out
    assert len(text.splitlines()) <= 69
    headings = re.findall(r"^ *(\w.*):$", text, re.MULTILINE)
    assert headings == ["Most used", "Your own script", APART, "Measuring", "Place", "Output", "Examples"]
    parts = dict(zip(headings, re.split(r"^ *\w.*:\n", text, flags=re.MULTILINE)[1:], strict=True))
    # Only launch slurm takes --machines.
    assert "--machines" not in text
    for option in (option for option in options() if option.name != "machines"):
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

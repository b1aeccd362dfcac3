"""The command line of `python -m rooflaunch script`, its errors, and the ends of scripts."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.workload.conftest import in_a_copy
from tests.workload.script_stage import measured
from workload import cli
from workload.contract import bundle
from workload.contract.errors import ExitCode, UsageError
from workload.steps import program


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('trained')\n")
    (tmp_path / "folder").mkdir()


# Lines after `script`; `torchrun`: as one of two ranks that it has started.
REFUSED = """\

--warmup 1 train.py --lr 0.1
-- -m nonesuch.train
--samples-per-step 1.5 -- train.py
--then sleep -- train.py
--no-ceilings --fresh-ceilings -- train.py
--repeats 0 -- train.py
--profile nsys -- train.py
--devices 2 --profile ncu -- train.py
--devices 2 --gpu-index 0 -- train.py
torchrun --devices 2 -- train.py
torchrun --repeats 3 -- train.py
torchrun --profile torch -- train.py
"""


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        ({}, None),
        ({"WORLD_SIZE": "1", "RANK": "0"}, None),
        ({"WORLD_SIZE": "2", "RANK": "1", "LOCAL_WORLD_SIZE": "2"}, (1, 2)),
        ({"WORLD_SIZE": "2", "RANK": "1"}, (1, 2)),
        ({"WORLD_SIZE": "2", "RANK": "2"}, "got WORLD_SIZE=2, RANK=2, LOCAL_WORLD_SIZE=2"),
        ({"WORLD_SIZE": "2"}, "got WORLD_SIZE=2, RANK=2, LOCAL_WORLD_SIZE=2"),
        ({"WORLD_SIZE": "many"}, "got WORLD_SIZE=many"),
        ({"WORLD_SIZE": "4", "RANK": "1", "LOCAL_WORLD_SIZE": "2"}, "only ranks on one machine can be measured, or"),
        ({"WORLD_SIZE": "4", "RANK": "1", "LOCAL_WORLD_SIZE": "2", "ROOFLAUNCH_STARTER": "10.0.0.1 4711 x"}, (1, 4)),
    ],
)
def test_variables_of_torchrun(
    variables: dict[str, str], place: tuple[int, int] | str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("WORLD_SIZE", "RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    if isinstance(place, str):
        with pytest.raises(UsageError, match=place):
            program.rank_here()
    else:
        assert program.rank_here() == place


def test_bad_command_lines_are_refused(
    golden: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = ""
    for line in REFUSED.splitlines():
        if line.startswith("torchrun"):
            monkeypatch.setenv("WORLD_SIZE", "2")
            monkeypatch.setenv("RANK", "0")
        assert cli.main(["script", *line.removeprefix("torchrun").split()]) == ExitCode.USAGE
        said += f"{f'## script {line}'.strip()}\n{capsys.readouterr().err.replace(sys.executable, 'PYTHON')}"
    golden("refused_scripts.txt", said)


def test_everything_after_the_dashes_is_the_scripts() -> None:
    parsed = cli.parse(["script", "--iterations", "4", "--", "train.py", "--warmup", "7", "--", "-o", "x"])
    assert (parsed.iterations, hasattr(parsed, "warmup"), str(parsed.output)) == ("4", False, "results")
    assert parsed.script_words == ["train.py", "--warmup", "7", "--", "-o", "x"]


@pytest.mark.world
@pytest.mark.parametrize(
    ("failing", "hints"), [("sys.modules['torch'] = None; import torch", 1), ("import torchling", 0), ("1 / 0", 0)]
)
def test_a_script_without_torch_gets_the_command_that_installs_it(failing: str, hints: int, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(f"import sys; {failing}")
    words = [sys.executable, "-m", "rooflaunch", "script", "--", "train.py"]
    ran = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path)
    error, *hint = ran.stderr.partition("error: ")[2].splitlines()
    assert error == "train.py failed before it imported torch; nothing was measured"
    assert [bool(re.fullmatch(r"hint: .* -m pip install .*\[trainer\]'?", line)) for line in hint] == [True] * hints


LOOP = """
import sys, torch
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
def train(steps):
    for number, (x,) in enumerate(DataLoader(TensorDataset(torch.ones(4 * steps, 4)), 4)):
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        yield number
"""
TOO_FEW = (
    "hint: let the script make more steps (smaller batches, more epochs); or mark the end of a step in the script: "
    "`import rooflaunch`, then `rooflaunch.step_done()` after each update"
)
RUN_ALONE = (
    "hint: name the script that trains. One that starts its own training processes (torch.multiprocessing) cannot be "
    "measured: let it read "
    "torchrun's variables RANK and WORLD_SIZE, and use --devices N"
)
NO_OPTIMIZER = "but no step of an optimizer of torch.optim"
MADE_NONE = "and made no step of an optimizer of torch.optim"
AFTER_LINE_8 = "hint: `import rooflaunch`, and after the update that follows script.py:8: `rooflaunch.step_done()`"
MARK_STEPS = (
    "hint: mark the end of a step in the script: `import rooflaunch`, then `rooflaunch.step_done()` after each update"
)
BY_HAND = """
import torch
w = torch.randn(8, 3, requires_grad=True)
loss = lambda: (torch.ones(4, 8) @ w).square().mean()
def update(gradients):
    with torch.no_grad(): w.sub_(gradients[0], alpha=0.1)
"""
CATCHES = f"""{LOOP}
import time
for _ in range(3):
    try:
        list(train(40))
    except SystemExit:
        print('caught', flush=True)
time.sleep(100)
"""
BY_FORCE = (
    "note       script.py did not end within 10 s after the request to exit (it catches SystemExit, or waits "
    "for a thread or a process): it was killed; the measurements are written"
)
# script: (what it does, exit code, what it prints, how our messages end, status of its bundle)
ENDS: dict[str, tuple[str, int, str, str, str | None]] = {
    "fails at once": (
        "import torch\nraise KeyError('x')",
        1,
        "",
        "error: {name} failed with KeyError before its training step was known",
        None,
    ),
    "fails later": (
        f"{LOOP}for n in train(40):\n    if n == 12: raise ValueError('diverged')",
        1,
        "",
        "error: {name} failed with ValueError after 4 measured steps; the bundle has these steps: {folder}",
        "failed",
    ),
    "ends with a code": (
        f"{LOOP}for n in train(40):\n    if n == 12: sys.exit(3)",
        3,
        "",
        "error: {name} ended with exit code 3 after 4 measured steps; the bundle has these steps: {folder}",
        "failed",
    ),
    "too few steps": (f"{LOOP}print(list(train(2)))", 6, "[0, 1]\n", TOO_FEW, None),
    "ends in its warm-up": (
        f"{LOOP}list(train(8))",
        6,
        "",
        "hint: --warmup 0 --iterations 3, or more epochs",
        "failed",
    ),
    "never trains": ("import torch\nprint('well')", 6, "well\n", RUN_ALONE, None),
    "updates by hand for long": (
        f"{BY_HAND}while True:\n    loss().backward(); update([w.grad])",
        2,
        "",
        f"error: 500 backward passes, the last one at script.py:8, {NO_OPTIMIZER}\n{AFTER_LINE_8}",
        None,
    ),
    "updates by gradients": (
        f"{BY_HAND}for _ in range(3):\n    update(torch.autograd.grad(loss(), [w]))",
        2,
        "",
        f"error: script.py took gradients 3 times by torch.autograd.grad, {MADE_NONE}\n{MARK_STEPS}",
        None,
    ),
    "catches its end": (CATCHES, 0, "caught\ncaught\ncaught\n", BY_FORCE, "completed"),
    "cleans up": (
        f"{LOOP}import atexit\ntry:\n    list(train(40))\nfinally:\n    print('cleaned up')",
        0,
        "cleaned up\n",
        "",
        "completed",
    ),
}


@in_a_copy
@pytest.mark.parametrize("name", ENDS)
def test_every_script_keeps_its_own_end(name: str, tmp_path: Path) -> None:
    text, code, printed, last_line, status = ENDS[name]
    script = tmp_path / "script.py"
    script.write_text(text)
    ran = measured(tmp_path / "run", script, options=("--warmup", "2", "--iterations", "5"))
    assert (ran.code, ran.out) == (code, printed), ran.err
    assert ran.err.rstrip("\n").endswith(last_line.format(name="script.py", folder=ran.folder))
    assert (ran.record and ran.record["status"]) == status
    if "raise" in text:
        assert "Traceback (most recent call last):\n  File" in ran.err
        assert "workload/script" not in ran.err, "the traceback is the script's alone"


@in_a_copy
def test_a_refusal_is_said_once_and_a_script_that_goes_on_ends_by_itself(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"{BY_HAND}for _ in range(700):\n    loss().backward(); update([w.grad])\nprint('done')")
    ran = measured(tmp_path / "run", script, options=("--then", "continue"))
    assert (ran.code, ran.out) == (2, "done\n"), ran.err
    assert ran.err.count("error: 500 backward passes") == 1


# Two phases of a script: their optimizers and steps, how the sentence on the measured one begins, and the note.
# Phases of a script: optimizer, its parameters, steps; how the sentence on the measured one begins, and the note.
PHASES = {
    "head, then all": (
        (("SGD", "model[1].parameters()", 12), ("SGD", "model.parameters()", 20)),
        "1 backward pass and 1 SGD step, 4 samples",
        "the script's longest phase is measured, 20 steps; other phases: 12 steps of 1 backward pass and 1 SGD step",
    ),
    "an optimizer an epoch": (
        (("Adam", "model.parameters()", 6),) * 5,
        "1 backward pass and 1 Adam step, 4 samples",
        None,
    ),
}


@in_a_copy
@pytest.mark.parametrize("name", PHASES)
def test_the_longest_phase_is_measured(name: str, tmp_path: Path) -> None:
    phases, step, note = PHASES[name]
    script = tmp_path / "script.py"
    lines = ["model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))"]
    for kind, parameters, steps in phases:
        lines += [f"optimizer = torch.optim.{kind}({parameters}, 0.01)", f"list(train({steps}))"]
    script.write_text("\n".join([LOOP, *lines]))
    ran = measured(tmp_path / "run", script, options=("--warmup", "1", "--iterations", "50"))
    assert ran.record is not None, ran.err
    assert ran.folder is not None
    assert (ran.code, ran.record["status"]) == (0, "completed")
    assert ran.record["spec"]["script"]["step"].startswith(f"a step = {step}")
    assert [known for known in ran.record["notes"] if "phase" in known] == ([note] if note else [])
    assert ran.record["timing"]["step_s"]["n"] == len(bundle.read(ran.folder).steps()) - 1
    assert {path.name for path in ran.folder.iterdir()} == {file.name for file in bundle.read(ran.folder).files} | {
        "MANIFEST.json"
    }


CEILINGS = """
import json, subprocess, time
run = subprocess.run
def fake(command, **more):
    if 'ceilings' not in command:
        return run(command, **more)
    time.sleep(0.2)
    rates = {'fp32': {'median': 1e9}, 'bf16': {'median': 2e9}}
    return subprocess.CompletedProcess(command, 0, json.dumps({'method': ' '.join(command), 'flop_per_s': rates}))
subprocess.run = fake
"""


# In the form of fastai's: an optimizer that is none of torch.optim.
OTHER_OPTIMIZER = """
import torch
class Optimizer:
    def __init__(self, parameters): self.param_groups = [{"params": list(parameters)}]
    def step(self):
        with torch.no_grad():
            for p in self.param_groups[0]["params"]: p -= 0.1 * p.grad
"""


SMALLER_LATER = """
import torch
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
batches = [list(range(8))] * 6 + [list(range(4))] * 40
for (x,) in DataLoader(TensorDataset(torch.ones(8, 4)), batch_sampler=batches):
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@in_a_copy
def test_steps_that_are_smaller_than_the_first_are_measured_all_the_same(tmp_path: Path) -> None:
    """No later step has as many samples as the first ones: counting gives up after some steps."""
    script = tmp_path / "train.py"
    script.write_text(SMALLER_LATER)
    ran = measured(tmp_path / "run", script, options=("--warmup", "2", "--iterations", "5"))
    assert ran.record is not None, ran.err
    assert (ran.code, ran.record["timing"]["step_s"]["n"]) == (0, 5)


@in_a_copy
def test_the_steps_of_an_optimizer_that_is_not_of_torch(tmp_path: Path) -> None:
    (tmp_path / "fastai").mkdir()
    (tmp_path / "fastai/__init__.py").touch()
    (tmp_path / "fastai/optimizer.py").write_text(OTHER_OPTIMIZER)
    script = tmp_path / "script.py"
    own = "from fastai.optimizer import Optimizer\noptimizer = Optimizer(model.parameters())"
    script.write_text(f"{LOOP}{own}\noptimizer.zero_grad = model.zero_grad\nlist(train(30))")
    ran = measured(tmp_path / "run", script, options=("--warmup", "2", "--iterations", "5"))
    assert ran.code == 0, ran.err
    assert ran.record is not None
    assert ran.record["spec"]["script"]["step"].startswith("a step = 1 backward pass and 1 Optimizer step, 4 samples")
    assert (ran.record["complexity"]["parameters"], ran.record["timing"]["step_s"]["n"]) == (10, 5)


@in_a_copy
def test_step_in_two_precisions_is_compared_with_ceilings_that_are_measured_before_the_steps(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    in_bf16 = "with torch.autocast('cpu', torch.bfloat16): model(x); model(x); loss = model(x).float()"
    text = f"{CEILINGS}{LOOP}list(train(30))".replace("model(x).sum()", "(model(x) + loss).sum()")
    script.write_text(text.replace("        (model(x)", f"        {in_bf16}\n        (model(x)"))
    ran = measured(tmp_path / "run", script, options=("--warmup", "2", "--iterations", "5", "--ceilings"))
    assert ran.record is not None, ran.err
    by_precision, timing = ran.record["complexity"]["flop_by_precision"], ran.record["timing"]
    assert by_precision["bf16"] > by_precision["fp32"] > 0
    assert ran.record["ceilings"]["method"].endswith("--precision=bf16 --precision=fp32")
    took_s = by_precision["fp32"] / 1e9 + by_precision["bf16"] / 2e9
    assert ran.record["complexity"]["theoretical_step_s"] == pytest.approx(took_s)
    assert "FLOP by precision: bf16 67 %, fp32 33 %; each is compared with its own ceiling" in ran.record["notes"]
    phases = timing["phases"]
    assert list(phases)[2:] == ["environment", "ceilings", "setup", "warmup", "measured", "finish", "end"]
    # The ceilings are no part of the setup.
    assert phases["setup"] - phases["ceilings"] >= 0.2
    assert timing["setup_s"] < phases["warmup"] - 0.2

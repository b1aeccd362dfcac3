"""The profile of a script: it runs again, and the steps after its warm-up are profiled."""

import csv
import gzip
import json
import os
import signal
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.workload.conftest import in_a_copy
from tests.workload.profile.fake_profiler import FakeProfiler
from tests.workload.script_stage import SCRIPTS, Ran, as_a_user_does, run, trainer
from workload import cli
from workload.contract import bundle
from workload.contract import script_words as scripts
from workload.contract.errors import ExitCode, RooflaunchError
from workload.contract.record import Record, ScriptFacts, Spec, Status, Timing
from workload.contract.spec import Device, Precision, Profile
from workload.measure.recorder import Aside, StepPart, StepPhase
from workload.profile import profiled_script, profiled_step, script_tools
from workload.profile.command import Mode
from workload.profile.script_tools import Count, Counters, ProfiledScript, ProfiledSteps, Request
from workload.steps import program
from workload.steps.program import Program

USUAL = (Aside.OTHER, StepPart.DATA, StepPart.FORWARD, StepPart.BACKWARD, StepPart.OPTIMIZER)


# --- with torch.profiler


def profiled_run(folder: Path, script: Path, *words: str, steps: int = 1, warmup: int = 1) -> Ran:
    """Run a script as a profile pass does."""
    report = folder / "answer.json"
    options = ["--mode", "trace", "--report", str(report), "--owner", str(os.getpid()), "--steps", str(steps)]
    options += ["--warmup-steps", str(warmup), "--precision", "fp32"]
    return run(partial(as_a_user_does, ["profiled-script", *options, "--", str(script), *words]), folder)


def calls_of(folder: Path) -> dict[str, int]:
    with (folder / "kernels.csv").open() as table:
        return {row["name"]: int(row["calls"]) for row in csv.DictReader(table)}


@in_a_copy
def test_operators_are_those_of_whole_steps(tmp_path: Path) -> None:
    ran = profiled_run(tmp_path, SCRIPTS / "accumulation.py", steps=2)
    assert ran.code == 0, ran.err
    answer = json.loads((tmp_path / "answer.json").read_text())
    assert (answer["steps"], answer["rows"], len(answer["step_s"])) == (2, "operators", 2)
    assert answer["step_without_profiler_s"] > 0
    calls = calls_of(tmp_path)
    # Two steps of four backward passes over two layers; the first layer's input needs no gradient.
    assert (calls["aten::addmm"], calls["aten::mm"]) == (2 * 4 * 2, 2 * 4 * 3)
    with gzip.open(tmp_path / "trace.json.gz") as trace:
        names = {event.get("name") for event in json.load(trace)["traceEvents"]}
    assert {"step 0", "step 1"} <= names


GAPS = """
import sys, torch
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
data = DataLoader(TensorDataset(torch.ones(12, 4)), 4)
for epoch in range(20):
    for (x,) in data:
        {begin}
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        {after}
    {between}
"""
TWO_PROFILERS = (
    "error: the script uses torch.profiler itself, and two profilers cannot run at once\nhint: switch the "
    "script's own profiler off for this run\n"
)
# script: what it does beside its steps; products of matrices that are seen in two steps, exit code, end of stderr
PROFILED: dict[str, tuple[dict[str, str], int, int, str]] = {
    "validates between epochs": ({"between": "[model(x) for (x,) in data for _ in range(5)]"}, 2, 0, ""),
    "marks its steps and saves": (
        {
            "begin": "import rooflaunch; model(x); block = rooflaunch.step(); block.__enter__()",
            "after": "block.__exit__(None, None, None)",
            "between": "torch.save(model.state_dict(), 'model.pt')",
        },
        2,
        0,
        "",
    ),
    "ends too soon": (
        {"after": "if epoch == 2: sys.exit()"},
        0,
        6,
        "hint: fewer --profile-steps, or a script that trains longer\n",
    ),
    "fails when it runs again": (
        {"after": "if epoch == 2: raise FileExistsError('output/')"},
        0,
        6,
        "hint: the script's output is in the log of the profile\n",
    ),
    "profiles itself": (
        {"begin": "block = torch.profiler.profile(); block.__enter__()", "after": "block.__exit__(None, None, None)"},
        0,
        4,
        TWO_PROFILERS,
    ),
    "has profiled itself before": (
        {"begin": "block = globals().get('block') or torch.autograd.profiler.profile().__enter__()"},
        0,
        4,
        TWO_PROFILERS,
    ),
}


@in_a_copy
@pytest.mark.parametrize("name", PROFILED)
def test_what_is_no_step_is_not_profiled(name: str, tmp_path: Path) -> None:
    parts, products, code, message = PROFILED[name]
    script = tmp_path / "script.py"
    script.write_text(GAPS.format(**{"begin": "", "after": "", "between": "", **parts}))
    ran = profiled_run(tmp_path, script, steps=2, warmup=2)
    assert ran.code == code, ran.err
    assert ran.err.endswith(message)
    if not code:
        assert calls_of(tmp_path)["aten::addmm"] == products
    else:
        assert not (tmp_path / "answer.json").exists()


@in_a_copy
def test_a_script_that_does_not_end_has_no_profile(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    loop = GAPS.format(begin="", after="", between="").replace("for epoch in range(20):", "def train():")
    script.write_text(f"{loop}\nfor _ in range(20):\n    try: train()\n    except SystemExit: input_waits()\n"
                      .replace("input_waits()", "import time; time.sleep(60)"))  # fmt: skip
    ran = profiled_run(tmp_path, script)
    assert ran.code == 6, ran.err
    assert "error: script.py ignores the request to exit" in ran.err
    assert "hint: let SystemExit through, as `except Exception:` does" in ran.err


@pytest.mark.world
@pytest.mark.night(part="scripts")
def test_repeats_and_a_profile_from_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(GAPS.format(begin="", after="", between="print(epoch, sys.argv[2], flush=True)"))
    words = ["script", "--no-ceilings", "--warmup", "1", "--iterations", "3", "--repeats", "2", "--profile", "torch"]
    token = "hf_" + 24 * "x"
    with trainer(tmp_path, *words, "--profile-steps", "2", "--", "train.py", "--token", token) as process:
        output, error = process.communicate()
    assert process.returncode == 0, error
    assert set(output.splitlines()) == {f"{epoch} {token}" for epoch in range(3)}, "the script's own output alone"
    assert error.startswith(
        "script     train.py runs from its start 2 times to be measured and once more for the profile: it writes and"
        " sends everything 3 times\nrepeat 1 of 2\n"
    )
    first, second = sorted((bundle.read(path) for path in (tmp_path / "results").iterdir()),
                           key=lambda read: read.record.repeat.index or 0)  # fmt: skip
    assert first.record.profile.status == "completed"
    assert (first.record.spec.profile_steps, first.record.profile.steps) == (2, 2)
    assert second.record.profile.reason == "the profile is in the bundle of repeat 1 of 2"
    for path in first.path.rglob("*"):
        assert not path.is_file() or token.encode() not in path.read_bytes(), path


@pytest.mark.world
@pytest.mark.night(part="kills")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_series_and_its_script(number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        GAPS.format(begin="print(epoch, flush=True)", after="", between="import time; time.sleep(0.1)").replace(
            "range(20)", "range(1000)"
        )
    )
    words = ["script", "--no-ceilings", "--warmup", "1", "--iterations", "5000", "--repeats", "2", "--", "train.py"]
    with trainer(tmp_path, *words) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line == "10\n":
                break
        process.send_signal(number)
        _, error = process.communicate()
    assert process.returncode == ExitCode.INTERRUPTED
    assert "Traceback" not in error
    assert "repeat 1 of 2 ended" not in error
    [folder] = (tmp_path / "results").iterdir()
    assert bundle.read(folder).record.status is Status.INTERRUPTED


# --- which script


def script_bundle(folder: Path, argv: tuple[str, ...], sha256: str | None = None) -> Path:
    folder.mkdir()
    script = folder.parent / "train.py"
    files = {"train.py": sha256 or program.sha256_of(script)}
    shown = scripts.redacted(argv)
    record = Record(
        run_id=folder.name,
        status=Status.COMPLETED,
        spec=Spec(
            model="train.py",
            device="cpu",
            batch_size=4,
            precision="fp64",
            optimizer="Adadelta",
            warmup=1,
            iterations=3,
            script=ScriptFacts(argv=shown, command=" ".join(shown), files=files),
        ),
        timing=Timing(),
    )
    bundle.write_record(folder, record)
    (folder / bundle.LOG).write_text("")
    bundle.seal(folder)
    return folder


# arguments of the bundle's script, its hash, what is asked
REFUSED = {
    "changed": ("train.py --lr 1", "0" * 64, "--profile torch"),
    "elsewhere": ("src/train.py --lr 1", None, "--profile torch"),
    "a secret": ("train.py --token 12345", None, "--profile torch"),
    "other arguments": ("train.py --lr 1", None, "--profile torch -- train.py --lr 2"),
    "data elsewhere": ("train.py --root {data}", None, "--profile torch"),
    "further passes": ("train.py --lr 1", None, "--profile ncu --profile-step-bytes"),
    "no profile": ("train.py --lr 1", None, ""),
}


def test_a_profile_belongs_to_its_script(
    tmp_path: Path,
    golden: Callable[[str, str], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = ""
    for name, (argv, sha256, words) in REFUSED.items():
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        Path("train.py").write_text("import torch\n")
        script_bundle(Path.cwd() / "run", tuple(argv.split()), sha256)
        assert cli.main(["profile", "run", *words.split()]) == ExitCode.USAGE
        said += f"## {name}\n{capsys.readouterr().err}"
    golden("refused_script_profiles.txt", said)


def test_a_script_may_be_said_again_with_its_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import torch\n")
    given = ("train.py", "--token", "12345", "--data", str(Path.home() / "data"))
    read = bundle.read(script_bundle(tmp_path / "run", given))
    assert profiled_script.words_of(read, given, Profile.TORCH) == given
    spec = profiled_script.spec_of(read)
    assert (spec.model, spec.device, spec.precision, spec.warmup) == ("train.py", "cpu", "fp32", 1)


def test_paths_in_the_users_folder_are_found_again() -> None:
    home = str(Path.home())
    for word in (f"{home}/data", f"--data={home}/data", "a~b", "~user/x"):
        assert scripts.with_home(scripts.without_home(word)) == word


# --- on a GPU, as far as it shows without one


def test_a_profile_takes_no_more_steps_than_requested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A measurement on a GPU adds steps until 3 s have passed; a trace would count them as steps of the profile."""
    monkeypatch.setattr(torch.profiler.profile, "start", torch.profiler.profile.start)
    program = Program(words=("t.py",), module=None, path=tmp_path / "t.py", arguments=(), folder=tmp_path)
    profiled = ProfiledScript(request(Mode.TRACE, steps=1), program)
    assert profiled.session._limits.filled(Device.CUDA) == (2, 1, 0.0)


def request(mode: Mode, *, steps: int) -> Request:
    return Request(
        mode=mode, report=Path("r.json"), steps=steps, warmup=2, precision=Precision.FP32, began_s=0.0
    )  # fmt: skip


class FakeSession:
    def __init__(self) -> None:
        self.skipped: Counter[StepPhase] = Counter()


def take(
    receiver: ProfiledSteps, *parts: StepPart | Aside, is_step: bool = True, skips: int = 0, session: Any = None
) -> None:
    receiver.begin()
    for part in parts:
        receiver.mark(part)
    if session:
        session.skipped[receiver.phase] += skips
    receiver.end(4, is_step=is_step)


def warmed_up(tool: script_tools.Tool, session: Any) -> ProfiledSteps:
    receiver = ProfiledSteps(tool, Device.CPU, session)
    receiver.enter(StepPhase.WARMUP)
    for _ in range(2):
        take(receiver, *USUAL)
    take(receiver, StepPart.FORWARD, is_step=False)
    receiver.enter(StepPhase.MEASURED)
    return receiver


def test_ranges_name_the_parts_of_the_usual_step(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, tool = FakeProfiler(monkeypatch), Counters(request(Mode.CALIBRATED, steps=2))
    receiver = warmed_up(tool, FakeSession())
    assert gpu.calls == [], "nothing of the warm-up"
    for _ in range(2):
        assert receiver.wants_more
        take(receiver, *USUAL)
    assert not receiver.wants_more
    ranges = [f"step {n} {part}" for n in range(2) for part in ("forward", "data", "forward", "backward", "optimizer")]
    ranges_and_ends = [call for name in ranges for call in (name, "-")]
    calibration = ["calibration fp32", "product", "-"]
    assert gpu.calls == ["synchronize", "start", *calibration, *ranges_and_ends, "synchronize", "stop"]
    # The first comes after an irregular step, which no warm-up of as many steps ends with.
    assert tool.answer() == {"steps": 2, "skipped_steps": 1, "warmup_steps": 2}


@pytest.mark.parametrize(
    ("parts", "is_step", "skips"),
    [
        (USUAL, True, 1),
        (USUAL, False, 0),
        ((StepPart.DATA, *USUAL), True, 0),
        ((Aside.CHECKPOINT, *USUAL), True, 0),
    ],
    ids=["the optimizer was skipped", "no step", "a batch more", "a checkpoint"],
)
def test_a_step_that_is_no_whole_one_is_said_to_be(
    parts: tuple[StepPart | Aside, ...], is_step: bool, skips: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeProfiler(monkeypatch)
    session, tool = FakeSession(), Counters(request(Mode.STEPS, steps=1))
    receiver = warmed_up(tool, session)
    receiver._is_behind_gap = False
    take(receiver, *parts, is_step=is_step, skips=skips, session=session)
    assert tool.answer()["skipped_steps"] == 1


def test_counting_says_after_which_steps_whole_ones_come(monkeypatch: pytest.MonkeyPatch) -> None:
    tool, kernels = Count(request(Mode.COUNT, steps=3)), iter([None, 60])
    FakeProfiler(monkeypatch)
    monkeypatch.setattr(profiled_step, "kernels_in", lambda _: next(kernels))
    monkeypatch.setattr(script_tools, "_Profiler", lambda **_: SimpleNamespace(start=lambda: None, stop=lambda: None))
    receiver = warmed_up(tool, FakeSession())
    take(receiver, *USUAL)  # step 2, behind a gap
    take(receiver, *USUAL)
    take(receiver, *USUAL, StepPart.DATA)
    take(receiver, *USUAL)
    take(receiver, StepPart.FORWARD, is_step=False)
    for _ in range(5):
        take(receiver, *USUAL)
    assert not receiver.wants_more
    answer = tool.answer()
    # Steps 2 to 5, a gap, step 6 behind it, and 7, 8 and 9 in a row.
    assert (answer["warmup_steps"], answer["kernels_per_step"], answer["calibration_kernels"]) == (7, None, 1)


def test_a_profile_is_given_up_where_no_step_is_like_another(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeProfiler(monkeypatch)
    receiver = warmed_up(Count(request(Mode.COUNT, steps=1)), FakeSession())
    for _ in range(50):
        take(receiver, StepPart.FORWARD, is_step=False)
    with pytest.raises(RooflaunchError, match="51 steps after the warm-up were not complete and equal"):
        take(receiver, StepPart.FORWARD, is_step=False)

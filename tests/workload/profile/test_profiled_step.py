"""The profiled process without a GPU: its ranges, its answers, and its end with the process that started it."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch

from tests.workload.profile.fake_profiler import FakeProfiler
from workload.contract.errors import ExitCode
from workload.contract.operating_system import is_alive
from workload.contract.spec import Device, Precision, RunSpec
from workload.contract.vocabulary import calibration_of, calibration_range, step_of
from workload.measure.recorder import StepPart
from workload.profile import ncu_pass, profiled_step

ROOT = Path(__file__).parents[3]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeProfiler:
    return FakeProfiler(monkeypatch)


@pytest.mark.parametrize("passes", [1, 2])
def test_every_part_of_a_step_has_its_range(passes: int, gpu: FakeProfiler) -> None:
    marks = profiled_step._Marks(3, passes)
    parts = [*(StepPart.DATA, StepPart.FORWARD, StepPart.BACKWARD) * passes, StepPart.OPTIMIZER]
    for part in parts:
        assert gpu.calls[-1] == f"step 3 {part}", "open while the part runs"
        marks.passed(part)
    assert gpu.calls == [call for part in parts for call in (f"step 3 {part}", "-")]
    assert [step_of(name) for name in gpu.calls[::2]] == [(3, part) for part in parts]


def test_range_closes_with_an_error(gpu: FakeProfiler) -> None:
    with pytest.raises(ValueError, match="x"), profiled_step.process_range("calibration fp32"):
        raise ValueError("x")
    assert gpu.calls == ["calibration fp32", "-"]


def test_every_precision_is_calibrated_in_what_it_computes_in() -> None:
    assert set(profiled_step.PRODUCTS) == set(Precision)
    names = {
        precision: [profiled_step.TYPE_NAMES[each] for each in products]
        for precision, products in profiled_step.PRODUCTS.items()
    }
    assert names == {
        Precision.FP32: ["fp32"],
        Precision.TF32: ["tf32"],
        Precision.AMP: ["fp16", "fp32"],
        Precision.BF16: ["bf16", "fp32"],
    }
    for name in profiled_step.TYPE_NAMES.values():
        assert calibration_of(calibration_range(name)) == name


TINY = RunSpec(device=Device.CPU, image_size=32, batch_size=2, profile_steps=2).filled(Device.CPU, cpus=1)
PARTS = ("data", "forward", "backward", "optimizer")


@pytest.mark.parametrize("calibrate", [True, False])
def test_only_calibration_and_steps_are_profiled(calibrate: bool, gpu: FakeProfiler) -> None:
    with profiled_step._prepared(TINY, 1) as session:
        gpu.calls.clear()
        assert profiled_step._under_ncu(session, calibrate=calibrate) == {"steps": 2, "skipped_steps": 0}
    steps = [call for number in range(2) for part in PARTS for call in (f"step {number} {part}", "-")]
    calibration = ["calibration fp32", "product", "-"] if calibrate else []
    assert gpu.calls == ["synchronize", "start", *calibration, *steps, "synchronize", "stop"]


class FakeStep:
    """A training step; AMP skips the calls with the numbers `skips`, counted from 0."""

    def __init__(self, *skips: int) -> None:
        self.taken = self.skipped = 0
        self._skips = skips

    def __call__(self, _: object, mark: Callable[[StepPart], object]) -> None:
        for part in StepPart:
            mark(part)
        self.skipped += self.taken in self._skips
        self.taken += 1


def session_of(step: FakeStep) -> profiled_step._Session:
    return profiled_step._Session(TINY, iter(()), step)  # type: ignore[arg-type]


@pytest.mark.usefixtures("gpu")
def test_steps_that_amp_skips_under_ncu_are_told() -> None:
    session = session_of(FakeStep(0, 2))
    session.train(1)
    assert profiled_step._under_ncu(session, calibrate=False) == {"steps": 2, "skipped_steps": 1}


@pytest.mark.parametrize(
    ("skips", "trained"),
    [
        ((), 1),
        ((0,), 1 + 20 + 1),
        ((0, 21, 42), 2 * (1 + 20) + 1),  # the third is kept, whatever it is
    ],
)
def test_what_amp_skipped_is_taken_again(skips: tuple[int, ...], trained: int) -> None:
    step = FakeStep(*skips)
    session = session_of(step)
    session.without_skips(lambda: session.train(1))
    assert step.taken == trained


@pytest.mark.usefixtures("gpu")
def test_count_says_what_the_pass_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    with profiled_step._prepared(TINY, 1) as session:
        counts = iter([60, 1])
        monkeypatch.setattr(profiled_step, "kernels_of", lambda work: (work(), next(counts))[1])
        found = profiled_step._count(session)
    assert found.pop("step_s") > 0
    assert found == {
        "device": "NVIDIA L4",
        "compute_capability": "8.9",
        "torch": torch.__version__,
        "kernels_per_step": 60,
        "calibration_kernels": 1,
        "calibration_flop": {"fp32": 2 * 2048**3},
    }
    wanted = {field.name for field in fields(ncu_pass._Counted)} - {"step_s", "start_s", "warmup_steps"}
    assert set(found) == wanted, "the other side reads exactly this"


def test_data_comes_from_the_profiled_process_itself(images: Path) -> None:
    spec = replace(TINY, dataset=str(images), workers=4)
    with profiled_step._prepared(spec, 1) as session:
        assert session.spec.workers == 0
        assert session.timed_s(2) > 0


@pytest.mark.slow
@pytest.mark.world
def test_process_ends_with_its_owner(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", "pass"])
    gone.wait()
    assert not is_alive(gone.pid)
    words = ["--mode", "trace", "--report", str(tmp_path / "r.json"), "--owner", str(gone.pid)]
    tiny = ["--device", "cpu", "--image-size", "32", "--batch-size", "2", "--profile-steps", "100000"]
    done = subprocess.run(
        [sys.executable, "-m", "workload", "profiled-step", *words, *tiny],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        cwd=ROOT,
        timeout=60,
        check=False,
    )
    assert done.returncode == ExitCode.INTERRUPTED
    assert not (tmp_path / "r.json").exists()

from pathlib import Path
from typing import Any

import pytest

import analysis
from analysis.importing import UserFacts, import_file
from analysis.readers import training_logs
from tests.analysis.readers.logs.trainer_logs import (
    megatron,
    nanogpt,
    pytorch_examples,
    timm,
    torchvision,
    trainer_state,
)
from workload.contract import bundle
from workload.contract.errors import UsageError

SUM = "the wall time is the sum of the log's times of iterations, without other work between them"
EVERY_10 = "a row every 10 iterations: the other iterations count in the wall time, but not as steps"


def imported(tmp_path: Path, text: str, **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run.json and the row of `runs`."""
    path = tmp_path / "train.log"
    path.write_text(text)
    (folder,) = import_file(path, UserFacts(**options), output=tmp_path / "results")
    loaded = analysis.load(tmp_path / "results")
    assert loaded.problems == ()
    return dict(bundle.read(folder).document), {str(name): value for name, value in loaded.runs.iloc[0].items()}


@pytest.mark.parametrize("first_index", [0, 1])
def test_pytorch_examples(tmp_path: Path, first_index: int) -> None:
    text = pytorch_examples(first_index=first_index)
    record, run = imported(tmp_path, text, model="resnet50", batch_size=64)
    # After the first printed iteration: 90 of the first epoch, at 0.25 s; 91 of the second, one of them of 2 s.
    assert run["images"] == 181 * 64
    assert run["measured_s"] == pytest.approx(90 * 0.25 + 2.0 + 90 * 0.25, abs=91 * 0.001)
    assert record["notes"] == [SUM, EVERY_10]
    # The wait for data, 0.01 s, is inside the time.
    assert run["step_median_s"] == pytest.approx(0.24)
    assert record["timing"].get("explained_fraction") is None


def test_every_iteration_of_pytorch_examples(tmp_path: Path) -> None:
    record, run = imported(tmp_path, pytorch_examples(every=1, epochs=1), model="resnet50", batch_size=64)
    assert record["notes"] == [SUM]
    assert run["images"] == 99 * 64
    assert run["measured_s"] == pytest.approx(99 * 0.25, abs=0.051)
    assert run["explained_fraction"] == pytest.approx(1, abs=0.01)


def test_rounding_of_few_decimals_is_told(tmp_path: Path) -> None:
    text = "\n".join(f"Epoch: [0][{index * 10}/5000]\tTime 0.012 (0.012)\tLoss nan (nan)" for index in range(1, 400))
    record, _ = imported(tmp_path, text, model="resnet50", batch_size=64)
    # 3,980 iterations of 12 ms; the last mean may be 0.5 ms off, 3,990 times.
    assert "the log rounds its times: its wall time of 47.8 s may be 2 s off" in record["notes"]


def test_timm_says_its_batch(tmp_path: Path) -> None:
    record, run = imported(tmp_path, timm())
    assert (run["model"], run["batch_size"]) == ("resnet50", 128)
    assert run["images"] == 500 * 128
    assert run["measured_s"] == pytest.approx(500 * 0.32, abs=0.26)
    assert record["imported"]["claimed_images_per_s"] == pytest.approx((10 * 400 + 42.67) / 11)


@pytest.mark.parametrize("batch_size", [1, 32, 100, 1024])
def test_batch_from_rate_and_time(batch_size: int) -> None:
    table = training_logs.read(timm(batch_size=batch_size))
    assert table is not None
    assert table.labels["batch_size"] == str(batch_size)


def test_torchvision(tmp_path: Path) -> None:
    record, run = imported(tmp_path, torchvision())
    assert (run["model"], run["batch_size"]) == ("resnet50", 64)
    # From iteration 1 to 51 of the first epoch, and 51 iterations of the second, the first of them of 2 s.
    assert run["images"] == 101 * 64
    assert run["measured_s"] == pytest.approx(50 * 0.25 + 2.0 + 50 * 0.25, abs=0.01)
    assert run["step_median_s"] == pytest.approx(0.2), "img/s leaves out the wait for data"
    assert record["notes"] == [SUM, EVERY_10]


def test_torchvision_whose_means_leave_gaps(tmp_path: Path) -> None:
    record, _ = imported(tmp_path, torchvision(every=25))
    assert record["timing"].get("images_per_s") is None
    assert "the file has no time stamps: wall time and throughput are unknown" in record["notes"]


@pytest.mark.parametrize(("resumed", "iterations"), [(False, 90), (True, 110)])
def test_megatron(tmp_path: Path, resumed: bool, iterations: int) -> None:
    record, run = imported(tmp_path, megatron(resumed=resumed), model="gpt")
    assert (run["unit"], run["batch_size"], run["images"]) == ("samples", 32, 32 * iterations)
    assert run["images_per_s"] == pytest.approx(64, rel=2e-3)
    assert record["notes"] == [SUM, EVERY_10]


@pytest.mark.parametrize(("every", "rate"), [(1, 8192.0), (10, None)])
def test_nanogpt(tmp_path: Path, every: int, rate: float | None) -> None:
    record, run = imported(tmp_path, nanogpt(every=every), model="gpt2")
    assert (run["unit"], run["batch_size"], run["step_median_s"]) == ("tokens", 16384, 2.0)
    assert record["timing"].get("images_per_s") == (rate and pytest.approx(rate))


def test_state_of_hugging_faces_trainer(tmp_path: Path) -> None:
    record, run = imported(tmp_path, trainer_state(), model="bert")
    # 79.9 x 100 / 500 samples a step: the last batch of the epoch was smaller.
    assert (run["unit"], run["batch_size"], run["images_per_s"]) == ("samples", 16, pytest.approx(79.9))
    assert "with warm-up, evaluation and saving" in record["notes"][0]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (trainer_state(train_runtime=None), "the state of Hugging Face's Trainer before the end of its training"),
        ('DLLL {"timestamp": "1600180153.0", "type": "LOG"}\n', "a log of NVIDIA's dllogger or of MLPerf"),
        ("DLL 2020-09-15 14:29:13 - Epoch: 0 Iteration: 1 train.total_ips : 100 img/s\n", "a log of NVIDIA's dllogger"),
        ('0: :::MLLOG {"key": "epoch_start"}\n', "a log of NVIDIA's dllogger or of MLPerf"),
        ("[run 3] started\nEpoch 1: loss 3\n", "a training log without the time of an iteration"),
        ("| NVIDIA-SMI 535 |\nEpoch 1: loss 3\n", "a training log without the time of an iteration"),
    ],
)
def test_a_log_that_is_not_read_is_named(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(UsageError, match=f"looks like {reason}"):
        imported(tmp_path, text, model="m", batch_size=1)


def test_benchmark_tables_of_timm(tmp_path: Path) -> None:
    header = "model,train_samples_per_sec,train_step_time,train_batch_size,train_img_size,param_count\n"
    record, run = imported(tmp_path, header + "resnet50,800.0,320.0,256,176,25.56\n", precision="amp")
    assert (run["batch_size"], run["image_size"], run["images_per_s"]) == (256, 176, 800)
    assert record["spec"]["script"] is None
    with pytest.raises(UsageError, match="has rates of inference, and a run trains"):
        imported(tmp_path, header.replace("train_", "infer_") + "resnet50,800.0,320.0,256,176,25.56\n")


@pytest.mark.parametrize(
    "text", ["", "hello", "Epoch 1: loss 0.3", "Train: 0 [0/3] Loss: 1", '{"train_runtime": []}', "iter 3: loss 2"]
)
def test_other_texts_are_no_training_logs(text: str) -> None:
    assert training_logs.read(text) is None

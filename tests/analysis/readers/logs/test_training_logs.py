from pathlib import Path
from typing import Any

import pytest

import analysis
from analysis.importing import UserFacts, import_file
from analysis.readers.logs import training_logs
from analysis.readers.tables import RunFigures
from tests.analysis.readers.logs.trainer_logs import dllogger_json, dllogger_text, mlperf, pytorch_examples, timm
from workload.contract import bundle

MEANS = "the wall time comes from the log's running means, without validation and other work between epochs"
EVERY_10 = "a row every 10 iterations: the other iterations count in the wall time, but not as steps"


def imported(tmp_path: Path, text: str, **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run.json and the row of `runs`."""
    path = tmp_path / "train.log"
    path.write_text(text)
    (folder,) = import_file(path, UserFacts(**options), output=tmp_path / "results")
    loaded = analysis.load(tmp_path / "results")
    assert loaded.problems == ()
    assert "figures against steps" not in loaded.audit()["rule"].tolist()
    return dict(bundle.read(folder).document), {str(name): value for name, value in loaded.runs.iloc[0].items()}


@pytest.mark.parametrize("first_index", [0, 1])
def test_pytorch_examples(tmp_path: Path, first_index: int) -> None:
    text = pytorch_examples(first_index=first_index)
    record, run = imported(tmp_path, text, model="resnet50", batch_size=64)
    # After the first printed iteration: 90 of the first epoch, at 0.25 s; 91 of the second, one of them of 2 s.
    assert run["images"] == 181 * 64
    assert run["measured_s"] == pytest.approx(90 * 0.25 + 2.0 + 90 * 0.25, abs=91 * 0.001)
    assert record["notes"] == [MEANS, EVERY_10]
    # The wait for data, 0.01 s, is inside the time.
    assert run["step_median_s"] == pytest.approx(0.24)
    assert record["timing"].get("explained_fraction") is None


def test_every_iteration_of_pytorch_examples(tmp_path: Path) -> None:
    record, run = imported(tmp_path, pytorch_examples(every=1, epochs=1), model="resnet50", batch_size=64)
    assert record["notes"] == [MEANS]
    assert run["images"] == 99 * 64
    assert run["measured_s"] == pytest.approx(99 * 0.25, abs=0.051)
    assert run["explained_fraction"] == pytest.approx(1, abs=0.01)


def test_few_decimals_are_told(tmp_path: Path) -> None:
    text = "\n".join(f"Epoch: [0][{index * 10}/5000]\tTime 0.012 (0.012)\tLoss nan (nan)" for index in range(1, 400))
    record, _ = imported(tmp_path, text, model="resnet50", batch_size=64)
    # 3,980 iterations of 12 ms; the last mean may be 0.5 ms off, 3,990 times.
    assert "the log's times have 3 decimals: its wall time of 47.8 s may be 2 s off" in record["notes"]


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


def test_dllogger_json(tmp_path: Path) -> None:
    record, run = imported(tmp_path, dllogger_json())
    assert (run["model"], run["batch_size"], run["precision"]) == ("resnet50", 256, "amp")
    assert run["images_per_s"] == pytest.approx(256 * 39 / 7.8)
    assert run["step_median_s"] == pytest.approx(0.18)
    assert run["data_wait_fraction"] == pytest.approx(0.1)
    assert not record["environment"]["device"], "--gpu of these programs is a number of a process"
    assert record["notes"] == ["1 line without a training step (epoch, validation, summary) left out"]
    assert run["started_at"] is not None


def test_dllogger_text(tmp_path: Path) -> None:
    record, run = imported(tmp_path, dllogger_text(), model="resnet50", batch_size=256)
    assert run["images_per_s"] == pytest.approx(512.0)
    assert run["step_median_s"] == pytest.approx(0.5)
    assert record["notes"] == [
        "1 line without a training step (epoch, validation, summary) left out",
        "time stamps without a time zone: durations are known, but not when the run started",
    ]
    assert record["timing"]["started_at"] is None


def test_mlperf_is_a_run_without_steps(tmp_path: Path) -> None:
    record, run = imported(tmp_path, mlperf())
    assert (run["model"], run["batch_size"]) == ("resnet", 256)
    assert run["images_per_s"] == pytest.approx(1_281_167 / 500)
    assert (run["images"], run["measured_s"]) == (2 * 1_281_167, 1000)
    assert record["notes"] == ["images and time of 2 whole epochs, without evaluation"]
    assert len(analysis.load(tmp_path / "results").steps) == 0


def test_mlperf_without_epochs_has_the_rates_that_it_states() -> None:
    text = (
        ':::MLLOG {"key": "tracked_stats", "time_ms": 5, "value": {"throughput": 14214.5}, "metadata": {"step": 1}}\n'
    )
    log = training_logs.read(text)
    assert log is not None
    assert log.figures == RunFigures(images=None, wall_s=None, images_per_s=14214.5)
    assert log.remarks == ("the mean of 1 rates in the log; nothing in the log confirms them",)


@pytest.mark.parametrize("text", ["", "hello", "Epoch 1: loss 0.3", "Train: 0 [0/3] Loss: 1", "DLLL {", ":::MLLOG []"])
def test_other_texts_are_no_training_logs(text: str) -> None:
    assert training_logs.read(text) is None

"""Step times at the roofs against hand-computed values, and the command `analyze predict`."""

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.api import Results
from analysis.loading.configurations import UNNAMED
from analysis.roofline.roofs import PREDICTION_COLUMNS, find_gpus, predict
from tests.analysis.by_hand import results, run
from tests.analysis.in_process import Analyze
from tests.analysis.sentence_runs import Golden
from workload.contract import peaks
from workload.contract.errors import ExitCode, NothingToDoError, UsageError
from workload.contract.peaks import Gpu, OwnPeaks, PeakRow

# 0.1 s of the T4's 8.1 TFLOP/s, and 0.05 to 0.08 s of its 320 GB/s.
WORK: dict[str, Any] = {
    "train_flop_per_step": 8.1e11,
    "bytes_lower_per_step": 0.05 * 320e9,
    "bytes_upper_per_step": 0.08 * 320e9,
    "path": "/nowhere",
}


def row(made: Results, gpu: str = "t4") -> dict[str, Any]:
    (only,) = predict(made, [gpu]).to_dict("records")
    return {str(name): None if pd.isna(value) else value for name, value in only.items()}


@pytest.mark.parametrize(
    ("facts", "gpu", "low", "high"),
    [
        ({}, "t4", 0.1, 0.18),
        # 125 TFLOP/s and 900 GB/s: memory takes longer.
        ({"precision": "amp"}, "V100 SXM2", 16 / 900, 8.1e11 / 125e12 + 25.6 / 900),
        ({"precision": "tf32"}, "t4", 0.1, 0.18),
        # The power limit makes the compute roof an interval.
        (
            {"train_flop_per_step": 33.9e12, "bytes_lower_per_step": 0.0, "bytes_upper_per_step": 0.0},
            "rtx4080-laptop",
            1.0,
            33.9 / 20.0,
        ),
        # Operations that compute nothing do not count as unknown.
        ({"unattributed_share": 0.3, "uncounted_share": 0.05}, "t4", 0.1, 0.18),
    ],
)
def test_step_takes_the_longer_time_up_to_both_together(
    facts: dict[str, Any], gpu: str, low: float, high: float
) -> None:
    found = row(results(run(**{**WORK, **facts})), gpu)
    assert (found["predicted_roof_step_s_low"], found["predicted_roof_step_s_high"]) == pytest.approx((low, high))


# Facts of the run, and the GPU.
CASES: dict[str, tuple[dict[str, Any], str]] = {
    "it fits": ({"peak_memory_bytes": 15.9e9}, "t4"),
    "it does not fit": ({"peak_memory_bytes": 16.5e9}, "t4"),
    "it fits the larger of two": ({"peak_memory_bytes": 16.5e9}, "V100 SXM2"),
    # The memory of a process on a CPU says nothing about a GPU's.
    "memory of a CPU": ({"peak_memory_bytes": 16.5e9, "device_type": "cpu"}, "t4"),
    "run already": ({}, "l4"),
    "no units for tf32": ({"precision": "tf32"}, "t4"),
    "no precision": ({"precision": None}, "t4"),
    "several devices": ({"devices": 2.0}, "t4"),
    "no FLOP": ({"train_flop_per_step": np.nan}, "t4"),
    "no bytes": ({"bytes_upper_per_step": np.nan}, "t4"),
    "unknown operations": ({"unattributed_share": 0.06}, "t4"),
    "no units for bf16": ({"precision": "bf16"}, "t4"),
    "a run that failed": ({"status": "failed"}, "t4"),
}


def test_notes_and_reasons_for_no_prediction(golden: Golden) -> None:
    lines: list[str] = []
    for name, (facts, gpu) in CASES.items():
        try:
            said = str(row(results(run(**{**WORK, **facts})), gpu)["note"])
        except NothingToDoError as error:
            said = str(error)
        lines.append(f"{name}: {said}")
    golden("predictions.txt", "\n".join([*lines, ""]))


@pytest.mark.parametrize(
    ("label", "gpus"),
    [
        ("Tesla T4", ["T4"]),
        ("v100", ["V100 PCIe", "V100 SXM2"]),
        ("v100-pcie", ["V100 PCIe"]),
        ("a100", ["A100 40 GB", "A100 80 GB PCIe", "A100 80 GB SXM"]),
        ("rtx4080-laptop", ["RTX 4080 Laptop"]),
        ("mi300x", ["MI300X"]),
    ],
)
def test_a_short_name_means_every_variant(label: str, gpus: list[str]) -> None:
    assert [gpu.gpu for gpu in find_gpus([label])] == gpus


@pytest.mark.parametrize(("label", "nearest"), [("rtx3090", "did you mean rtx4090? "), ("", ""), ("M1 Max", "")])
def test_an_unknown_gpu(label: str, nearest: str) -> None:
    with pytest.raises(UsageError) as error:
        find_gpus(["t4", label])
    assert str(error.value) == f"the peaks of GPU '{label}' are unknown"
    assert error.value.hint.startswith(f"{nearest}known: T4, L4, ")


def test_a_gpu_of_the_user_needs_neither_memory_nor_fp32() -> None:
    row_ = PeakRow(precision="bf16", dense=True, tflop_per_s=100.0, source="mine")
    own = Gpu(
        gpu="Lab 1", names=("Lab",), memory_gb=(), sms=None, gb_per_s=1000, source="mine", note=None, peak=(row_,)
    )
    peaks.use(OwnPeaks(origin="peaks.toml", gpus=(own,)))
    try:
        found = row(results(run(precision="bf16", peak_memory_bytes=1e9, **WORK)), "lab")
    finally:
        peaks.use(None)
    assert (found["gpu"], found["peak_source"]) == ("Lab 1", "mine")
    assert found["predicted_roof_step_s_low"] == pytest.approx(16e-3)


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch, analyze: Analyze) -> Analyze:
    def call(*words: str, facts: Any = None) -> tuple[int, str, str]:
        monkeypatch.setattr("analysis.load", lambda *_, **__: results(run(**{**WORK, **(facts or {})})))
        return analyze("predict", "results", *words)

    return call


def test_data_has_no_measured_figure(on: Analyze) -> None:
    code, out, _ = on("--gpu", "t4", "--format", "json", facts={"device_busy_share": 0.5})
    assert code == ExitCode.DONE
    (found,) = json.loads(out)
    assert tuple(found) == PREDICTION_COLUMNS
    figures = {name for name, value in found.items() if isinstance(value, float)} - {*UNNAMED, "image_size"}
    assert all(name.startswith("predicted_") for name in figures)

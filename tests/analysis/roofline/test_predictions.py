"""Step times at the roofs against hand-computed values, and the command `analyze predict`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import analysis
from analysis.api import Results
from analysis.loading.configurations import UNNAMED
from analysis.roofline.predictions import COLUMNS, Tier, Work, find_gpus, predict, roof_step_s
from tests.analysis import in_process
from tests.analysis.by_hand import kernels, results, run
from tests.analysis.in_process import Analyze
from tests.analysis.readers.traces.kineto_traces import V100, annotation, document, gpu_trace, kernel, launch, operator
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
# With the FLOP that `launched` counts, apart from padding.
PROFILED = {**WORK, "train_flop_per_step": 1.6e10}


def row(made: Results, gpu: str = "t4") -> dict[str, Any]:
    (only,) = predict(made, [gpu]).to_dict("records")
    return {str(name): None if pd.isna(value) else value for name, value in only.items()}


def launched(**columns: Any) -> Any:
    """Three kernels on a T4: 1 ms by FLOP, 2 ms by bytes, and 1 ms of a backward pass."""
    return kernels("gemm", "copy", "wgrad").assign(
        **{
            "flop": [8.1e9, 0.0, 8.1e9],
            "flop_tensor": 0.0,
            "flop_fp64": 0.0,
            "dram_bytes": [0.0, 640e6, 1.0],
            "duration_s": 1e-3,
            "family": "GEMM",
            "flop_is_lower_bound": False,
            "range": "step 1 forward",
            **dict.fromkeys(("l2_bytes", "l1_bytes", "sm_percent", "memory_percent", "dram_percent"), np.nan),
            **columns,
        }
    )


# --- the time at the roofs


def test_totals_give_the_longer_time_and_both_times_together() -> None:
    work = Work.total(8.1e11, 0.05 * 320e9, 0.08 * 320e9)
    assert roof_step_s(work, find_gpus(["t4"])[0], "fp32") == pytest.approx((0.1, 0.18))
    # 125 TFLOP/s and 900 GB/s: memory takes longer.
    low, high = roof_step_s(work, find_gpus(["V100 SXM2"])[0], "amp")
    assert (low, high) == pytest.approx((16 / 900, 8.1e11 / 125e12 + 25.6 / 900))


def test_launches_take_their_longer_time_each() -> None:
    made = results(run(kernels=launched(), **PROFILED))
    found = row(made)
    assert found["tier"] == Tier.KERNELS
    assert found["predicted_roof_step_s_low"] == found["predicted_roof_step_s_high"] == pytest.approx(4e-3)


def test_tensor_operations_of_a_profile_have_the_peak_of_their_precision() -> None:
    # 65 and 8.1 TFLOP/s on a T4: 1 ms of tensor operations, and 0.5 ms of others, in two kernels.
    flop, tensor = [69.05e9, 0.0, 69.05e9], [65e9, 0.0, 65e9]
    made = results(run(precision="amp", kernels=launched(flop=flop, flop_tensor=tensor), **PROFILED))
    assert row(made)["predicted_roof_step_s_low"] == pytest.approx(1.5e-3 * 2 + 2e-3)
    # A profile in fp32 with tensor operations used TF32, and a T4 computes these in fp32.
    made = results(run(kernels=launched(flop=flop, flop_tensor=tensor), **PROFILED))
    assert row(made)["predicted_roof_step_s_low"] == pytest.approx(69.05e9 / 8.1e12 * 2 + 2e-3)


def test_a_step_in_tf32_is_predicted_in_fp32_on_a_gpu_without_tf32() -> None:
    fp32, tf32 = (row(results(run(precision=precision, **WORK))) for precision in ("fp32", "tf32"))
    assert tf32["predicted_roof_step_s_low"] == fp32["predicted_roof_step_s_low"]
    assert "T4 has no units for tf32 and computes in fp32" in tf32["note"]


def test_the_power_limit_makes_the_compute_roof_an_interval() -> None:
    (laptop,) = find_gpus(["rtx4080-laptop"])
    low, high = roof_step_s(Work.total(33.9e12, 0.0, 0.0), laptop, "fp32")
    assert (low, high) == pytest.approx((1.0, 33.9 / 20.0))


def test_the_operators_of_a_trace(tmp_path: Path) -> None:
    events = [
        annotation("ProfilerStep#0", 0, 1e6),
        operator("aten::mm", 10, 20, [[8000, 8000], [8000, 7000]], ["float", "float"], number=1),
        launch(100, 12),
        kernel("volta_sgemm_128x128_nn", 50, 7e5, 100),
    ]
    content = document(events, deviceProperties=[V100])
    in_process.imported(tmp_path, content, name="t.json", model="small", batch_size=4, precision="fp32")
    found = row(analysis.load(tmp_path / "results"))
    assert found["tier"] == Tier.OPERATORS
    compute_s, memory_s = 2 * 8000 * 8000 * 7000 / 8.1e12, 4 * (64e6 + 56e6 + 56e6) / 320e9
    assert found["predicted_roof_step_s_low"] == pytest.approx(compute_s)
    # Launches of one operator may be limited by different roofs.
    assert found["predicted_roof_step_s_high"] == pytest.approx(compute_s + memory_s)


def test_a_trace_with_unknown_operators_is_not_used(tmp_path: Path) -> None:
    in_process.imported(tmp_path, gpu_trace(3), name="t.json", model="small", batch_size=4)
    with pytest.raises(NothingToDoError, match="the trace is not used: operators without FLOP and bytes"):
        row(analysis.load(tmp_path / "results"))


# --- notes


@pytest.mark.parametrize(
    ("needed_gb", "gpu", "note"),
    [
        (15.9, "t4", None),
        (16.5, "t4", "does not fit: the run used 16.5 GB, and T4 has 16 GB"),
        (16.5, "V100 SXM2", "the run used 16.5 GB, which fits only the V100 SXM2 with 32 GB"),
        (33.0, "V100 SXM2", "does not fit: the run used 33.0 GB, and V100 SXM2 has 32 GB"),
    ],
)
def test_memory(needed_gb: float, gpu: str, note: str | None) -> None:
    assert row(results(run(peak_memory_bytes=needed_gb * 1e9, **WORK)), gpu)["note"] == note
    # The memory of a process on a CPU says nothing about a GPU's.
    assert row(results(run(device_type="cpu", peak_memory_bytes=needed_gb * 1e9, **WORK)), gpu)["note"] is None


def test_a_gpu_that_was_run_is_said() -> None:
    words = "this GPU was run: analyze summary has the measured step"
    assert words in row(results(run(**WORK)), "l4")["note"]
    assert row(results(run(**WORK)), "t4")["note"] is None


# --- evidence that is not good enough


@pytest.mark.parametrize(
    ("columns", "facts", "note"),
    [
        ({"range": np.nan}, {"path": "/nowhere"}, "its number of steps is unknown"),
        ({"flop": [1e9, np.nan, 1e9]}, {}, "a kernel lacks its FLOP or bytes"),
        ({"dram_bytes": [1.0, np.nan, 1.0]}, {}, "a kernel lacks its FLOP or bytes"),
        ({"name": ["gemm", "copy", "gemm"]}, {}, "no kernels of a backward pass, so a part of a step"),
        ({}, {"flop_is_lower_bound": True}, "tensor operations that are not counted"),
        ({}, {"profile_status": "partial"}, "the profile is partial"),
        ({"flop_fp64": [1e9, 0.0, 0.0]}, {}, "it has FLOP in double precision"),
    ],
)
def test_an_incomplete_profile_is_replaced_by_the_model(columns: Any, facts: Any, note: str) -> None:
    found = row(results(run(kernels=launched(**columns), **{**PROFILED, **facts})))
    assert found["tier"] == Tier.MODEL
    assert f"the profile is not used: {note}" in found["note"]


@pytest.mark.parametrize(
    ("facts", "message", "hint"),
    [
        ({"precision": None}, "the precision is unknown", "--precision fp32"),
        (
            {"devices": 2.0},
            "a run of several devices predicts nothing: its steps also wait for collectives",
            "a run of one device",
        ),
        ({"train_flop_per_step": np.nan}, "no run has the FLOP and bytes of its step", "--model resnet50"),
        ({"bytes_upper_per_step": np.nan}, "no run has the FLOP and bytes of its step", "--model resnet50"),
        ({"unattributed_share": 0.06}, "FLOP and bytes of 6 % of the step's time are unknown", "--row operator"),
        ({"precision": "bf16"}, "T4 has no units for bf16", "runs in fp32 or amp"),
        ({"status": "failed"}, "no run completed", "analyze summary"),
    ],
)
def test_nothing_to_predict_from(facts: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(NothingToDoError) as error:
        row(results(run(**{**WORK, **facts})))
    assert str(error.value) == f"no step time can be predicted: {message}"
    assert hint in error.value.hint
    assert error.value.exit_code == ExitCode.NOTHING_TO_DO


def test_operations_that_compute_nothing_do_not_count_as_unknown() -> None:
    assert row(results(run(unattributed_share=0.3, uncounted_share=0.05, **WORK)))["tier"] == Tier.MODEL


def test_rows_without_figures_stand_beside_others() -> None:
    table = predict(results(run(precision="bf16", **WORK)), ["t4", "l4"])
    assert list(table["gpu"]) == ["T4", "L4"]
    assert table["predicted_roof_step_s_low"].isna().tolist() == [True, False]
    assert table["note"][0] == "T4 has no units for bf16"


# --- names of GPUs


@pytest.mark.parametrize(
    ("label", "gpus"),
    [
        ("t4", ["T4"]),
        ("Tesla T4", ["T4"]),
        ("L4", ["L4"]),
        ("v100", ["V100 PCIe", "V100 SXM2"]),
        ("v100-pcie", ["V100 PCIe"]),
        ("a100", ["A100 40 GB", "A100 80 GB PCIe", "A100 80 GB SXM"]),
        ("A100-SXM-80", ["A100 80 GB SXM"]),
        ("a100 40 gb", ["A100 40 GB"]),
        ("rtx 4080", ["RTX 4080"]),
        ("rtx4080-laptop", ["RTX 4080 Laptop"]),
        ("mi300x", ["MI300X"]),
    ],
)
def test_a_short_name_means_every_variant(label: str, gpus: list[str]) -> None:
    assert [gpu.gpu for gpu in find_gpus([label])] == gpus


@pytest.mark.parametrize(
    ("label", "nearest"),
    [("rtx3090", "did you mean rtx4090? "), ("v10", "did you mean v100? "), ("", ""), ("nvidia", ""), ("M1 Max", "")],
)
def test_an_unknown_gpu(label: str, nearest: str) -> None:
    with pytest.raises(UsageError) as error:
        find_gpus(["t4", label])
    assert str(error.value) == f"the peaks of GPU '{label}' are unknown"
    assert error.value.hint.startswith(f"{nearest}known: T4, L4, ")


def test_a_gpu_that_is_named_twice_has_one_row() -> None:
    assert list(predict(results(run(**WORK)), ["l4", "NVIDIA L4"])["gpu"]) == ["L4"]


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


# --- the command


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch, analyze: Analyze) -> Analyze:
    def call(*words: str, facts: Any = None) -> tuple[int, str, str]:
        monkeypatch.setattr("analysis.load", lambda *_, **__: results(run(**{**WORK, **(facts or {})})))
        return analyze("predict", "results", *words)

    return call


def test_the_command_says_that_it_predicts(on: Analyze) -> None:
    code, out, err = on("--gpu", "t4", "--gpu", "v100")
    assert code == ExitCode.DONE
    assert "at the roofs from" in out
    assert [line.split()[0] for line in out.splitlines() if line.startswith(("T4", "V100"))] == ["T4", "V100", "V100"]
    assert err == (
        "note       predicted, not measured: published fp32 steps took 1.0 to 6.4 times the longer figure (5 % to 95 % "
        "of 100 steps on 10 GPUs)\n"
    )


def test_data_has_no_measured_figure(on: Analyze) -> None:
    code, out, _ = on("--gpu", "t4", "--format", "json", facts={"device_busy_share": 0.5})
    assert code == ExitCode.DONE
    (found,) = json.loads(out)
    assert tuple(found) == COLUMNS
    figures = {name for name, value in found.items() if isinstance(value, float)} - {*UNNAMED, "image_size"}
    assert all(name.startswith("predicted_") for name in figures)


def test_bad_input_is_one_line(on: Analyze) -> None:
    assert on("--gpu", "t5")[0] == ExitCode.USAGE
    code, out, err = on("--gpu", "t4", facts={"precision": "bf16"})
    assert (code, out) == (ExitCode.NOTHING_TO_DO, "")
    assert err.splitlines() == [
        "error: no step time can be predicted: T4 has no units for bf16",
        "hint: runs in fp32 or amp, or --gpu of another GPU",
    ]

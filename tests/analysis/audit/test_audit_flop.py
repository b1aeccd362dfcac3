"""Rules on FLOP, bytes, roofs and counters, each on both sides of its threshold."""

from pathlib import Path
from typing import Any

import pytest

from analysis.audit import audit
from tests.analysis.by_hand import kernels, results, run

# Per step of CLEAN: 340.7 GFLOP in 0.1 s is 3.4 TFLOP/s, 11 % of an L4's 30.3.
STEP = [0.1] * 60
CONVOLUTION = "implicit_convolve_sgemm"
WGRAD = "cudnn_cutlass_wgrad_conv"
TENSOR = "ampere_fp16_s16816gemm_fp16_128x128"


def figures(*runs: dict[str, Any], rule: str, folder: Path | None = None) -> list[str]:
    return [finding.figure for finding in audit(results(*runs, folder=folder)) if finding.rule == rule]


def profiled(*names: str, **facts: Any) -> dict[str, Any]:
    columns = facts.pop("columns", {})
    return run(steps=STEP, profile_status="completed", kernels=kernels(*names, **columns), **facts)


# --- MACs and FLOP


@pytest.mark.parametrize(
    ("flop", "train", "expected"),
    [
        pytest.param(2.0e9, 6.0e9, [], id="2 FLOP per MAC"),
        pytest.param(
            1.49e9,
            4.0e9,
            ["1.49 GFLOP for 1 GMAC in the forward pass: 1.49 per MAC"],
            id="MACs called FLOP",
        ),
        pytest.param(1.51e9, 4.0e9, [], id="just enough"),
        pytest.param(2.0e9, 2.0e9, ["2 GFLOP of training for 2 GFLOP in the forward pass: 1.00 x"], id="forward only"),
        pytest.param(2.0e9, 8.0e9, [], id="with recomputation"),
        pytest.param(None, None, [], id="unknown"),
    ],
)
def test_macs_counted_as_flop(flop: float | None, train: float | None, expected: list[str]) -> None:
    case = run(forward_mac_per_image=1e9, forward_flop_per_image=flop, train_flop_per_image=train)

    assert figures(case, rule="MACs counted as FLOP") == expected


# --- roofs


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        pytest.param({}, [], id="no ceiling was measured"),
        pytest.param({"ceiling_flop_per_s": 3.3e12}, [], id="103 % of a noisy ceiling"),
        pytest.param(
            {"ceiling_flop_per_s": 3.2e12}, ["106.5 % of the measured ceiling, 3.2 TFLOP/s"], id="106 % of a ceiling"
        ),
        pytest.param(
            {"train_flop_per_step": 13e12, "precision": "amp"},
            ["107.4 % of the vendor's peak, 121 TFLOP/s"],
            id="above the peak",
        ),
        pytest.param({"train_flop_per_step": 12e12, "precision": "amp"}, [], id="below the peak"),
        pytest.param(
            {"train_flop_per_step": 13e12, "precision": "amp", "device_name": "Unknown 9000"}, [], id="no peak is known"
        ),
        pytest.param({"counted_dram_bytes_per_step": 37e9}, [], id="123 % of a bandwidth, cold caches"),
        pytest.param(
            {"counted_dram_bytes_per_step": 39e9},
            ["130 % of the vendor's peak, 300 GB/s"],
            id="more bytes than there can be",
        ),
    ],
)
def test_above_a_roof(facts: dict[str, Any], expected: list[str]) -> None:
    assert figures(run(steps=STEP, **facts), rule="above a roof") == expected


def ceiling(best: float, *, name: str = "fp32", quantity: str = "flop_per_s") -> dict[str, Any]:
    return {"quantity": quantity, "name": name, "median_per_s": best * 0.99, "best_per_s": best}


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        pytest.param(ceiling(25e12), [], id="83 % of the peak"),
        pytest.param(
            ceiling(32e12), ["fp32: 32 TFLOP/s measured, 30.3 TFLOP/s the vendor's peak of L4: 105.6 %"], id="above it"
        ),
        pytest.param(
            ceiling(15e12), ["fp32: 15 TFLOP/s measured, 30.3 TFLOP/s the vendor's peak of L4: 49.5 %"], id="below half"
        ),
        pytest.param(ceiling(250e9, name="copy", quantity="bytes_per_s"), [], id="a copy"),
        pytest.param(
            ceiling(500e9, name="copy", quantity="bytes_per_s"),
            ["copy: 500 GB/s measured, 300 GB/s the vendor's peak of L4: 166.7 %"],
            id="a copy in the cache",
        ),
        pytest.param(ceiling(1e15, name="fp8"), [], id="a precision without a peak"),
    ],
)
def test_wrong_peak(row: dict[str, Any], expected: list[str]) -> None:
    assert figures(run(ceilings=[row]), rule="wrong peak") == expected


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        pytest.param(1000.0, [], id="35 %"),
        pytest.param(1750.0, ["61.5 % of the vendor's fp32 peak of L4, 30.3 TFLOP/s"], id="hardly true"),
        pytest.param(28.0, ["1 % of the vendor's fp32 peak of L4, 30.3 TFLOP/s"], id="hardly the device"),
    ],
)
def test_odd_utilisation(rate: float, expected: list[str]) -> None:
    assert figures(run(images_per_s=rate), rule="odd utilisation") == expected


# --- counters


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        pytest.param(profiled(CONVOLUTION, WGRAD), [], id="fp32 kernels"),
        pytest.param(
            profiled(TENSOR, TENSOR, WGRAD),
            [f"2 launches of kernels for tensor cores, as {TENSOR}"],
            id="kernels named for tensor cores",
        ),
        pytest.param(profiled(TENSOR, WGRAD, precision="tf32"), [], id="tf32 says so"),
        pytest.param(
            profiled(CONVOLUTION, TENSOR, columns={"range": ["step 0 forward", "calibration tf32"]}),
            [],
            id="only in our own calibration",
        ),
        pytest.param(
            run(counted_tensor_flop_per_step=5e9), ["5 GFLOP per step on tensor cores"], id="counted tensor work"
        ),
        pytest.param(run(counted_tensor_flop_per_step=0.0), [], id="counted none"),
        pytest.param(
            run(steps=STEP, train_flop_per_step=3.1e12),
            ["31 TFLOP/s, above the fp32 peak of L4, 30.3 TFLOP/s"],
            id="faster than fp32 can be",
        ),
    ],
)
def test_fp32_that_is_tf32(case: dict[str, Any], expected: list[str]) -> None:
    assert figures(case, rule="fp32 that is tf32") == expected


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        pytest.param({"flop_is_lower_bound": False, "counted_flop_per_step": 1e9}, [], id="fp32, all counted"),
        pytest.param(
            {"flop_is_lower_bound": True},
            ["counted FLOP are a lower bound: kernels use tensor cores whose FLOP were not counted"],
            id="lower bound",
        ),
        pytest.param(
            {"precision": "amp", "counted_flop_per_step": 1e9, "counted_tensor_flop_per_step": 0.0},
            ["amp, and no FLOP of tensor cores among 1 GFLOP per step"],
            id="amp without tensor cores",
        ),
        pytest.param(
            {"precision": "amp", "counted_flop_per_step": 1e9, "counted_tensor_flop_per_step": 9e8}, [], id="amp"
        ),
    ],
)
def test_tensor_flop_missing(facts: dict[str, Any], expected: list[str]) -> None:
    assert figures(run(**facts), rule="tensor FLOP missing") == expected


@pytest.mark.parametrize(
    ("counted", "expected"),
    [
        (0.71, []),
        (0.69, ["690 GFLOP per step counted, 1 TFLOP by the model: 0.69 x"]),
        (1.49, []),
        (1.51, ["1.51 TFLOP per step counted, 1 TFLOP by the model: 1.51 x"]),
    ],
)
def test_counted_flop_against_model(counted: float, expected: list[str]) -> None:
    case = run(counted_flop_per_step=counted * 1e12, train_flop_per_step=1e12)

    assert figures(case, rule="counted FLOP against model") == expected


def test_the_likely_cause_is_said(tmp_path: Path) -> None:
    record = {"profile": {"checks": {"model_flop": {"likely_cause": "hidden tensor operations"}}}}
    case = run(counted_flop_per_step=1e11, train_flop_per_step=1e12, record=record)

    (figure,) = figures(case, rule="counted FLOP against model", folder=tmp_path)

    assert figure == "100 GFLOP per step counted, 1 TFLOP by the model: 0.10 x; likely hidden tensor operations"


@pytest.mark.parametrize(("verified", "broken"), [(True, False), (None, False), (False, True)])
def test_calibration_unverified(tmp_path: Path, *, verified: bool | None, broken: bool) -> None:
    calibration = {
        "fp32": {"ratio": 1.0, "verified": True},
        "fp16": {"ratio": 0.25, "verified": False},
        "bf16": {"ratio": None, "verified": False},
    }
    record = {"profile": {"checks": {"calibration": calibration}}}
    case = run(calibration_verified=verified, record=record)
    expected = ["counters against products of known size: fp16 0.25 x, bf16 not counted"] if broken else []

    assert figures(case, rule="calibration unverified", folder=tmp_path) == expected


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        pytest.param(profiled(CONVOLUTION, WGRAD), [], id="a foreign profile with one"),
        pytest.param(
            profiled(CONVOLUTION, "relu"),
            ["2 launches, but no kernel that occurs only in a backward pass"],
            id="without",
        ),
        pytest.param(
            run(backward_kernels=False), ["no kernels in the backward range, or too little work in them"], id="ours"
        ),
        pytest.param(profiled("relu", backward_kernels=True), [], id="ours knows by its ranges"),
        pytest.param(run(), [], id="not profiled"),
    ],
)
def test_no_backward_kernels(case: dict[str, Any], expected: list[str]) -> None:
    assert figures(case, rule="no backward kernels") == expected


@pytest.mark.parametrize(
    ("status", "reason", "expected"),
    [
        ("completed", None, []),
        ("not requested", None, []),
        ("unavailable", "counters are locked", []),
        ("partial", "ncu ended with exit code 9", ["partial: ncu ended with exit code 9"]),
        ("timed out", None, ["timed out"]),
    ],
)
def test_partial_profile(status: str, reason: str | None, expected: list[str]) -> None:
    assert figures(run(profile_status=status, profile_reason=reason), rule="partial profile") == expected


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({}, []),
        ({"flop": float("nan")}, ["FLOP are unavailable: they were not counted"]),
        (
            {"flop": float("nan"), "dram_bytes": float("nan")},
            ["FLOP and DRAM bytes are unavailable: they were not counted"],
        ),
        ({"flop": [float("nan"), 1.0]}, []),
    ],
)
def test_counters_unavailable(columns: dict[str, Any], expected: list[str]) -> None:
    assert figures(profiled(CONVOLUTION, WGRAD, columns=columns), rule="counters unavailable") == expected

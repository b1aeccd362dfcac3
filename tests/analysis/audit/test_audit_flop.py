"""Rules on FLOP, bytes, roofs and counters, each on both sides of its threshold."""

from pathlib import Path
from typing import Any

import pytest

from tests.analysis.audit.rules import Cases, figures, rows
from tests.analysis.by_hand import kernels, run

# Per step of CLEAN: 340.7 GFLOP in 0.1 s is 3.4 TFLOP/s, 11 % of an L4's 30.3.
STEP = [0.1] * 60
CONVOLUTION = "implicit_convolve_sgemm"
WGRAD = "cudnn_cutlass_wgrad_conv"
TENSOR = "ampere_fp16_s16816gemm_fp16_128x128"


def profiled(*names: str, **facts: Any) -> dict[str, Any]:
    columns = facts.pop("columns", {})
    return run(steps=STEP, profile_status="completed", kernels=kernels(*names, **columns), **facts)


def ceiling(best: float, *, name: str = "fp32", quantity: str = "flop_per_s") -> dict[str, Any]:
    return {"quantity": quantity, "name": name, "median_per_s": best * 0.99, "best_per_s": best}


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
    expected = ["counted over true FLOP of products of known size: fp16 0.25 x, bf16 not counted"] if broken else []

    assert figures(case, rule="calibration unverified", folder=tmp_path) == expected


CASES: Cases = {
    "MACs counted as FLOP": {
        "2 FLOP per MAC": (run(forward_mac_per_image=1e9, forward_flop_per_image=2e9, train_flop_per_image=6e9), []),
        "MACs called FLOP": (
            run(forward_mac_per_image=1e9, forward_flop_per_image=1.49e9, train_flop_per_image=4e9),
            ["1.49 GFLOP for 1 GMAC in the forward pass: 1.49 per MAC"],
        ),
        "just enough": (run(forward_mac_per_image=1e9, forward_flop_per_image=1.51e9, train_flop_per_image=4e9), []),
        "forward only": (
            run(forward_mac_per_image=1e9, forward_flop_per_image=2e9, train_flop_per_image=2e9),
            ["2 GFLOP of training for 2 GFLOP in the forward pass: 1.00 x"],
        ),
        "with recomputation": (
            run(forward_mac_per_image=1e9, forward_flop_per_image=2e9, train_flop_per_image=8e9),
            [],
        ),
        "unknown": (run(forward_mac_per_image=1e9, forward_flop_per_image=None, train_flop_per_image=None), []),
    },
    "above a roof": {
        "no ceiling was measured": (run(steps=STEP), []),
        "103 % of a noisy ceiling": (run(steps=STEP, ceiling_flop_per_s=3.3e12), []),
        "106 % of a ceiling": (
            run(steps=STEP, ceiling_flop_per_s=3.2e12),
            ["106.5 % of the measured ceiling, 3.2 TFLOP/s"],
        ),
        "106 % of a ceiling by CPU time": (run(steps=STEP, ceiling_flop_per_s=3.2e12, cpu_time_share=1.0), []),
        "213 % of a ceiling by CPU time": (
            run(steps=STEP, ceiling_flop_per_s=1.6e12, cpu_time_share=1.0),
            ["213 % of the measured ceiling, 1.6 TFLOP/s"],
        ),
        "above the peak": (
            run(steps=STEP, train_flop_per_step=1.3e13, precision="amp"),
            ["107.4 % of the vendor's peak, 121 TFLOP/s"],
        ),
        "below the peak": (run(steps=STEP, train_flop_per_step=1.2e13, precision="amp"), []),
        "no peak is known": (
            run(steps=STEP, train_flop_per_step=1.3e13, precision="amp", device_name="Unknown 9000"),
            [],
        ),
        "123 % of a bandwidth, cold caches": (run(steps=STEP, counted_dram_bytes_per_step=3.7e10), []),
        "more bytes than there can be": (
            run(steps=STEP, counted_dram_bytes_per_step=3.9e10),
            ["130 % of the vendor's peak, 300 GB/s"],
        ),
    },
    "wrong peak": {
        "83 % of the peak": (run(ceilings=[ceiling(2.5e13)]), []),
        "above it": (
            run(ceilings=[ceiling(3.2e13)]),
            ["fp32: 32 TFLOP/s measured, 30.3 TFLOP/s the vendor's peak of L4: 105.6 %"],
        ),
        "below half": (
            run(ceilings=[ceiling(1.5e13)]),
            ["fp32: 15 TFLOP/s measured, 30.3 TFLOP/s the vendor's peak of L4: 49.5 %"],
        ),
        "a copy": (run(ceilings=[ceiling(2.5e11, name="copy", quantity="bytes_per_s")]), []),
        "a copy in the cache": (
            run(ceilings=[ceiling(5e11, name="copy", quantity="bytes_per_s")]),
            ["copy: 500 GB/s measured, 300 GB/s the vendor's peak of L4: 166.7 %"],
        ),
        "a precision without a peak": (run(ceilings=[ceiling(1e15, name="fp8")]), []),
    },
    "fp32 that is tf32": {
        "fp32 kernels": (profiled(CONVOLUTION, WGRAD), []),
        "kernels named for tensor cores": (
            profiled(TENSOR, TENSOR, WGRAD),
            [f"2 launches of kernels for tensor cores, for example {TENSOR}"],
        ),
        "tf32 says so": (profiled(TENSOR, WGRAD, precision="tf32"), []),
        "only in our own calibration": (
            profiled(CONVOLUTION, TENSOR, columns={"range": ["step 0 forward", "calibration tf32"]}),
            [],
        ),
        "convolutions in tf32 beside products in fp32": (
            run(
                counted_tensor_flop_per_step=5e9,
                record={"complexity": {"flop_by_precision": {"fp32": 9e9, "tf32": 5e9}}},
            ),
            [],
        ),
        "counted tensor work": (run(counted_tensor_flop_per_step=5e9), ["5 GFLOP per step on tensor cores"]),
        "counted none": (run(counted_tensor_flop_per_step=0.0), []),
        "faster than fp32 can be": (
            run(steps=STEP, train_flop_per_step=3.1e12),
            ["31 TFLOP/s, above the fp32 peak of L4, 30.3 TFLOP/s"],
        ),
    },
    "tensor FLOP missing": {
        "fp32, all counted": (run(flop_is_lower_bound=False, counted_flop_per_step=1e9), []),
        "lower bound": (
            run(flop_is_lower_bound=True),
            ["counted FLOP are a lower bound: kernels use tensor cores whose FLOP were not counted"],
        ),
        "amp without tensor cores": (
            run(precision="amp", counted_flop_per_step=1e9, counted_tensor_flop_per_step=0.0),
            ["amp, but no FLOP of tensor cores among 1 GFLOP counted per step"],
        ),
        "amp": (run(precision="amp", counted_flop_per_step=1e9, counted_tensor_flop_per_step=9e8), []),
    },
    "counted FLOP against model": {
        "71 %": (run(counted_flop_per_step=0.71e12, train_flop_per_step=1e12), []),
        "69 %": (
            run(counted_flop_per_step=0.69e12, train_flop_per_step=1e12),
            ["690 GFLOP per step counted, 1 TFLOP by the model: 0.69 x"],
        ),
        "149 %": (run(counted_flop_per_step=1.49e12, train_flop_per_step=1e12), []),
        "151 %": (
            run(counted_flop_per_step=1.51e12, train_flop_per_step=1e12),
            ["1.51 TFLOP per step counted, 1 TFLOP by the model: 1.51 x"],
        ),
    },
    "no backward kernels": {
        "a foreign profile with one": (profiled(CONVOLUTION, WGRAD), []),
        "without": (profiled(CONVOLUTION, "relu"), ["2 launches, but no kernel that occurs only in a backward pass"]),
        "ours": (run(backward_kernels=False), ["no kernels in the backward range, or too little work in them"]),
        "ours knows by its ranges": (profiled("relu", backward_kernels=True), []),
        "not profiled": (run(), []),
    },
    "incomplete profile": {
        "completed": (run(profile_status="completed", profile_reason=None), []),
        "not requested": (run(profile_status="not requested", profile_reason=None), []),
        "unavailable": (
            run(profile_status="unavailable", profile_reason="counters are locked"),
            [],
        ),
        "partial": (
            run(profile_status="partial", profile_reason="ncu ended with exit code 9"),
            ["partial: ncu ended with exit code 9"],
        ),
        "timed out": (run(profile_status="timed out", profile_reason=None), ["timed out"]),
        "both counted": (profiled(CONVOLUTION, WGRAD, columns={}), []),
        "no FLOP": (
            profiled(CONVOLUTION, WGRAD, columns={"flop": float("nan")}),
            ["FLOP are unavailable: they were not counted"],
        ),
        "neither": (
            profiled(CONVOLUTION, WGRAD, columns={"flop": float("nan"), "dram_bytes": float("nan")}),
            ["FLOP and DRAM bytes are unavailable: they were not counted"],
        ),
        "one launch without FLOP": (profiled(CONVOLUTION, WGRAD, columns={"flop": [float("nan"), 1.0]}), []),
    },
}


@pytest.mark.parametrize(("rule", "runs", "expected"), rows(CASES))
def test_rules(tmp_path: Path, rule: str, runs: list[dict[str, Any]], expected: list[str]) -> None:
    assert figures(*runs, rule=rule, folder=tmp_path) == expected

"""Rules on FLOP, bytes, roofs and counters, each on both sides of its threshold."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from analysis.audit import RULES, audit
from tests.analysis.audit.rules import Cases, printed
from tests.analysis.by_hand import kernels, results, run
from tests.analysis.sentence_runs import Golden
from workload.contract.allocations import FILE, Allocation, Kind, write

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


LIKELY_CAUSE = {"profile": {"checks": {"model_flop": {"likely_cause": "hidden tensor operations"}}}}
CALIBRATION = {
    "profile": {
        "checks": {
            "calibration": {
                "fp32": {"ratio": 1.0, "verified": True},
                "fp16": {"ratio": 0.25, "verified": False},
                "bf16": {"ratio": None, "verified": False},
            }
        }
    }
}


def memory(real_gb: float, counted_gb: float = 10.0, *, lower_bound: Sequence[str] = (), **facts: Any) -> Any:
    """A run on a GPU with PyTorch's peak and that of the counted step."""
    record = {
        "memory": {"peak_allocated_bytes": real_gb * 1e9, "peak_reserved_bytes": 1.3e9},
        "step_memory": {"peak_bytes": counted_gb * 1e9, "lower_bound": list(lower_bound)},
    }
    return run(**{"counted_peak_bytes": counted_gb * 1e9, "record": record, **facts})


CASES: Cases = {
    "MACs counted as FLOP": {
        "2 FLOP per MAC": run(forward_mac_per_image=1e9, forward_flop_per_image=2e9, train_flop_per_image=6e9),
        "MACs called FLOP": run(forward_mac_per_image=1e9, forward_flop_per_image=1.49e9, train_flop_per_image=4e9),
        "just enough": run(forward_mac_per_image=1e9, forward_flop_per_image=1.51e9, train_flop_per_image=4e9),
        "forward only": run(forward_mac_per_image=1e9, forward_flop_per_image=2e9, train_flop_per_image=2e9),
        "with recomputation": run(forward_mac_per_image=1e9, forward_flop_per_image=2e9, train_flop_per_image=8e9),
        "unknown": run(forward_mac_per_image=1e9, forward_flop_per_image=None, train_flop_per_image=None),
    },
    "above a roof": {
        "no ceiling was measured": run(steps=STEP),
        "103 % of a noisy ceiling": run(steps=STEP, ceiling_flop_per_s=3.3e12),
        "106 % of a ceiling": run(steps=STEP, ceiling_flop_per_s=3.2e12),
        "106 % of a ceiling by CPU time": run(steps=STEP, ceiling_flop_per_s=3.2e12, cpu_time_share=1.0),
        "213 % of a ceiling by CPU time": run(steps=STEP, ceiling_flop_per_s=1.6e12, cpu_time_share=1.0),
        "above the peak": run(steps=STEP, train_flop_per_step=1.3e13, precision="amp"),
        "below the peak": run(steps=STEP, train_flop_per_step=1.2e13, precision="amp"),
        "no peak is known": run(steps=STEP, train_flop_per_step=1.3e13, precision="amp", device_name="Unknown 9000"),
        "123 % of a bandwidth, cold caches": run(steps=STEP, counted_dram_bytes_per_step=3.7e10),
        "more bytes than there can be": run(steps=STEP, counted_dram_bytes_per_step=3.9e10),
    },
    "wrong peak": {
        "83 % of the peak": run(ceilings=[ceiling(2.5e13)]),
        "above it": run(ceilings=[ceiling(3.2e13)]),
        "below half": run(ceilings=[ceiling(1.5e13)]),
        "a copy": run(ceilings=[ceiling(2.5e11, name="copy", quantity="bytes_per_s")]),
        "a copy in the cache": run(ceilings=[ceiling(5e11, name="copy", quantity="bytes_per_s")]),
        "a precision without a peak": run(ceilings=[ceiling(1e15, name="fp8")]),
    },
    "fp32 that is tf32": {
        "fp32 kernels": profiled(CONVOLUTION, WGRAD),
        "kernels named for tensor cores": profiled(TENSOR, TENSOR, WGRAD),
        "tf32 says so": profiled(TENSOR, WGRAD, precision="tf32"),
        "only in our own calibration": profiled(
            CONVOLUTION, TENSOR, columns={"range": ["step 0 forward", "calibration tf32"]}
        ),
        "convolutions in tf32 beside products in fp32": run(
            counted_tensor_flop_per_step=5e9,
            record={"complexity": {"flop_by_precision": {"fp32": 9e9, "tf32": 5e9}}},
        ),
        "counted tensor work": run(counted_tensor_flop_per_step=5e9),
        "counted none": run(counted_tensor_flop_per_step=0.0),
        "faster than fp32 can be": run(steps=STEP, train_flop_per_step=3.1e12),
    },
    "tensor FLOP missing": {
        "fp32, all counted": run(flop_is_lower_bound=False, counted_flop_per_step=1e9),
        "lower bound": run(flop_is_lower_bound=True),
        "amp without tensor cores": run(precision="amp", counted_flop_per_step=1e9, counted_tensor_flop_per_step=0.0),
        "amp": run(precision="amp", counted_flop_per_step=1e9, counted_tensor_flop_per_step=9e8),
    },
    "counted FLOP against model": {
        "71 %": run(counted_flop_per_step=0.71e12, train_flop_per_step=1e12),
        "69 %": run(counted_flop_per_step=0.69e12, train_flop_per_step=1e12),
        "149 %": run(counted_flop_per_step=1.49e12, train_flop_per_step=1e12),
        "151 %": run(counted_flop_per_step=1.51e12, train_flop_per_step=1e12),
        "with a likely cause": run(counted_flop_per_step=1e11, train_flop_per_step=1e12, record=LIKELY_CAUSE),
    },
    "no backward kernels": {
        "a foreign profile with one": profiled(CONVOLUTION, WGRAD),
        "without": profiled(CONVOLUTION, "relu"),
        "ours": run(backward_kernels=False),
        "ours knows by its ranges": profiled("relu", backward_kernels=True),
        "not profiled": run(),
    },
    "incomplete profile": {
        "completed": run(profile_status="completed", profile_reason=None),
        "not requested": run(profile_status="not requested", profile_reason=None),
        "unavailable": run(profile_status="unavailable", profile_reason="counters are locked"),
        "partial": run(profile_status="partial", profile_reason="ncu ended with exit code 9"),
        "timed out": run(profile_status="timed out", profile_reason=None),
        "both counted": profiled(CONVOLUTION, WGRAD, columns={}),
        "no FLOP": profiled(CONVOLUTION, WGRAD, columns={"flop": float("nan")}),
        "neither": profiled(CONVOLUTION, WGRAD, columns={"flop": float("nan"), "dram_bytes": float("nan")}),
        "one launch without FLOP": profiled(CONVOLUTION, WGRAD, columns={"flop": [float("nan"), 1.0]}),
    },
    "calibration unverified": {
        "verified": run(calibration_verified=True, record=CALIBRATION),
        "unknown": run(calibration_verified=None, record=CALIBRATION),
        "not": run(calibration_verified=False, record=CALIBRATION),
    },
    "counted memory": {
        "95 %": memory(9.5),
        "94 %": memory(9.4),
        "1.25 x": memory(12.5),
        "1.26 x": memory(12.6),
        "a lower bound may be exceeded": memory(12.6, lower_bound=["the script has kernels of its own"]),
        "but is one": memory(9.4, lower_bound=["the script has kernels of its own"]),
        "on a CPU": memory(20.0, device_type="cpu"),
        "not counted": memory(20.0, counted_peak_bytes=None),
    },
}


def test_findings_on_both_sides_of_each_threshold(tmp_path: Path, golden: Golden) -> None:
    golden("flop.txt", printed(CASES, tmp_path))


@pytest.mark.parametrize(
    ("reserved_gb", "retries", "figures"),
    [
        # 1 GiB in a segment of its own.
        (1.3, 0, []),
        (1.4, 0, ["1.4 GB reserved, 1.1 GB counted: 1.30 x"]),
        (1.4, 2, []),
        (1.0, 0, ["1.0 GB reserved, 1.1 GB counted: 0.93 x"]),
    ],
)
def test_reserved_memory(tmp_path: Path, reserved_gb: float, retries: int, figures: list[str]) -> None:
    given = memory(1.0, 1.0)
    given["record"]["memory"] |= {"peak_reserved_bytes": reserved_gb * 1e9, "allocator_retries": retries}
    loaded = results(given, folder=tmp_path)
    one = Allocation(kind=Kind.WEIGHTS, size_bytes=2**30, bytes_per_sample=None, born=0, died=None)
    write(tmp_path / "a" / FILE, [one])
    rules = [rule for rule in RULES if rule.name == "counted memory"]
    assert [finding.figure for finding in audit(loaded, rules=rules)] == figures

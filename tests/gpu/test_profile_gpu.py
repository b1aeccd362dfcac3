"""Profiles by Nsight Compute on a real GPU, from the command to the figures in the bundle."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from workload.contract import bundle
from workload.contract.spec import Device
from workload.environment.machine import HostSystem
from workload.profile import diagnosis

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.world,
    # A run, a count and up to three passes over some hundred kernels.
    pytest.mark.timeout(900),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

ROOT = Path(__file__).parents[2]
SMALL = ["--device", "cuda", "--batch-size", "8", "--iterations", "5", "--no-ceilings"]


def run(folder: Path, *words: str) -> dict[str, Any]:
    """Train with a profile; run.json of the only bundle."""
    done = subprocess.run(
        [sys.executable, "-m", "workload", "train", *SMALL, "-o", str(folder), *words],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=850,
    )
    assert done.returncode == 0, done.stderr
    print(done.stderr)
    record = dict(bundle.read(Path(done.stdout.strip())).document)
    print(json.dumps(record["profile"], indent=1))
    return record


@pytest.fixture
def counters() -> None:
    obstacle = diagnosis.obstacle(diagnosis.gather(Device.CUDA, HostSystem()))
    if obstacle:
        pytest.skip(f"no counters here: {obstacle}")


@pytest.mark.usefixtures("counters")
@pytest.mark.parametrize("precision", ["fp32", "tf32", "amp", "bf16"])
def test_counted_flop_are_those_of_the_model(precision: str, tmp_path: Path) -> None:
    if precision in ("tf32", "bf16") and torch.cuda.get_device_capability() < (8, 0):
        pytest.skip(f"{precision} needs compute capability 8.0")
    profile = run(tmp_path, "--model", "resnet18", "--precision", precision, "--profile", "ncu")["profile"]
    if profile["status"] == "unavailable":
        pytest.skip(f"{profile['reason']}; {profile['hint']}")
    assert (profile["status"], profile["reason"]) == ("completed", None)
    checks = profile["checks"]
    assert checks["flop_verified"], checks["calibration"]
    assert checks["backward"]["present"], checks["backward"]
    assert 1 < checks["backward"]["flop_over_forward"] < 3
    assert checks["kernels_outside_steps"] == 0
    assert 0.7 < checks["model_flop"]["counted_over_model"] < 1.5, checks["model_flop"]
    assert not profile["flop_is_lower_bound"], profile["lower_bound_reason"]
    assert profile["missing"] == []
    assert profile["kernels_per_step"] > 0
    assert profile["dram_bytes_per_step"] > 1e6
    reads_and_writes = profile["dram_read_bytes_per_step"] + profile["dram_write_bytes_per_step"]
    assert reads_and_writes == pytest.approx(profile["dram_bytes_per_step"], rel=0.05)
    tensor = profile["tensor_flop_per_step"] or 0
    assert (tensor > 0.5 * profile["flop_per_step"]) is (precision != "fp32"), "fp32 means TF32 off"


@pytest.mark.usefixtures("counters")
def test_further_profiles_and_several_steps(tmp_path: Path) -> None:
    words = ["--model", "resnet18", "--image-size", "64", "--profile", "ncu", "--profile-steps", "2"]
    profile = run(tmp_path, *words, "--profile-step-bytes", "--profile-throughput")["profile"]
    if profile["status"] == "unavailable":
        pytest.skip(f"{profile['reason']}; {profile['hint']}")
    assert profile["steps_profiled"] == 2
    step, throughput = profile["step_bytes"], profile["throughput"]
    assert (step["status"], throughput["status"]) == ("completed", "completed"), (step, throughput)
    assert 0.05 < step["dram_bytes_per_step"] / profile["dram_bytes_per_step"] < 3
    assert 0 < throughput["sm_percent_time_weighted"] < 100
    assert 0 < throughput["memory_percent_time_weighted"] <= 100


def test_trace_needs_no_privileges(tmp_path: Path) -> None:
    profile = run(tmp_path, "--model", "resnet18", "--image-size", "64", "--profile", "torch")["profile"]
    assert (profile["status"], profile["rows"]) == ("completed", "kernels")
    assert profile["calls_per_step"] > 50
    assert profile["device"] == torch.cuda.get_device_name()
    assert profile["time_s_per_step"] > 0

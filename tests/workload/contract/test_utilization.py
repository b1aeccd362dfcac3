"""MFU and HFU of runs: by hand for a GPU with a known peak, unknown for all others."""

import copy
from typing import Any

import pytest

from workload.contract import utilization
from workload.contract.record import read

# 40 steps of 0.5 s with their waits, on an A100, whose dense peaks are 312 (bf16) and 19.5 TFLOP/s (fp32).
RUN: dict[str, Any] = {
    "run_id": "a",
    "status": "completed",
    "spec": {"model": "train.py", "batch_size": 8, "precision": "bf16", "device": "cuda", "devices": 2},
    "environment": {"device": {"type": "cuda", "name": "NVIDIA A100-SXM4-40GB", "memory_total_bytes": 42.3e9}},
    "timing": {"measured_s": 20.0, "images": 320, "step_s": {"n": 40, "median": 0.25}},
    "complexity": {"train_flop_per_step": 78e12, "flop_by_precision": {"fp32": 1e12, "bf16": 77e12}},
}
LOG = {"path": "train.log", "format": "log", "sha256": "0", "size_bytes": 1}


def run(**sections: Any) -> dict[str, Any]:
    """A run, with changed fields in these sections."""
    changed = copy.deepcopy(RUN)
    for name, fields in sections.items():
        changed[name] = {**changed.get(name, {}), **fields}
    return changed


# Runs: MFU, HFU and the peak.
KNOWN: dict[str, tuple[dict[str, Any], tuple[float, float | None, str]]] = {
    "by the precision with most FLOP": (RUN, (0.5, None, "A100 40 GB, bf16")),
    "a fourth is repeated": (
        run(complexity={"recomputed_flop_per_step": 19.5e12}),
        (0.375, 0.5, "A100 40 GB, bf16"),
    ),
    "precision of the run": (
        run(complexity={"flop_by_precision": None}, spec={"precision": "fp32"}),
        (8.0, None, "A100 40 GB, fp32"),
    ),
    "steps of a log": (run(timing={"step_s": None}), (0.5, None, "A100 40 GB, bf16")),
}
UNKNOWN = {
    "CPU": run(environment={"device": {"type": "cpu", "name": "Intel(R) Core(TM) i9-14900HX"}}),
    "GPU of no table": run(environment={"device": {"type": "cuda", "name": "NVIDIA Tomorrow 1"}}),
    "no units of this precision": run(environment={"device": {"type": "cuda", "name": "Tesla T4"}}),
    "another precision": run(complexity={"flop_by_precision": {"fp64": 78e12}}),
    "no FLOP": run(complexity={"train_flop_per_step": None}),
    "FLOP of a CUDA graph": run(complexity={"train_flop_per_step": 0}),
    "no time": run(timing={"measured_s": None}),
    "no steps": run(timing={"step_s": None, "images": None}),
    "perhaps TF32": run(imported=LOG, spec={"precision": "fp32"}, complexity={"flop_by_precision": None}),
}


@pytest.mark.parametrize("name", KNOWN)
def test_mfu_is_model_flop_over_wall_time_and_peak(name: str) -> None:
    document, (mfu, hfu, peak) = KNOWN[name]
    found = utilization.of(read(document).record)
    assert found is not None
    assert (found.mfu, found.hfu, found.peak_name) == (pytest.approx(mfu), hfu and pytest.approx(hfu), peak)


@pytest.mark.parametrize("name", UNKNOWN)
def test_without_a_sure_peak_work_or_time_mfu_is_unknown(name: str) -> None:
    record = read(UNKNOWN[name]).record
    assert utilization.of(record) is None
    assert utilization.sentence([record]) is None

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from workload.profile import torch_pass
from workload.profile.torch_pass import TraceRow

EVENTS = [
    {"cat": "kernel", "name": "gemm", "dur": 30.0},
    {"cat": "kernel", "name": "gemm", "dur": 50.0},
    {"cat": "kernel", "name": 'fill<"a,b">', "dur": 20.0},
    {"cat": "gpu_memcpy", "name": "Memcpy HtoD", "dur": 900.0},
    {"cat": "gpu_user_annotation", "name": "step 0", "dur": 900.0},
    {"name": "process_name", "ph": "M"},
]


def test_kernels_within_labels_of_the_host() -> None:
    def event(category: str, name: str, start: float, length: float) -> dict[str, Any]:
        return {"cat": category, "name": name, "ts": start, "dur": length}

    events = [
        event("user_annotation", "step 0", 100, 50),
        event("user_annotation", "step 1", 200, 50),
        event("user_annotation", "step 2", 300, 50),
        event("gpu_user_annotation", "step 0", 0, 1000),
        event("kernel", "gemm", 110, 10),
        event("kernel", "validation", 160, 10),
        event("kernel", "left out", 210, 10),
        event("kernel", "gemm", 310, 20),
        {"cat": "kernel", "name": "no time"},
    ]
    rows = torch_pass.kernels_within(events, {"step 0", "step 2"})
    assert [(row.name, row.calls, round(row.total_s * torch_pass.US_PER_S)) for row in rows] == [("gemm", 2, 30)]


def test_only_kernels_count_and_the_top_is_per_step(tmp_path: Path) -> None:
    path = tmp_path / torch_pass.TRACE
    with gzip.open(path, "wt") as text:
        json.dump({"traceEvents": EVENTS}, text)
    rows = torch_pass.kernels(torch_pass.read(path))
    assert rows == [
        TraceRow(name="gemm", calls=2, total_s=pytest.approx(80e-6)),
        TraceRow(name='fill<"a,b">', calls=1, total_s=pytest.approx(20e-6)),
    ]
    torch_pass.write(tmp_path / "k.csv", rows)
    assert (tmp_path / "k.csv").read_text().splitlines() == [
        "name,calls,total_s,mean_s,share",
        "gemm,2,0.000080000,0.000040000,0.800000",
        '"fill<""a,b"">",1,0.000020000,0.000020000,0.200000',
    ]
    top = {"name": "gemm", "calls_per_step": 1, "time_s_per_step": pytest.approx(40e-6), "share": pytest.approx(0.8)}
    assert torch_pass.top(rows, 2)[0] == top
    assert len(torch_pass.top([TraceRow(name=str(each), calls=1, total_s=1) for each in range(9)], 1)) == 5
    assert torch_pass.top([TraceRow(name="idle", calls=1, total_s=0)], 1)[0]["share"] == 0

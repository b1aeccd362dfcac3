"""Profiles by torch.profiler: their table, and that every command takes them."""

from pathlib import Path
from typing import Any

import pytest

import analysis
from analysis.kernels import operators
from analysis.report import content, context, measurements
from analysis.report.content import Bullets, Table
from analysis.report.evidence import gather
from benchmarks.synthetic_bundles import make
from tests.analysis.in_process import Analyze
from workload.contract import bundle

TABLE = """name,calls,total_s,mean_s,share
aten::mkldnn_convolution,40,0.600000000,0.015000000,0.600000
aten::mm,4,0.200000000,0.050000000,0.200000
aten::addmm,2,0.100000000,0.050000000,0.100000
aten::conv2d,40,0.100000000,0.002500000,0.100000
"""
FLOP = {"convolution": 6e9, "matmul": 1e9}
PROFILE = {"status": "completed", "kind": "torch", "rows": "operators", "steps": 2}


def traced(folder: Path, number: int = 1, table: str = TABLE, **changes: Any) -> Path:
    """A run on a CPU with a profile by torch.profiler of two steps."""
    facts = {"profile": PROFILE, "complexity__flop_by_op": FLOP, "environment__device__type": "cpu"} | changes
    made = make(folder, number, **facts)
    (made / "torch").mkdir()
    (made / "torch" / "kernels.csv").write_text(table)
    bundle.seal(made)
    return made


def test_operators_of_one_step(tmp_path: Path) -> None:
    traced(tmp_path)
    rows, problems = operators(analysis.load(tmp_path))
    assert problems == []
    assert rows["name"].tolist() == ["aten::mkldnn_convolution", "aten::mm", "aten::addmm", "aten::conv2d", "all"]
    assert rows["launches"].tolist() == [20, 2, 1, 20, 43]
    assert rows["duration_s"].tolist() == pytest.approx([0.3, 0.1, 0.05, 0.05, 0.5])
    assert rows["share_of_time"].tolist() == pytest.approx([0.6, 0.2, 0.1, 0.1, 1.0])
    # Which of mm and addmm did how much of the matrix products, the formulas do not say.
    assert rows["flop"].dropna().tolist() == [6e9, 7e9]
    assert rows["flop_per_s"].dropna().tolist() == pytest.approx([2e10, 1.4e10])


def test_profiles_of_repeats_are_one_table(tmp_path: Path) -> None:
    traced(tmp_path, 1)
    traced(tmp_path, 2, TABLE.replace("0.600000000", "1.000000000"))
    traced(tmp_path, 3, spec__batch_size=64)
    rows, _ = operators(analysis.load(tmp_path))
    first = rows[(rows["name"] == "aten::mkldnn_convolution") & (rows["batch_size"] == 32)].iloc[0]
    assert (first["profiles"], first["steps"]) == (2, 4)
    assert first["duration_s"] == pytest.approx(0.4)
    assert rows["batch_size"].tolist() == [32] * 5 + [64] * 5


@pytest.mark.parametrize(
    ("table", "profile", "reason"),
    [
        ("no,columns\n1,2\n", PROFILE, "line 2 has no name, positive number of calls and seconds"),
        (TABLE.replace("40,0.6", "nan,0.6"), PROFILE, "line 2 has no name, positive number of calls and seconds"),
        (TABLE.replace("4,0.2", "four,0.2"), PROFILE, "line 3 has no name, positive number of calls and seconds"),
        (TABLE, PROFILE | {"steps": "2"}, "run.json does not say how many steps were profiled"),
    ],
)
def test_a_table_that_cannot_be_read_is_a_problem(
    tmp_path: Path, table: str, profile: dict[str, Any], reason: str
) -> None:
    folder = traced(tmp_path, 1, table, profile=profile)
    rows, problems = operators(analysis.load(tmp_path))
    assert rows.empty
    assert [str(problem) for problem in problems] == [f"{folder / 'torch' / 'kernels.csv'}: {reason}"]


@pytest.mark.parametrize("command", ["audit", "kernels", "roofline", "summary", "variance"])
def test_every_command_takes_a_profile_by_torch(tmp_path: Path, analyze: Analyze, command: str) -> None:
    traced(tmp_path)
    code, out, _ = analyze(command, tmp_path)
    assert code == 0
    assert out


@pytest.mark.slow
def test_the_report_has_the_operators(tmp_path: Path) -> None:
    traced(tmp_path, 1)
    traced(tmp_path, 2, spec__batch_size=64, environment__device__type="cuda")
    broken = traced(tmp_path, 3, "no,columns\n1,2\n", spec__batch_size=128)
    evidence = gather(analysis.load(tmp_path))
    [part] = [part for part in measurements.roofs(evidence).parts if part.name == "operators"]
    on_cpu, on_gpu = part.blocks
    assert isinstance(on_cpu, Table)
    assert isinstance(on_gpu, Table)
    assert on_cpu.caption.startswith("Operators by torch.profiler, per step: self time on the CPU, without the time of")
    assert on_gpu.caption.startswith("Kernels by torch.profiler, per step: their time on the GPU;")
    headings = ["place", "device", "model", "batch", "precision", "steps", "operator", "calls", "own time", "share"]
    assert [heading.text for heading in on_cpu.headings] == [*headings, "attained"]
    assert [row[6:] for row in on_cpu.rows] == [
        ["aten::mkldnn_convolution", "20.00", "300 ms", "60.0 %", "20.00 GFLOP/s"],
        ["aten::mm", "2.000", "100 ms", "20.0 %", content.ABSENT],
        ["aten::addmm", "1.000", "50.0 ms", "10.0 %", content.ABSENT],
        ["aten::conv2d", "20.00", "50.0 ms", "10.0 %", content.ABSENT],
        ["all", "43.00", "500 ms", "100 %", "14.00 GFLOP/s"],
    ]
    assert len(on_gpu.rows) == 5
    left_out = [
        text for block in context.limits(evidence).blocks if isinstance(block, Bullets) for text in block.sentences
    ]
    assert any(text.startswith(f"{broken / 'torch' / 'kernels.csv'}: line 2 has no name") for text in left_out)

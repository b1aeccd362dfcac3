"""Kernels of profiled runs by family or name: time, FLOP and bytes against hand-computed values."""

import json
import math
from pathlib import Path

import pytest

import analysis
from analysis.figures import Figure
from analysis.kernels import kernel_points
from analysis.report import template
from analysis.report.compose import compose
from analysis.report.evidence import gather
from benchmarks.synthetic_bundles import make
from tests.analysis.readers.ncu.ncu_files import DRAM, FADD, FFMA, FMUL, STARTED, TIME, wide
from workload.contract import bundle

L1, L2, TENSOR = "l1tex__t_bytes.sum", "lts__t_bytes.sum", "sm__inst_executed_pipe_tensor.sum"

UNITS = {
    TIME: "ns",
    FADD: "inst",
    FMUL: "inst",
    FFMA: "inst",
    DRAM: "byte",
    L2: "byte",
    L1: "byte",
    TENSOR: "inst",
}


def mark(name: str) -> str:
    return f'1  "<default domain>:{name}:none:none:none:none:none:none" '


def profile(folder: Path, rows: list[list[object]], names: list[str], *, capability: str = "7.5") -> None:
    """`rows`: range, then metrics in the order of `UNITS`."""
    cells = [[mark(str(first)), *rest] for first, *rest in rows]
    (folder / "ncu").mkdir()
    text = wide(UNITS, cells, names=names, extra=[STARTED], capability=capability)
    (folder / "ncu" / "kernels.csv").write_text(text)
    (folder / bundle.MANIFEST).unlink()
    bundle.seal(folder)


CONV, BN = "ampere_sgemm_128x128", "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float>"
#        time ns  fadd fmul ffma  DRAM  L2    L1    tensor
STEPS: list[list[object]] = [
    ["calibration fp32", 9000, 0, 0, 9999, 10, 10, 10, 0],
    ["step 0 forward", 1000, 100, 100, 400, 500, 1000, 4000, 0],
    ["step 0 backward", 3000, 0, 0, 1500, 500, 2000, 2000, 0],
    ["step 0 forward", 500, 50, 50, 0, 1000, 1000, 1000, 0],
    ["step 1 forward", 1000, 100, 100, 400, 500, 1000, 4000, 0],
    ["step 1 backward", 3000, 0, 0, 1500, 500, 2000, 2000, 0],
    ["step 1 forward", 500, 50, 50, 0, 1000, 1000, 1000, 0],
]
NAMES = ["ampere_sgemm_calibration", CONV, CONV, BN, CONV, CONV, BN]


def test_kernels_of_a_step_by_hand(tmp_path: Path) -> None:
    profile(make(tmp_path, 1), STEPS, NAMES)
    gemm, norm = kernel_points(analysis.load(tmp_path)).to_dict("records")
    # Two steps; the calibration's product is in neither. FLOP of GEMM: 2 x (100 + 100 + 800 + 3000) = 8000.
    assert (gemm["family"], gemm["steps"], gemm["launches"]) == ("GEMM", 2, 2)
    assert gemm["duration_s"] == pytest.approx(4e-6)
    assert gemm["share_of_time"] == pytest.approx(8 / 9)
    assert gemm["intensity_flop_per_byte"] == pytest.approx(4000 / 1000)
    assert gemm["l2_intensity"] == pytest.approx(4000 / 3000)
    assert gemm["l1_intensity"] == pytest.approx(4000 / 6000)
    assert gemm["flop_per_s"] == pytest.approx(4000 / 4e-6)
    assert (norm["family"], norm["launches"]) == ("batch norm", 1)
    assert norm["intensity_flop_per_byte"] == pytest.approx(0.1)
    assert norm["share_of_time"] == pytest.approx(1 / 9)


HIT, RATE, PEAK = "l1tex__t_sector_hit_rate.pct", "lts__t_sectors.sum", "sm__warps_active.max"


def with_own(folder: Path) -> Path:
    """A profile of two steps with three metrics that the user asked for, one of which is absent from the file."""
    own = [[number, 10 * number, 100 - number] for number in range(len(STEPS))]
    cells = [[mark(str(first)), *rest, *more] for (first, *rest), more in zip(STEPS, own, strict=True)]
    (folder / "ncu").mkdir()
    units = {**UNITS, HIT: "%", RATE: "sector", PEAK: "warp"}
    (folder / "ncu" / "kernels.csv").write_text(wide(units, cells, names=NAMES, extra=[STARTED], capability="7.5"))
    document = json.loads((folder / bundle.RECORD).read_text())
    names = [HIT, RATE, PEAK, "absent__metric.sum"]
    document["profile"] |= {"kind": "ncu", "metrics": [TIME, DRAM, *names], "own_metrics": names}
    document["profile"] |= {"missing": ["dram__bytez.sum"]}
    bundle.write_document(folder, document)
    (folder / bundle.MANIFEST).unlink()
    bundle.seal(folder)
    return folder


def test_metrics_of_the_user_by_hand(tmp_path: Path) -> None:
    with_own(make(tmp_path, 1))
    gemm, norm = kernel_points(analysis.load(tmp_path)).to_dict("records")
    # GEMM: launches 1, 2, 4, 5 with 1, 3, 1, 3 us in two steps.
    assert gemm[RATE] == pytest.approx(10 * (1 + 2 + 4 + 5) / 2)
    assert gemm[HIT] == pytest.approx((1 * 1 + 2 * 3 + 4 * 1 + 5 * 3) / 8)
    assert gemm[PEAK] == 99
    assert norm[PEAK] == 97
    assert math.isnan(gemm["absent__metric.sum"])
    assert gemm["flop_per_s"] == pytest.approx(4000 / 4e-6)


def test_report_lists_the_metrics_of_each_profile(tmp_path: Path) -> None:
    with_own(make(tmp_path, 1))
    page = template.as_markdown(compose(gather(analysis.load(tmp_path))), figures=None)
    page = page.replace("\\_", "_")
    row = next(line for line in page.splitlines() if RATE in line)
    assert TIME in row.split("|")[-4]
    assert [name.strip() for name in row.split("|")[-3].split(",")] == [HIT, RATE, PEAK, "absent__metric.sum"]
    assert row.split("|")[-2].strip() == "dram__bytez.sum"


@pytest.mark.parametrize(
    ("capability", "label"),
    [
        ("7.5", "requests of the whole GPU to L2"),
        ("9.0", "requests to L2, most likely with those between its two halves"),
    ],
)
def test_l2_bytes_say_which_they_are(tmp_path: Path, capability: str, label: str) -> None:
    profile(make(tmp_path, 1), STEPS, NAMES, capability=capability)
    results = analysis.load(tmp_path)
    table = kernel_points(results)
    assert set(table["l2_bytes_are"]) == {label}
    assert set(table["note"]) == {f"L2 bytes are {label}"}
    (figure,) = [each for each in gather(results).drawn if each.name.startswith("kernel_roofline_")]
    assert isinstance(figure, Figure)
    assert figure.caption.endswith(
        f"Rates are those of the profiled kernels, not of whole steps. L2 bytes are {label}."
    )


def test_missing_counters_are_absent_never_zero(tmp_path: Path) -> None:
    rows = [list(row) for row in STEPS]
    rows[2][2] = "n/a"  # fadd of one launch
    rows[3][5] = rows[6][5] = 0  # no byte of DRAM
    profile(make(tmp_path, 1), rows, NAMES)
    gemm, norm = kernel_points(analysis.load(tmp_path)).to_dict("records")
    assert math.isnan(gemm["flop"])
    assert math.isnan(gemm["intensity_flop_per_byte"])
    assert math.isnan(gemm["flop_per_s"])
    assert gemm["dram_bytes"] == 1000
    assert math.isnan(norm["intensity_flop_per_byte"])
    assert norm["l2_intensity"] == pytest.approx(0.1)

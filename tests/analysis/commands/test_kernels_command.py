import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.synthetic_bundles import make
from tests.analysis.in_process import Analyze
from tests.analysis.kernels.test_kernel_breakdown import NAMES, STEPS, profile
from tests.analysis.readers.ncu.ncu_files import COUNTS, save, wide

ROWS = [[1000, 10, 10, 40, 100], [3000, 0, 0, 200, 100], [1000, 10, 10, 40, 100]]
GEMM, BN = "ampere_sgemm_128x128", "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float>"


def rows_of(analyze: Analyze, *words: object) -> list[dict[str, Any]]:
    code, out, _ = analyze("kernels", *words, "--format", "json")
    assert code == 0
    found: list[dict[str, Any]] = json.loads(out)
    return found


def test_bare_file(tmp_path: Path, analyze: Analyze) -> None:
    path = save(tmp_path, wide(COUNTS, ROWS, names=[GEMM, BN, GEMM]))
    norm, gemm, whole = rows_of(analyze, path)
    assert (norm["family"], gemm["family"], whole["family"]) == ("batch norm", "GEMM", "all")
    assert {row["file"] for row in (norm, gemm, whole)} == {"kernels.csv"}
    assert {row["device_name"] for row in (norm, gemm, whole)} == {"compute capability 8.0"}
    # Whole profile: nobody knows how many steps it holds.
    assert (gemm["steps"], gemm["launches"], gemm["duration_s"]) == (None, 2, pytest.approx(2e-6))
    assert gemm["share_of_time"] == pytest.approx(0.4)
    assert gemm["intensity_flop_per_byte"] == pytest.approx(200 / 200)
    assert whole["launches"] == 3
    assert whole["flop"] == 600
    assert whole["intensity_flop_per_byte"] == pytest.approx(2.0)
    assert whole["flop_per_s"] == pytest.approx(600 / 5e-6)
    assert whole["remark"] is None


def test_names_are_shortened_for_people_only(tmp_path: Path, analyze: Analyze) -> None:
    name = "k" * 100
    path = save(tmp_path, wide(COUNTS, ROWS[:1], names=[name]))
    _, out, _ = analyze("kernels", path, "--row", "kernel")
    assert "k" * 13 + "…" + "k" * 14 + "  " in out
    assert max(map(len, out.splitlines())) <= 100
    assert name in analyze("kernels", path, "--row", "kernel", "--wide")[1]
    assert rows_of(analyze, path, "--row", "kernel")[0]["name"] == name


def test_bundles_and_files_together(tmp_path: Path, analyze: Analyze) -> None:
    profile(make(tmp_path / "results", 1), STEPS, NAMES)
    path = save(tmp_path, wide(COUNTS, ROWS, names=[GEMM, BN, GEMM]))
    found = rows_of(analyze, tmp_path / "results", path)
    assert [(row["file"], row["place"], row["family"]) for row in found] == [
        ("kernels.csv", None, "batch norm"),
        ("kernels.csv", None, "GEMM"),
        ("kernels.csv", None, "all"),
        (None, "gcp-t4-us-central1-a", "GEMM"),
        (None, "gcp-t4-us-central1-a", "batch norm"),
        (None, "gcp-t4-us-central1-a", "all"),
    ]
    # Per step: 2 launches of GEMM and 1 of batch norm in 4.5 us; FLOP 4000 + 100, DRAM 1000 + 1000 bytes.
    whole = found[-1]
    assert (whole["steps"], whole["launches"]) == (2, 3)
    assert whole["duration_s"] == pytest.approx(4.5e-6)
    assert whole["intensity_flop_per_byte"] == pytest.approx(4100 / 2000)
    assert whole["l2_intensity"] == pytest.approx(4100 / 4000)


def test_partial_profile_is_said(tmp_path: Path, analyze: Analyze) -> None:
    error = "==ERROR== The application returned an error code (1).\n"
    path = save(tmp_path, error + wide(COUNTS, ROWS, names=[GEMM, BN, GEMM]))
    code, out, err = analyze("kernels", path)
    assert code == 0
    assert "partial profile" in out
    assert f"problem    {path}: ==ERROR== The application returned an error code (1)." in err


@pytest.mark.parametrize("top", ["0", "-1"])
def test_top_is_positive(tmp_path: Path, analyze: Analyze, top: str) -> None:
    message = f"error: --top must be a positive integer; got '{top}'\nhint: --top 10\n"
    assert analyze("kernels", tmp_path, "--top", top) == (2, "", message)

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from analysis.__main__ import main
from benchmarks.synthetic_bundles import make
from tests.analysis.kernels.test_kernel_breakdown import NAMES, STEPS, profile
from tests.analysis.readers.ncu.ncu_files import DRAM, FADD, FFMA, FMUL, TIME, long, save, wide

SHARED = Path(__file__).parents[4] / "shared" / "data" / "ncu"
METRICS = {TIME: "ns", FADD: "inst", FMUL: "inst", FFMA: "inst", DRAM: "byte"}
ROWS = [[1000, 10, 10, 40, 100], [3000, 0, 0, 200, 100], [1000, 10, 10, 40, 100]]
GEMM, BN = "ampere_sgemm_128x128", "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float>"


def kernels(*words: object) -> int:
    sys.argv = ["analyze", "kernels", *map(str, words)]
    return main()


def rows_of(capsys: pytest.CaptureFixture[str], *words: object) -> list[dict[str, Any]]:
    assert kernels(*words, "--format", "json") == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return found


def test_bare_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = save(tmp_path, wide(METRICS, ROWS, names=[GEMM, BN, GEMM]))
    norm, gemm, whole = rows_of(capsys, path)
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


def test_table_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = save(tmp_path, wide(METRICS, ROWS, names=[GEMM, BN, GEMM]))
    assert kernels(path) == 0
    above, *lines = capsys.readouterr().out.splitlines()
    assert above == "file kernels.csv; device compute capability 8.0"
    heading, *rows = (re.split(" {2,}", line) for line in lines)
    assert heading == [
        *("family", "launches", "time [µs]", "share [%]"),
        *("attained [MFLOP/s]", "intensity [FLOP/B]"),
    ]
    assert [(*row[:2], *map(float, row[2:])) for row in rows] == [
        ("batch norm", "1", 3, 60, 133.3, 4),
        ("GEMM", "2", 2, 40, 100, 1),
        ("all", "3", 5, 100, 120, 2),
    ]


def test_longest_kernels_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = save(tmp_path, wide(METRICS, ROWS, names=[GEMM, BN, GEMM]))
    first, whole = rows_of(capsys, path, "--by", "kernel", "--top", "1")
    assert (first["name"], first["family"]) == (BN, "batch norm")
    # The total is of all kernels, shown or not.
    assert (whole["family"], whole["name"], whole["launches"]) == ("all", None, 3)


def test_names_are_shortened_for_people_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "k" * 100
    path = save(tmp_path, wide(METRICS, ROWS[:1], names=[name]))
    assert kernels(path, "--by", "kernel") == 0
    out = capsys.readouterr().out
    assert "k" * 13 + "…" + "k" * 14 + "  " in out
    assert max(map(len, out.splitlines())) <= 100
    assert kernels(path, "--by", "kernel", "--wide") == 0
    assert name in capsys.readouterr().out
    assert rows_of(capsys, path, "--by", "kernel")[0]["name"] == name


def test_bundles_and_files_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile(make(tmp_path / "results", 1), STEPS, NAMES)
    path = save(tmp_path, wide(METRICS, ROWS, names=[GEMM, BN, GEMM]))
    found = rows_of(capsys, tmp_path / "results", path)
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


def test_the_table_says_which_l2_bytes_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile(make(tmp_path / "results", 1), STEPS, NAMES, capability="8.0")
    assert kernels(tmp_path / "results") == 0
    label = "L2 bytes are requests to L2, most likely with those between its two halves"
    assert label in " ".join(capsys.readouterr().out.split())
    # A bare file tells by its GPU.
    (file,) = (tmp_path / "results").rglob("kernels.csv")
    assert {row["remark"] for row in rows_of(capsys, file)} == {label}


def test_missing_counters_are_unavailable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = save(tmp_path, long([(0, TIME, "ns", 1000), (1, TIME, "ns", 2000)]))
    assert kernels(path) == 0
    # Columns that nobody counted are not shown at all.
    assert capsys.readouterr().out.splitlines()[1].split("  ")[-1] == "share [%]"
    (row, _) = rows_of(capsys, path)
    assert (row["flop"], row["dram_bytes"], row["intensity_flop_per_byte"]) == (None, None, None)


def test_partial_profile_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    error = "==ERROR== The application returned an error code (1).\n"
    path = save(tmp_path, error + wide(METRICS, ROWS, names=[GEMM, BN, GEMM]))
    assert kernels(path) == 0
    said = capsys.readouterr()
    assert "partial profile" in said.out
    assert f"problem    {path}: ==ERROR== The application returned an error code (1)." in said.err


def test_nothing_was_profiled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path, 1)
    assert kernels(tmp_path) == 3
    assert capsys.readouterr().err == (
        f"error: no run in '{tmp_path}' was profiled with ncu or torch\n"
        "hint: launch local --profile torch; with --profile ncu on an NVIDIA GPU also FLOP and bytes\n"
    )


@pytest.mark.parametrize("top", ["0", "-1"])
def test_top_is_positive(tmp_path: Path, capsys: pytest.CaptureFixture[str], top: str) -> None:
    assert kernels(tmp_path, "--top", top) == 2
    assert capsys.readouterr().err == f"error: --top must be a positive integer; got '{top}'\nhint: --top 10\n"


def test_file_without_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = save(tmp_path, "==PROF== Connected to process 1\nNo kernels were profiled.\n")
    assert kernels(path) == 2
    assert "ncu profiled no kernels" in capsys.readouterr().err


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared/data")
@pytest.mark.parametrize(
    ("name", "launches", "duration_s", "flop", "intensity"),
    [
        ("v100_resnet50_wide", 620, 10.268160e-3, 25989744540, 14.086),
        ("l4_resnet18_long_nvtx", 98, 7.376250e-3, 4928393620, 6.942),
        ("rtx5070_gemm_long_bom_crlf", 1, 10.195552e-3, None, None),
    ],
)
def test_public_profiles(
    capsys: pytest.CaptureFixture[str],
    name: str,
    launches: int,
    duration_s: float,
    flop: float | None,
    intensity: float | None,
) -> None:
    whole = rows_of(capsys, SHARED / f"{name}.csv")[-1]
    assert (whole["launches"], whole["flop"]) == (launches, flop)
    assert whole["duration_s"] == pytest.approx(duration_s, rel=1e-9)
    assert whole["intensity_flop_per_byte"] == (None if intensity is None else pytest.approx(intensity, abs=5e-4))

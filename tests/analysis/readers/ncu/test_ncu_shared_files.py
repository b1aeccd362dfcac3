"""Public profiles of others, against totals that were computed independently (data/README.md beside them)."""

import math
from dataclasses import dataclass
from pathlib import Path

import pytest

from analysis.readers import ncu
from analysis.readers.ncu import Failure, Layout, NcuFileError, families

FILES = Path(__file__).parents[5] / "shared" / "data" / "ncu"

pytestmark = pytest.mark.skipif(not FILES.is_dir(), reason="needs ../shared/data")


@dataclass(frozen=True, kw_only=True)
class Expected:
    launches: int
    time_s: float
    read: int
    written: int
    add_mul_fma: tuple[int, int, int] | None
    flop: float
    flop_per_byte: float


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "v100_resnet50_wide",
            Expected(
                launches=620,
                time_s=10.268160e-3,
                read=1370874016,
                written=474155872,
                add_mul_fma=(501318032, 220020430, 12634203039),
                flop=25989744540,
                flop_per_byte=14.086,
            ),
        ),
        (
            "l4_resnet18_long_nvtx",
            Expected(
                launches=98,
                time_s=7.376250e-3,
                read=607558840,
                written=102390000,
                add_mul_fma=(35270784, 26223242, 2433449797),
                flop=4928393620,
                flop_per_byte=6.942,
            ),
        ),
        (
            "rtx5070_gemm_long_bom_crlf",
            Expected(
                launches=1,
                time_s=10.195552e-3,
                read=53261312,
                written=3377920,
                add_mul_fma=None,
                flop=math.nan,
                flop_per_byte=math.nan,
            ),
        ),
    ],
)
def test_totals(name: str, expected: Expected) -> None:
    found = ncu.read(FILES / f"{name}.csv")
    kernels = found.kernels
    dram_bytes = kernels["dram_bytes"].sum()
    flop = kernels["flop"].sum(min_count=1)
    assert len(kernels) == expected.launches
    assert kernels["duration_s"].sum() == pytest.approx(expected.time_s, rel=1e-12)
    assert round(kernels["dram_read_bytes"].sum(), 3) == expected.read
    assert round(kernels["dram_write_bytes"].sum(), 3) == expected.written
    assert round(dram_bytes, 3) == expected.read + expected.written
    counts = tuple(found.totals.get(f"fp32_{operation}") for operation in ("add", "mul", "fma"))
    assert counts == (expected.add_mul_fma or (None, None, None))
    assert flop == pytest.approx(expected.flop, rel=0, abs=0, nan_ok=True)
    assert flop / dram_bytes == pytest.approx(expected.flop_per_byte, abs=5e-4, nan_ok=True)
    assert not kernels["flop_is_lower_bound"].any()
    assert (found.warnings, found.is_partial) == ((), False)


def test_v100() -> None:
    found = ncu.read(FILES / "v100_resnet50_wide.csv")
    assert found.layout is Layout.WIDE
    assert set(found.kernels["device"]) == {"Tesla V100-SXM2-16GB"}
    assert set(found.kernels["compute_capability"]) == {"7.0"}
    assert found.attributes["device__attribute_multiprocessor_count"] == "80"
    assert any(families.is_backward(name) for name in found.kernels["name"])
    by_family = found.kernels["family"].value_counts()
    assert by_family["batch norm"] == 106
    assert by_family["convolution"] == 143
    assert by_family["GEMM"] == 141
    assert by_family["optimizer"] == 7
    assert by_family["pooling"] == 2
    assert by_family["softmax/attention"] == 2
    other = set(found.kernels.loc[found.kernels["family"] == "other", "name"].str.partition("<")[0])
    assert other == {"void sbtopk::gatherTopK", "void at::bitonicSortKVInPlace"}


def test_l4() -> None:
    found = ncu.read(FILES / "l4_resnet18_long_nvtx.csv")
    assert found.layout is Layout.LONG
    assert set(found.units["dram__bytes_read.sum"]) == {"Kbyte", "Mbyte"}
    ranges = {f"train_step/{part}" for part in ("forward", "loss", "backward", "optimizer_step")}
    assert set(found.kernels["range"]) == ranges
    assert not any(families.is_backward(name) for name in found.kernels["name"]), "the range lost the backward pass"
    weighted = (found.kernels["dram_percent"] * found.kernels["duration_s"]).sum() / found.kernels["duration_s"].sum()
    assert weighted == pytest.approx(32.14, abs=0.005), "its author published 23.16"
    assert set(found.kernels["family"]) >= {"convolution", "GEMM", "batch norm", "elementwise", "optimizer"}
    assert "other" not in set(found.kernels["family"])


def test_details_page() -> None:
    found = ncu.read(FILES / "cc75_details_ragged.csv")
    assert found.layout is Layout.DETAILS
    (kernel,) = found.kernels.to_dict("records")
    assert kernel["duration_s"] == pytest.approx(21058944e-9)
    assert kernel["cycles"] == 12319469
    assert (kernel["sm_percent"], kernel["memory_percent"], kernel["dram_percent"]) == (1.30, 61.84, 61.84)
    assert kernel["dram_bytes"] == pytest.approx(196456177859.63 * 21058944e-9)
    assert kernel["compute_capability"] == "7.5"
    assert len(found.metrics) == 71


@pytest.mark.parametrize(
    ("name", "failure"),
    [("failed_no_kernels.csv", Failure.NO_KERNELS), ("failed_no_header.csv", Failure.APPLICATION_ERROR)],
)
def test_failures(name: str, failure: Failure) -> None:
    with pytest.raises(NcuFileError) as caught:
        ncu.read(FILES / name)
    assert caught.value.failure is failure

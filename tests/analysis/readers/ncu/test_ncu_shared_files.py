"""Public profiles of others: devices, families, ranges and units. Their totals: `importing/test_quirks.py`."""

from pathlib import Path

import pytest

from analysis.readers import ncu
from analysis.readers.ncu import metrics

FILES = Path(__file__).parents[5] / "shared" / "data" / "ncu"

pytestmark = pytest.mark.skipif(not FILES.is_dir(), reason="needs ../shared/data")


def test_v100() -> None:
    found = ncu.read(FILES / "v100_resnet50_wide.csv")
    assert set(found.kernels["device"]) == {"Tesla V100-SXM2-16GB"}
    assert set(found.kernels["compute_capability"]) == {"7.0"}
    assert found.attributes["device__attribute_multiprocessor_count"] == "80"
    assert any(metrics.is_backward(name) for name in found.kernels["name"])
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
    ranges = {f"train_step/{part}" for part in ("forward", "loss", "backward", "optimizer_step")}
    assert set(found.kernels["range"]) == ranges
    assert not any(metrics.is_backward(name) for name in found.kernels["name"]), "the range lost the backward pass"
    weighted = (found.kernels["dram_percent"] * found.kernels["duration_s"]).sum() / found.kernels["duration_s"].sum()
    assert weighted == pytest.approx(32.14, abs=0.005), "its author published 23.16"
    assert set(found.kernels["family"]) >= {"convolution", "GEMM", "batch norm", "elementwise", "optimizer"}
    assert "other" not in set(found.kernels["family"])

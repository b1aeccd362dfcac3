import math
from pathlib import Path

import pytest

from analysis.readers import ncu
from analysis.readers.ncu import flop
from tests.analysis.readers.ncu.ncu_files import (
    DRAM,
    FADD,
    FFMA,
    FMUL,
    READ,
    SASS,
    TENSOR_PIPE,
    TIME,
    WRITTEN,
    save,
    wide,
)
from workload.contract.vocabulary import tensor_operations

FP16_FP32 = "sm__ops_path_tensor_src_fp16_dst_fp32.sum"
FP16_FP16 = "sm__ops_path_tensor_src_fp16_dst_fp16.sum"
TF32 = "sm__ops_path_tensor_src_tf32_dst_fp32.sum"
FP32 = {FADD: "inst", FMUL: "inst", FFMA: "inst"}
SIMT, TENSOR = "ampere_sgemm_32x32_nn", "ampere_fp16_s16816gemm_fp16_128x128"


def kernel_of(
    tmp_path: Path, metrics: dict[str, str], values: list[str], name: str = SIMT, capability: str = "8.9"
) -> dict[str, float]:
    found = ncu.read(save(tmp_path, wide(metrics, [values], names=[name], capability=capability))).kernels
    return found.iloc[0].to_dict()


def test_flop_are_add_plus_mul_plus_twice_fma_plus_tensor_operations(tmp_path: Path) -> None:
    sass = {SASS.format(kind + operation): "inst" for kind in "dfh" for operation in ("add", "mul", "fma")}
    metrics = {**sass, FP16_FP32: "", FP16_FP16: "", TF32: ""}
    counts = ["1", "2", "3", "10", "20", "30", "100", "200", "300", "4096", "2048", "1024"]
    kernel = kernel_of(tmp_path, metrics, counts)
    # By hand: 1+2+2*3, 10+20+2*30, 100+200+2*300; tensor operations count 2 per multiply-accumulate already.
    assert (kernel["flop_fp64"], kernel["flop_fp32"], kernel["flop_fp16"]) == (9, 90, 900)
    assert kernel["flop_tensor"] == 4096 + 2048 + 1024
    assert kernel["flop"] == 9 + 90 + 900 + 7168
    assert not kernel["flop_is_lower_bound"]


def test_the_sum_over_multiprocessors_counts_the_same(tmp_path: Path) -> None:
    names = [name.replace("smsp__", "sm__") for name in FP32]
    assert kernel_of(tmp_path, dict.fromkeys(names, "inst"), ["1", "2", "3"])["flop"] == 9
    both = {**FP32, **dict.fromkeys(names, "inst")}
    assert kernel_of(tmp_path, both, ["1", "2", "3"] * 2)["flop"] == 9, "one of two names for the same thing"


@pytest.mark.parametrize(
    ("metrics", "values"),
    [({TIME: "ns"}, ["5"]), (FP32, ["1", "n/a", "3"]), ({FADD: "inst", FFMA: "inst"}, ["1", "3"])],
    ids=["no counters", "no value", "not all"],
)
def test_flop_that_were_not_counted_are_unavailable(metrics: dict[str, str], values: list[str], tmp_path: Path) -> None:
    kernel = kernel_of(tmp_path, metrics, values)
    assert math.isnan(kernel["flop"])
    assert math.isnan(kernel["flop_fp32"])


def test_a_type_of_which_only_a_part_was_counted_makes_a_lower_bound(tmp_path: Path) -> None:
    metrics = {SASS.format(operation): "inst" for operation in ("hadd", "hmul", "hfma", "ffma")}
    kernel = kernel_of(tmp_path, metrics, ["1", "1", "1", "50"])
    assert kernel["flop"] == 4
    assert kernel["flop_is_lower_bound"]
    assert not kernel_of(tmp_path, FP32, ["1", "1", "1"])["flop_is_lower_bound"]


PIPE_TIME = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed"


@pytest.mark.parametrize(
    ("metrics", "values", "name", "tensor", "flop", "is_lower_bound"),
    [
        ({}, [], SIMT, math.nan, 9, False),
        ({}, [], TENSOR, math.nan, 9, True),
        ({TENSOR_PIPE: "inst"}, ["0"], TENSOR, 0, 9, False),
        ({TENSOR_PIPE: "inst"}, ["7"], SIMT, math.nan, 9, True),
        ({TENSOR_PIPE: "inst"}, ["n/a"], TENSOR, math.nan, 9, True),
        ({TENSOR_PIPE: "inst"}, ["n/a"], SIMT, math.nan, 9, False),
        ({PIPE_TIME: "%"}, ["1.5"], SIMT, math.nan, 9, True),
        ({PIPE_TIME: "%"}, ["0"], TENSOR, math.nan, 9, False),
        ({TENSOR_PIPE: "inst", TF32: ""}, ["7", "4096"], TENSOR, 4096, 4105, False),
        ({TENSOR_PIPE: "inst", TF32: ""}, ["7", "0"], TENSOR, 0, 9, True),
        ({TF32: ""}, ["0"], SIMT, 0, 9, False),
        ({TF32: ""}, ["0"], TENSOR, 0, 9, True),
        ({TF32: ""}, ["n/a"], TENSOR, math.nan, math.nan, True),
    ],
)
def test_tensor_work_that_nothing_counted_makes_a_lower_bound(
    metrics: dict[str, str],
    values: list[str],
    name: str,
    tensor: float,
    flop: float,
    is_lower_bound: bool,
    tmp_path: Path,
) -> None:
    kernel = kernel_of(tmp_path, {**FP32, **metrics}, ["1", "2", "3", *values], name)
    assert kernel["flop_tensor"] == pytest.approx(tensor, nan_ok=True)
    assert kernel["flop"] == pytest.approx(flop, nan_ok=True)
    assert kernel["flop_is_lower_bound"] == is_lower_bound


HFMA2 = "sm__inst_executed_pipe_tensor_op_hmma_type_hfma2.sum"


@pytest.mark.parametrize("capability", ["8.0", "9.0", "12.0"])
@pytest.mark.parametrize(
    ("metrics", "values", "name", "tensor", "is_lower_bound"),
    [
        # HFMA2.MMA builds constants on the tensor pipe: no matrix product is hidden.
        ({TENSOR_PIPE: "inst", HFMA2: "inst"}, ["96", "96"], SIMT, 0, False),
        ({TENSOR_PIPE: "inst", HFMA2: "inst", TF32: ""}, ["96", "96", "0"], SIMT, 0, False),
        ({TENSOR_PIPE: "inst", HFMA2: "inst"}, ["5096", "96"], SIMT, math.nan, True),
        # Not counted apart: the kernel's name decides, and an idle pipe.
        ({TENSOR_PIPE: "inst"}, ["96"], SIMT, math.nan, False),
        ({TENSOR_PIPE: "inst"}, ["96"], TENSOR, math.nan, True),
        ({TENSOR_PIPE: "inst"}, ["0"], TENSOR, 0, False),
        ({PIPE_TIME: "%"}, ["1.5"], SIMT, math.nan, False),
        ({PIPE_TIME: "%"}, ["0"], TENSOR, math.nan, False),
    ],
)
def test_constants_built_on_the_tensor_pipe_hide_nothing(
    metrics: dict[str, str],
    values: list[str],
    name: str,
    tensor: float,
    is_lower_bound: bool,
    capability: str,
    tmp_path: Path,
) -> None:
    kernel = kernel_of(tmp_path, {**FP32, **metrics}, ["1", "2", "3", *values], name, capability)
    assert kernel["flop_tensor"] == pytest.approx(tensor, nan_ok=True)
    assert kernel["flop_is_lower_bound"] == is_lower_bound


def test_of_launches_each_has_its_own_bound(tmp_path: Path) -> None:
    text = wide({**FP32, TENSOR_PIPE: "inst"}, [["1", "1", "1", "0"], ["1", "1", "1", "9"]], capability="8.9")
    assert list(ncu.read(save(tmp_path, text)).kernels["flop_is_lower_bound"]) == [False, True]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([FP16_FP32, FP16_FP16], [FP16_FP32, FP16_FP16]),
        # Hopper counts all accumulators and instructions under one name.
        (["sm__ops_path_tensor_src_fp16.sum", FP16_FP32], ["sm__ops_path_tensor_src_fp16.sum"]),
        (
            ["sm__ops_path_tensor_src_fp16.sum", "sm__ops_path_tensor_op_hmma_src_fp16_dst_fp32.sum"],
            ["sm__ops_path_tensor_src_fp16.sum"],
        ),
        (
            ["sm__ops_path_tensor_op_hgmma_src_fp16.sum", "sm__ops_path_tensor_op_hmma_src_fp16.sum"],
            ["sm__ops_path_tensor_op_hgmma_src_fp16.sum", "sm__ops_path_tensor_op_hmma_src_fp16.sum"],
        ),
        # A T4 counts three types under one name.
        (
            ["sm__ops_path_tensor_src_fp16_bf16_tf32_dst_fp32.sum", TF32],
            ["sm__ops_path_tensor_src_fp16_bf16_tf32_dst_fp32.sum"],
        ),
        # Parts by sparsity, integers, other suffixes.
        ([TF32, TF32.replace(".sum", "_sparsity_on.sum"), TF32.replace(".sum", "_sparsity_off.sum")], [TF32]),
        ([TF32.replace(".sum", "_sparsity_off.sum")], []),
        (["sm__ops_path_tensor_src_int8.sum", "sm__ops_path_tensor_op_bmma_src_int1.sum"], []),
        ([TF32.replace(".sum", ".avg"), TF32.replace(".sum", ".sum.per_second")], []),
        (["sm__ops_path_tensor_src_fp64.sum", "sm__ops_path_tensor_src_fp8.sum"], None),
    ],
)
def test_no_tensor_operation_is_counted_twice(names: list[str], expected: list[str] | None) -> None:
    assert sorted(tensor_operations(names)) == sorted(names if expected is None else expected)


@pytest.mark.parametrize(
    ("metrics", "values", "expected"),
    [
        ({DRAM: "byte", READ: "byte", WRITTEN: "byte"}, ["9", "5", "3"], 9),
        ({READ: "Kbyte", WRITTEN: "byte"}, ["5", "3"], 5003),
        ({"dram__bytes_op_read.sum": "byte", "dram__bytes_op_write.sum": "byte"}, ["5", "3"], 8),
        ({READ: "byte"}, ["5"], math.nan),
        ({READ: "byte", WRITTEN: "byte"}, ["5", "n/a"], math.nan),
        ({TIME: "ms", "dram__bytes.sum.per_second": "Gbyte/s"}, ["2", "3"], 6e6),
        ({"dram__bytes.sum.per_second": "Gbyte/s"}, ["3"], math.nan),
    ],
)
def test_dram_bytes(metrics: dict[str, str], values: list[str], expected: float, tmp_path: Path) -> None:
    assert kernel_of(tmp_path, metrics, values)["dram_bytes"] == pytest.approx(expected, nan_ok=True)


def test_flop_from_the_rates_of_roofline_sections(tmp_path: Path) -> None:
    rate = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum.per_cycle_elapsed"
    metrics = {rate.format(f"f{operation}"): "inst/cycle" for operation in ("add", "mul", "fma")}
    metrics |= {"smsp__cycles_elapsed.avg.per_second": "cycle/nsecond", TIME: "us"}
    found = ncu.read(save(tmp_path, wide(metrics, [["1", "2", "3.5", "1.5", "2"]])))
    # (1 + 2 + 2 * 3.5) a cycle, 1.5 GHz for 2 us
    assert found.kernels["flop"][0] == pytest.approx(10 * 1.5e9 * 2e-6)
    assert found.warnings == (flop.FLOP_FROM_RATES,)
    counted = wide({**metrics, **FP32}, [["1", "2", "3.5", "1.5", "2", "10", "20", "30"]])
    found = ncu.read(save(tmp_path, counted))
    assert found.kernels["flop"][0] == 90, "counts are exact"
    assert found.warnings == ()

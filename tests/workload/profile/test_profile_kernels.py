from pathlib import Path

import pytest

from workload.contract.errors import ToolError
from workload.contract.ncu_csv import NcuSource
from workload.profile.metrics import Kernel, read

ROLES = {
    "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum": "fp32_add",
    "smsp__sass_thread_inst_executed_op_fmul_pred_on.sum": "fp32_mul",
    "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum": "fp32_fma",
    "gpu__time_duration.sum": "time_s",
    "dram__bytes.sum": "dram_bytes",
    "sm__ops_path_tensor_src_fp16_dst_fp32.sum": "tensor_flop_fp16",
    "sm__ops_path_tensor_src_fp16_dst_fp16.sum": "tensor_flop_fp16",
}
MARKS = "Id:Domain:Start/Stop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"
# What ncu puts around: messages before the table, columns that nobody asked for, a name with commas and quotes.
WIDE = f"""==PROF== Connected to process 11884 (/usr/bin/python3.12)
"ID","Process ID","Process Name","Host Name","thread Domain:Push/Pop_Range:PL_Type","{MARKS}","Kernel Name",\
"Context","Device","CC","dram__bytes.sum","gpu__time_duration.sum","profiler__replayer_passes",\
"smsp__sass_thread_inst_executed_op_fadd_pred_on.sum","smsp__sass_thread_inst_executed_op_ffma_pred_on.sum",\
"smsp__sass_thread_inst_executed_op_fmul_pred_on.sum","sm__ops_path_tensor_src_fp16_dst_fp16.sum",\
"sm__ops_path_tensor_src_fp16_dst_fp32.sum"
"","","","","","","","","","","byte","nsecond","pass","inst","inst","inst","",""
"0","11","python","127.0.0.1","","1  ""<default domain>:step 0 forward:none:none:none:none:none:none"" ",\
"void k<float, ""a"">(int, T1 *)","1","0","8.9","4195712","31872","4","10","1000","3","0","2048"
"1","11","python","127.0.0.1","","","fill","1","0","8.9","0","1500.50","4","0","0","0","n/a",""
"""


def parse(text: str, roles: dict[str, str]) -> tuple[list[Kernel], tuple[str, ...]]:
    return read(NcuSource(path=Path("kernels.csv"), content=text.encode()), roles)


def test_columns_are_found_by_name() -> None:
    first, second = parse(WIDE, ROLES)[0]
    assert first.name == 'void k<float, "a">(int, T1 *)'
    assert (first.process_id, first.index, first.passes) == ("11", "0", 4)
    assert first.marks is not None
    assert "step 0 forward" in first.marks
    assert first.values["dram_bytes"] == 4195712
    assert first.values["time_s"] == pytest.approx(31.872e-6)
    assert first.values["tensor_flop_fp16"] == 2048, "metrics of one role are added up"
    assert second.values["dram_bytes"] == 0, "0 bytes of one kernel are normal"
    assert second.values["time_s"] == pytest.approx(1.5005e-6)
    assert second.values["tensor_flop_fp16"] is None, "n/a is not 0"


def test_table_without_ranges_says_so() -> None:
    text = WIDE.replace(MARKS, "something else")
    assert [kernel.marks for kernel in parse(text, ROLES)[0]] == [None, None]


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ("==PROF== x\n==ERROR== Failed to load report file 'a'.\n", "reports: ==ERROR== Failed to load report file"),
        ("", "there is no table; ncu reports: nothing"),
        (WIDE.splitlines()[1] + "\n", "the second row has no units"),
    ],
    ids=["error", "empty", "header only"],
)
def test_a_file_without_a_table_is_refused(broken: str, message: str) -> None:
    with pytest.raises(ToolError) as caught:
        parse(broken, ROLES)
    assert message in str(caught.value)
    assert caught.value.hint.startswith("LC_ALL=C ncu --import")


NAN = "dram__bytes.sum is no number, 'nan': left out of 1 launch"


FURLONG = "dram__bytes.sum is in an unknown unit, 'furlong': left out of 2 launches"


@pytest.mark.parametrize(
    ("old", "new", "dram_bytes", "notes"),
    [
        ('"4195712"', '"4,195,712"', 4195712, ()),
        ('"4195712"', '"nan"', None, (NAN,)),
        ('"byte"', '"Mbyte"', 4195712e6, ()),
        ('"byte"', '"furlong"', None, (FURLONG,)),
    ],
)
def test_an_odd_cell_costs_that_cell(old: str, new: str, dram_bytes: float | None, notes: tuple[str, ...]) -> None:
    kernels, reported = parse(WIDE.replace(old, new), ROLES)
    assert [kernel.name for kernel in kernels] == ['void k<float, "a">(int, T1 *)', "fill"]
    assert kernels[0].values["dram_bytes"] == dram_bytes
    assert kernels[0].values["tensor_flop_fp16"] == 2048, "the others are not touched"
    assert reported == notes


def test_a_broken_row_costs_that_row() -> None:
    kernels, notes = parse(WIDE.replace('"4","10",', '"4",'), ROLES)
    assert [kernel.name for kernel in kernels] == ["fill"]
    assert notes == ("1 row with too few or too many cells: left out",)


def test_without_a_sum_of_dram_bytes_its_parts_are_added() -> None:
    text = WIDE.replace("dram__bytes.sum", "dram__bytes_op_read.sum").replace(
        "sm__ops_path_tensor_src_fp16_dst_fp16.sum", "dram__bytes_op_write.sum"
    )
    roles = {"dram__bytes_op_read.sum": "dram_read_bytes", "dram__bytes_op_write.sum": "dram_write_bytes"}
    first, second = parse(text, roles)[0]
    assert (first.values["dram_bytes"], second.values.get("dram_bytes")) == (4195712, None)


@pytest.mark.parametrize(
    ("unit", "cell", "expected_s"), [("ns", "2000", 2e-6), ("usecond", "2.5", 2.5e-6), ("second", "1e-3", 1e-3)]
)
def test_time_units_of_several_versions(unit: str, cell: str, expected_s: float) -> None:
    text = WIDE.replace('"nsecond"', f'"{unit}"').replace('"31872"', f'"{cell}"')
    assert parse(text, ROLES)[0][0].values["time_s"] == pytest.approx(expected_s)


def kernel(name: str = "k", **values: float | None) -> Kernel:
    return Kernel(process_id="1", index="0", name=name, marks="", passes=None, values=values)


def plain(kind: str, add: float, mul: float, fma: float) -> dict[str, float]:
    return {f"{kind}_add": add, f"{kind}_mul": mul, f"{kind}_fma": fma}


def test_flop_are_add_plus_mul_plus_twice_fma_plus_tensor_operations() -> None:
    counted = kernel(
        **plain("fp64", 1, 2, 3),
        **plain("fp32", 10, 20, 30),
        **plain("fp16", 100, 200, 300),
        tensor_flop_tf32=4096,
        tensor_flop_fp16=0,
    )
    # By hand: 1+2+2*3, 10+20+2*30, 100+200+2*300; tensor operations count 2 per multiply-accumulate already.
    by_class = {"fp64": 9, "fp32": 90, "fp16": 900, "tensor_tf32": 4096, "tensor_fp16": 0}
    assert (counted.flop_by_class, counted.tensor_flop) == (by_class, 4096)
    # FLOP of a type without all its counters are unknown.
    some = kernel(fp32_add=1, fp32_mul=None, fp32_fma=1, **plain("fp64", 0, 0, 0))
    assert some.flop_by_class == {"fp64": 0, "fp32": None, "fp16": None}


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("k", {"tensor_instructions": 5}, True),
        ("ampere_sgemm_128x64_nn", {"tensor_instructions": 0}, False),
        # HFMA2.MMA builds constants on the tensor pipe of an A100 or H100.
        ("batch_norm_collect_statistics", {"tensor_pipe_instructions": 96, "hfma2_instructions": 96}, False),
        ("sm80_xmma_fprop_tensor16x8x8", {"tensor_pipe_instructions": 5096, "hfma2_instructions": 96}, True),
        ("ampere_fp16_s16816gemm_fp16", {"tensor_pipe_instructions": 0}, False),
        # An old ncu cannot tell them apart: the name decides.
        ("softmax_warp_forward", {"tensor_pipe_instructions": 96, "hfma2_instructions": None}, False),
        ("nvjet_hsh_128x128_64x4_2x1", {"tensor_pipe_instructions": 96}, True),
        ("sm80_xmma_fprop_implicit_gemm_f16f16_tensorop", {}, True),
        ("fmha_cutlassF_f32_aligned_64x64_rf_sm80", {}, False),
    ],
)
def test_tensor_cores_by_counter_or_else_by_name(name: str, values: dict[str, float | None], expected: bool) -> None:
    assert kernel(name, **values).uses_tensor_cores is expected

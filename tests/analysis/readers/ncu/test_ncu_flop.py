import pytest

from workload.contract.vocabulary import tensor_operations

FP16_FP32 = "sm__ops_path_tensor_src_fp16_dst_fp32.sum"
FP16_FP16 = "sm__ops_path_tensor_src_fp16_dst_fp16.sum"
TF32 = "sm__ops_path_tensor_src_tf32_dst_fp32.sum"


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

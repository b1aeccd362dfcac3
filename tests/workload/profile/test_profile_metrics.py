import pytest

from tests.workload.profile.ncu_stand_in import EVERY_METRIC
from workload.contract.spec import Precision
from workload.contract.vocabulary import TENSOR_PIPE_IS_PRODUCTS
from workload.profile import metrics
from workload.profile.metrics import (
    OWN_PASSES,
    base,
    choose,
    choose_step,
    choose_throughput,
    table,
    with_own,
)

FP16 = ("sm__ops_path_tensor_src_fp16_dst_fp32.sum", "sm__ops_path_tensor_src_fp16_dst_fp16.sum")
TURING = ("sm__ops_path_tensor_src_fp16_bf16_tf32_dst_fp32.sum", "sm__ops_path_tensor_src_fp16_dst_fp16.sum")
HFMA2 = "sm__inst_executed_pipe_tensor_op_hmma_type_hfma2.sum"
TF32, BF16 = "sm__ops_path_tensor_src_tf32_dst_fp32.sum", "sm__ops_path_tensor_src_bf16_dst_fp32.sum"


@pytest.mark.parametrize(
    ("capability", "precision", "tensor"),
    [
        ("7.0", "fp32", ()),
        ("7.0", "amp", FP16),
        ("7.5", "fp32", ()),
        ("7.5", "amp", TURING),
        ("8.0", "fp32", (TF32,)),
        ("8.6", "tf32", (TF32,)),
        ("8.9", "amp", (*FP16, TF32)),
        ("8.9", "bf16", (BF16, TF32)),
        ("9.0", "amp", ("sm__ops_path_tensor_src_fp16.sum", TF32)),
        ("9.0", "bf16", (BF16, TF32)),
        # A GPU that the table lacks: what this ncu names, nothing twice.
        ("12.0", "amp", ("sm__ops_path_tensor_src_fp16.sum", TURING[0])),
    ],
)
def test_tensor_metrics_follow_chip_and_precision(capability: str, precision: str, tensor: tuple[str, ...]) -> None:
    chosen = choose(capability, Precision(precision), EVERY_METRIC)
    assert tuple(name for name in chosen.names if "ops_path" in name) == tensor
    assert chosen.missing == ()
    assert len(chosen.names) == len(table().common) + len(tensor) - (capability in TENSOR_PIPE_IS_PRODUCTS)
    assert "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum" in chosen.names
    assert (chosen.passes is None) is (capability == "12.0")


def test_roles_say_what_a_metric_counts() -> None:
    roles = choose("8.9", Precision.AMP, EVERY_METRIC).roles
    assert roles["smsp__sass_thread_inst_executed_op_hfma_pred_on.sum"] == "fp16_fma"
    assert {roles[name] for name in FP16} == {"tensor_flop_fp16"}
    assert roles["dram__bytes_read.sum"] == "dram_read_bytes"


def test_what_an_ncu_lacks_is_missing_and_not_asked_for() -> None:
    chosen = choose("8.0", Precision.TF32, EVERY_METRIC - {base(TF32), "l1tex__t_bytes"})
    assert chosen.missing == ("l1tex__t_bytes.sum", TF32)
    assert not {"l1tex__t_bytes.sum", TF32} & set(chosen.names)
    assert choose("9.0", Precision.TF32, EVERY_METRIC - {base(HFMA2)}).missing == (HFMA2,)
    assert choose("8.9", Precision.TF32, EVERY_METRIC - {base(HFMA2)}).missing == ()
    # A type that is half known is not counted at all.
    chosen = choose("7.0", Precision.AMP, EVERY_METRIC - {base(FP16[0])})
    assert chosen.missing == (FP16[0],)
    assert not set(FP16) & set(chosen.names)


def test_own_metrics_are_added_once_and_cost_passes() -> None:
    chosen = choose("8.9", Precision.FP32, EVERY_METRIC)
    wanted = ["dram__bytes.sum", "lts__t_bytes.avg", "launch__registers_per_thread"]
    own = with_own(chosen, wanted, EVERY_METRIC, {"lts__t_bytes.avg", "lts__t_bytes.sum"})
    assert own.names == (*chosen.names, "lts__t_bytes.avg", "launch__registers_per_thread")
    assert (own.own, own.roles, own.passes, own.most_passes) == (tuple(wanted), chosen.roles, 4, 4 + 2 * OWN_PASSES)
    assert with_own(chosen, [], EVERY_METRIC, ()) == chosen
    # An ncu that lists no suffixes is believed.
    assert with_own(chosen, ["lts__t_bytes.x", "l9__x.sum"], EVERY_METRIC, ()).own == ("lts__t_bytes.x",)


@pytest.mark.parametrize("name", ["lts__t_bytes.som", "lts__t_bytes", "zzz__qqq.sum"])
def test_absent_metric_is_left_out_and_noted(name: str) -> None:
    chosen = choose("8.9", Precision.FP32, EVERY_METRIC)
    own = with_own(chosen, [name], EVERY_METRIC, {"lts__t_bytes.avg", "lts__t_bytes.sum"})
    assert (own.own, own.own_missing, own.names) == ((), (name,), chosen.names)
    lists = "ncu's option --query-metrics lists what it has"
    assert list(own.notes()) == [f"this ncu does not have {name} for this GPU: left out; {lists}"]


@pytest.mark.parametrize(
    ("capability", "role"),
    [
        ("7.0", "tensor_instructions"),
        ("8.9", "tensor_instructions"),
        ("8.0", "tensor_pipe_instructions"),
        ("9.0", "tensor_pipe_instructions"),
        ("12.0", "tensor_pipe_instructions"),
    ],
)
def test_a_busy_tensor_pipe_is_a_product_only_where_nothing_else_runs_there(capability: str, role: str) -> None:
    roles = choose(capability, Precision.FP32, EVERY_METRIC).roles
    assert roles["sm__inst_executed_pipe_tensor.sum"] == role
    assert (HFMA2 in roles) is (role == "tensor_pipe_instructions")


def test_consumer_blackwell_has_other_names_for_the_same() -> None:
    known = EVERY_METRIC - {"dram__bytes", "dram__bytes_read", "dram__bytes_write"}
    chosen = choose("12.0", Precision.FP32, known)
    assert chosen.roles["dram__bytes_op_read.sum"] == "dram_read_bytes"
    assert chosen.missing == ()


def test_the_step_and_throughput_have_metrics_of_their_own() -> None:
    step = choose_step(EVERY_METRIC)
    assert set(step.roles.values()) == set(metrics.STEP_ROLES)
    assert not any("sass" in name for name in step.names)
    throughput = choose_throughput("7.0", EVERY_METRIC)
    assert set(throughput.roles.values()) == {"sm_percent", "memory_percent", "dram_percent", "time_s"}
    assert throughput.passes == 18
    assert choose_throughput("10.0", EVERY_METRIC).passes is None

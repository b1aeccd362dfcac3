import pytest

from analysis.readers import kineto
from analysis.readers.attribution import Attribution, attribute, steps_of
from analysis.readers.kineto import Call
from analysis.readers.operator_work import CallWork, Context, Lack, work_of
from tests.analysis.readers.traces.kineto_traces import (
    CONVOLUTION_FLOP,
    MM_FLOP,
    Event,
    annotation,
    document,
    gpu_trace,
    kernel,
    launch,
    operator,
    product_step,
    step,
)


def read(text: str, *, given: int | None = None, device: str | None = "0") -> Attribution:
    trace = kineto.read(text, file="t.json")
    steps = steps_of(trace, given)
    assert steps is not None
    return attribute(trace, steps, device=device)


def test_kernels_are_the_operators_that_launched_them() -> None:
    found = read(gpu_trace(3))
    assert found.steps.number == 3
    rows = {row.name: row for row in found.rows}
    assert {name: (row.family, row.calls, row.flop, row.lack) for name, row in rows.items()} == {
        "aten::convolution": ("convolution", 3, 3 * CONVOLUTION_FLOP, None),
        # The images need no gradient.
        "aten::convolution_backward": ("convolution", 3, 3 * CONVOLUTION_FLOP, None),
        "aten::mm": ("GEMM", 3, 3 * MM_FLOP, None),
        "aten::_fused_adam_": ("optimizer", 3, 0, None),
        "aten::copy_": ("copy", 3, 0, None),
        "triton_poi_fused_add_relu_0": ("unattributed", 3, None, "no formula"),
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL": ("communication", 3, None, None),
    }
    seconds = {name: row.seconds / 3 for name, row in rows.items()}
    assert seconds == pytest.approx(
        {
            "aten::convolution": 200e-6,
            "aten::convolution_backward": 100e-6,
            "aten::mm": 100e-6,
            "aten::_fused_adam_": 20e-6,
            "aten::copy_": 5e-6,
            "triton_poi_fused_add_relu_0": 50e-6,
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL": 30e-6,
        }
    )
    assert found.unattributed == pytest.approx({"triton_poi_fused_add_relu_0": 50 / 505})
    assert found.flop_by_precision == {"fp32": 3 * (2 * CONVOLUTION_FLOP + MM_FLOP)}
    assert found.step_s == pytest.approx([1e-3] * 3)


def test_bytes_of_an_optimizer_are_those_of_its_lists() -> None:
    found = read(gpu_trace(1))
    (adam,) = [row for row in found.rows if row.name == "aten::_fused_adam_"]
    parameters = 6 * 27 + 960
    # Four lists read and, gradients too, written; their element type is not in a trace: at most 4 bytes, at least 2.
    steps = 2
    assert adam.bytes_high == 4 * (2 * 4 * parameters + steps)
    assert adam.bytes_low == 2 * (parameters + steps)


def with_long_lists(*more: Event) -> str:
    """As torch writes lists of more than 30 tensors: without shapes."""
    events = step(0, 10_000.0)
    (adam,) = [event for event in events if event["name"] == "aten::_fused_adam_"]
    adam["args"]["Input Dims"] = [[]] * 6
    return document([*events, *more])


def test_an_optimizer_of_many_tensors_holds_the_parameters_that_got_gradients() -> None:
    gradients = [
        operator("torch::autograd::AccumulateGrad", 10_500 + at, 5, [[size]], ["float"], tid=9, number=200 + at)
        for at, size in ((0, 162), (10, 960))
    ]
    found = read(with_long_lists(*gradients))
    (adam,) = [row for row in found.rows if row.name == "aten::_fused_adam_"]
    # Parameters, gradients and two moments, read and written.
    assert (adam.lack, adam.bytes_low, adam.bytes_high) == (None, 0, 4 * 2 * 4 * 1122)
    assert any(remark.startswith("a trace has no shapes for lists of more than 30 tensors") for remark in found.remarks)


def test_without_gradients_an_optimizer_of_many_tensors_has_no_bytes_and_hides_no_flop() -> None:
    found = read(with_long_lists())
    assert found.unattributed == pytest.approx(
        {"triton_poi_fused_add_relu_0": 50 / 505, "aten::_fused_adam_": 20 / 505}
    )
    assert found.uncounted_share == pytest.approx(50 / 505)


TF32_NAMES = {
    "implicit_convolve_sgemm": "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32",
    "cudnn::wgrad_alg0_engine": "sm80_xmma_wgrad_implicit_gemm_indexed_tf32f32_tf32f32",
    "volta_sgemm_32x32_nn": "cutlass_80_tensorop_s1688gemm_128x64_16x6_nn_align4",
}


@pytest.mark.parametrize(
    ("renamed", "major", "expected"),
    [
        (3, 8, {"tf32": 2 * CONVOLUTION_FLOP + MM_FLOP}),
        # As PyTorch computes by default: the product's kernel takes a quarter of the time.
        (2, 8, {"fp32": MM_FLOP, "tf32": 2 * CONVOLUTION_FLOP}),
        # Each call counts for itself.
        (1, 8, {"fp32": CONVOLUTION_FLOP + MM_FLOP, "tf32": CONVOLUTION_FLOP}),
        (0, 8, {"fp32": 2 * CONVOLUTION_FLOP + MM_FLOP}),
        (3, 7, {"fp32": 2 * CONVOLUTION_FLOP + MM_FLOP}),
    ],
)
def test_calls_of_floats_with_a_tensor_core_kernel_are_tf32_if_the_gpu_has_it(
    renamed: int, major: int, expected: dict[str, int]
) -> None:
    text = gpu_trace(1).replace('"computeMajor": 7', f'"computeMajor": {major}')
    for name in list(TF32_NAMES)[:renamed]:
        text = text.replace(name, TF32_NAMES[name])
    assert read(text).flop_by_precision == expected


def test_without_values_the_backward_pass_tells_the_output_and_both_gradients_are_counted() -> None:
    found = read(gpu_trace(1, values=False))
    assert found.flop_by_op == {
        "convolution": CONVOLUTION_FLOP,
        "convolution_backward": 2 * CONVOLUTION_FLOP,
        "matmul": MM_FLOP,
    }
    assert found.remarks[0].startswith("the trace has no values of arguments")


def test_work_on_the_host_is_none_of_the_gpu() -> None:
    more = operator("aten::mm", 10_500, 20, [[50, 50], [50, 50]], ["float", "float"], number=99)
    found = read(document([*step(0, 10_000.0), more]))
    assert found.flop_by_op["matmul"] == MM_FLOP


def test_what_only_one_step_has_is_in_the_fewest_bytes_once() -> None:
    more = operator("aten::relu_", 11_900, 20, [[1000]], ["float"], number=999)
    with_more = read(document([*step(0, 10_000.0), *step(1, 11_000.0), more]), device=None)
    plain = read(document([*step(0, 10_000.0), *step(1, 11_000.0)]), device=None)
    assert with_more.bytes_low - plain.bytes_low == 4 * 1000
    assert with_more.bytes_high - plain.bytes_high == 2 * 4 * 1000


# --- steps


def test_incomplete_steps_at_both_ends_are_left_out_and_named() -> None:
    def begun(number: int, start: float, from_: float, to: float) -> list[Event]:
        return [event for event in step(number, start) if from_ <= event["ts"] - start <= to]

    events = [
        annotation("ProfilerStep#3", 9_000, 1000),
        *begun(3, 9_000.0, 300, 2000),
        *step(4, 10_000.0),
        *step(5, 11_000.0),
        *begun(6, 12_000.0, 0, 100),
    ]
    found = read(document(events))
    assert found.steps.number == 2
    assert found.remarks[:2] == (
        "ProfilerStep#6 is incomplete and left out: 4 operators, the others have 10",
        "ProfilerStep#3 is incomplete and left out: 4 operators, the others have 10",
    )
    assert found.flop_by_op["matmul"] == 2 * MM_FLOP


def unmarked(*more: Event) -> str:
    events = [event for event in step(0, 0.0) if not event["name"].startswith("ProfilerStep")]
    return document([*events, *more])


@pytest.mark.parametrize(
    ("text", "given", "number", "remark"),
    [
        (unmarked(), None, None, ""),
        (unmarked(), 2, 2, "no step is marked: 2 as --profile-steps says"),
        (
            unmarked(annotation("Optimizer.step#SGD.step", 690, 80), annotation("Optimizer.step#SGD.step", 890, 80)),
            None,
            2,
            "no step is marked: 2 steps by Optimizer.step#SGD.step, and the whole trace belongs to them",
        ),
        # Of a GAN: which of them ends a step?
        (
            unmarked(annotation("Optimizer.step#SGD.step", 690, 80), annotation("Optimizer.step#Adam.step", 890, 80)),
            None,
            None,
            "",
        ),
        (gpu_trace(3), 4, 3, "the trace marks 3 whole steps, but the import was given 4"),
        (
            unmarked(annotation("Optimizer.step#SGD.step", 690, 80)),
            10,
            1,
            "the trace has 1 step by Optimizer.step#SGD.step, but the import was given 10",
        ),
        # Two optimizers of one class.
        (
            unmarked(annotation("Optimizer.step#SGD.step", 690, 80), annotation("Optimizer.step#SGD.step", 890, 80)),
            1,
            1,
            "no step is marked: 1 as --profile-steps says",
        ),
    ],
    ids=["nobody says", "somebody says", "one optimizer", "two optimizers", "marks", "optimizer's steps", "two alike"],
)
def test_steps(text: str, given: int | None, number: int | None, remark: str) -> None:
    steps = steps_of(kineto.read(text, file="t.json"), given)
    assert (steps.number if steps else None) == number
    assert remark in ((*steps.remarks, steps.contradiction) if steps else ("",))


def test_kernels_that_were_launched_before_the_trace_began_are_left_out() -> None:
    found = read(document(product_step(before=3)))
    assert [(row.name, row.lack) for row in found.rows] == [("aten::mm", None)]
    assert (found.busy_s, found.unattributed) == (pytest.approx(100e-6), {})
    (remark,) = found.remarks
    assert remark == "3 kernels of the step before, 300 µs, are left out: the trace begins after they were launched"
    assert read(document(product_step())).remarks == ()


@pytest.mark.parametrize(
    ("number", "row"), [(7, "aten::mm"), (50, "sgemm")], ids=["the operator's", "the launch's, as until 2023"]
)
def test_a_kernel_outside_of_operators_is_the_one_s_that_it_names(number: int, row: str) -> None:
    product = [
        operator("aten::mm", 10, 5, [[4, 96], [96, 10]], ["float", "float"], number=7),
        operator("aten::mm", 20, 5, [[4, 96], [96, 10]], ["float", "float"], number=50),
    ]
    launched = kernel("sgemm", 100, 10, 50)
    launched["args"]["External id"] = number
    found = read(document([*product, launch(50, 60), launched]), given=1)
    assert [one.name for one in found.rows] == [row]


# --- the work of single calls


def call(name: str, dims: list[object], values: tuple[str, ...] = (), dtype: str = "float") -> Call:
    frozen = tuple(tuple(shape) if isinstance(shape, list) else shape for shape in dims)
    return Call(name=name, dims=frozen, types=tuple(dtype if shape else "Scalar" for shape in dims), values=values)


@pytest.mark.parametrize(
    ("called", "flop"),
    [
        (call("aten::mm", [[2, 3], [3, 5]]), 2 * 2 * 3 * 5),
        (call("aten::bmm", [[7, 2, 3], [7, 3, 5]]), 7 * 2 * 2 * 3 * 5),
        (call("aten::addmm", [[5], [2, 3], [3, 5]]), 2 * 2 * 3 * 5),
        (call("aten::baddbmm", [[7, 2, 5], [7, 2, 3], [7, 3, 5]]), 7 * 2 * 2 * 3 * 5),
        (call("aten::addbmm", [[2, 5], [7, 2, 3], [7, 3, 5]]), 7 * 2 * 2 * 3 * 5),
        (call("aten::mv", [[4, 3], [3]]), 2 * 4 * 3),
        (call("aten::dot", [[9], [9]]), 2 * 9),
        (call("aten::linear", [[4, 6, 3], [5, 3], [5]]), 2 * 4 * 6 * 3 * 5),
        (
            call("aten::convolution", [[1, 4, 9, 9], [8, 2, 3, 3], [], [], [], [], [], [], []],
                 ("", "", "", "[2, 2]", "[0, 0]", "[1, 1]", "False", "[0, 0]", "2")),
            2 * 16 * 8 * 2 * 9,
        ),
        # Transposed: each weight at each position of the input.
        (
            call("aten::convolution", [[1, 4, 5, 5], [4, 2, 3, 3], [], [], [], [], [], [], []],
                 ("", "", "", "[2, 2]", "[0, 0]", "[1, 1]", "True", "[0, 0]", "1")),
            2 * 25 * 4 * 2 * 9,
        ),
        (call("aten::_scaled_dot_product_flash_attention", [[2, 3, 7, 8], [2, 3, 9, 8], [2, 3, 9, 8]]),
         2 * 2 * 3 * 7 * 9 * 16),
        (call("aten::_scaled_dot_product_efficient_attention_backward",
              [[2, 3, 7, 8], [2, 3, 7, 8], [2, 3, 9, 8], [2, 3, 9, 8]]), 2 * 2 * 2 * 3 * 7 * 9 * 16),
        (call("aten::relu_", [[2, 3]]), 0),
    ],
    ids=lambda value: value.name if isinstance(value, Call) else None,
)  # fmt: skip
def test_flop_of_a_call(called: Call, flop: int) -> None:
    work = work_of(called, Context())
    assert isinstance(work, CallWork)
    assert work.flop == flop


@pytest.mark.parametrize(
    ("called", "lack"),
    [
        (call("aten::mm", []), Lack.NO_SHAPES),
        (Call(name="aten::cat", dims=((), ()), types=("TensorList", "Scalar")), Lack.NO_SHAPES),
        # Stride and padding are nowhere.
        (call("aten::convolution", [[1, 4, 9, 9], [8, 4, 3, 3]]), Lack.NO_SHAPES),
        (call("flash_attn::_flash_attn_forward", [[2, 7, 3, 8]]), Lack.NO_FORMULA),
        (call("aten::_fft_r2c", [[2, 7]]), Lack.NO_FORMULA),
        # The indices are a list of tensors that may be absent, whose shapes no version records.
        (call("aten::index", [[15360, 4096], []]), Lack.NO_SHAPES),
        (call("aten::linear", [[2048, 160, 606], [2048, 3906], [2048, 3906]]), Lack.NO_SHAPES),
        (call("aten::mm", [[2, 3], [4, 5]]), Lack.NO_SHAPES),
        (call("aten::bmm", [[7, 2, 3], [6, 3, 5]]), Lack.NO_SHAPES),
        (call("aten::addmm", [[5], [2, 3], [4, 5]]), Lack.NO_SHAPES),
        (call("aten::mv", [[4, 3], [4]]), Lack.NO_SHAPES),
        (call("aten::_scaled_dot_product_flash_attention", [[2, 3, 7, 8], [2, 3, 9, 6], [2, 3, 9, 8]]), Lack.NO_SHAPES),
        (
            call("aten::convolution", [[1, 4, 9, 9], [8, 3, 3, 3], [], [], [], [], [], [], []],
                 ("", "", "", "[2, 2]", "[0, 0]", "[1, 1]", "False", "[0, 0]", "1")),
            Lack.NO_SHAPES,
        ),
    ],
)  # fmt: skip
def test_what_lacks_its_work_says_why(called: Call, lack: Lack) -> None:
    assert work_of(called, Context()) is lack


def test_child_counts_if_the_shapes_of_its_caller_contradict_each_other() -> None:
    linear, product = [[2048, 160, 606], [2048, 3906], [2048, 3906]], [[2048], [64, 3906], [3906, 2048]]
    events = [
        operator("aten::linear", 10, 50, linear, ["float"] * 3, number=1),
        operator("aten::addmm", 20, 30, product, ["float"] * 3, number=2),
        launch(1, 25),
        kernel("sgemm", 100, 10, 1),
        # Launched by the caller itself: its work is unknown.
        launch(2, 55),
        kernel("copy", 110, 5, 2),
    ]
    found = read(document(events), given=1)
    assert {row.name: (row.flop, row.lack, row.seconds) for row in found.rows} == {
        "aten::addmm": (2 * 64 * 3906 * 2048, None, pytest.approx(10e-6)),
        "aten::linear": (None, "no shapes", pytest.approx(5e-6)),
    }


@pytest.mark.parametrize("library", ["cudnn", "miopen", "mkldnn"])
def test_backward_pass_of_a_convolution_until_torch_1_10(library: str) -> None:
    images, gradient, weight = [4, 3, 8, 8], [4, 6, 4, 4], [6, 3, 3, 3]
    events = [
        operator("aten::convolution", 10, 20, [images, weight, []], ["float", "float", ""], number=1),
        operator(f"aten::{library}_convolution", 12, 10, [images, weight], ["float", "float"], number=2),
        operator(f"aten::{library}_convolution_backward", 40, 20, [images, gradient, weight], ["float"] * 3, number=3),
        operator(f"aten::{library}_convolution_backward_input", 42, 5, [[], gradient, weight], ["", "float", "float"]),
    ]
    found = read(document(events), given=1, device=None)
    assert found.flop_by_op == {"convolution": CONVOLUTION_FLOP, "convolution_backward": 2 * CONVOLUTION_FLOP}
    assert found.uncounted_share == 0
    assert found.has_backward


def test_shapes_without_types_as_in_2020() -> None:
    product = operator("aten::mm", 10, 20, number=1)
    product["args"] |= {"Input dims": [[4, 96], [96, 10]], "Input type": []}
    found = read(document([product]), given=1, device=None)
    assert (found.flop_by_op, found.flop_by_precision) == ({"matmul": MM_FLOP}, {"unknown": MM_FLOP})
    # The type may have 16 or 32 bits.
    elements = 4 * 96 + 96 * 10 + 4 * 10
    assert (found.bytes_low, found.bytes_high) == (2 * elements, 4 * elements)


@pytest.mark.parametrize(
    ("called", "moved"),
    [
        # Read and written in halves; a broadcast operand has its own size.
        (call("aten::add", [[4, 6], [6]], dtype="c10::Half"), 2 * (24 + 6 + 24)),
        (call("aten::add_", [[4, 6], [4, 6]]), 4 * (24 + 24 + 24)),
        (call("aten::copy_", [[4, 6], [4, 6]]), 4 * (24 + 24)),
        (call("aten::sum", [[4, 6]]), 4 * 24),
        # Of the table only the rows that come out.
        (
            Call(name="aten::embedding", dims=((1000, 8), (3,)), types=("float", "long int")),
            3 * 8 + 2 * 4 * 3 * 8,
        ),
        # An expanded tensor lies in memory once.
        (
            Call(
                name="aten::mul", dims=((100, 8), (100, 8)), strides=((8, 1), (0, 1)), types=("float", "float")
            ),
            4 * (800 + 8 + 800),
        ),
    ],
    ids=["add", "in place", "copy", "reduction", "embedding", "expanded"],
)  # fmt: skip
def test_bytes_of_a_call(called: Call, moved: int) -> None:
    work = work_of(called, Context())
    assert isinstance(work, CallWork)
    assert work.bytes_high == moved

import pytest

from analysis.readers import kineto
from analysis.readers.attribution import Attribution, attribute, steps_of
from analysis.readers.kineto import Call
from analysis.readers.operator_work import CallWork, Context, work_of
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
from tests.analysis.sentence_runs import Golden


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
    assert found.unattributed == pytest.approx({"triton_poi_fused_add_relu_0": 50 / 505})
    assert found.flop_by_precision == {"fp32": 3 * (2 * CONVOLUTION_FLOP + MM_FLOP)}
    assert found.step_s == pytest.approx([1e-3] * 3)


def with_long_lists(*more: Event) -> str:
    """As torch writes lists of more than 30 tensors: without shapes."""
    events = step(0, 10_000.0)
    (adam,) = [event for event in events if event["name"] == "aten::_fused_adam_"]
    adam["args"]["Input Dims"] = [[]] * 6
    return document([*events, *more])


TF32_NAMES = {
    "implicit_convolve_sgemm": "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32",
    "cudnn::wgrad_alg0_engine": "sm80_xmma_wgrad_implicit_gemm_indexed_tf32f32_tf32f32",
    "volta_sgemm_32x32_nn": "cutlass_80_tensorop_s1688gemm_128x64_16x6_nn_align4",
}


def in_tf32(renamed: int, major: int) -> str:
    """A step of which the first kernels are named for tensor cores, on a GPU of this compute capability."""
    text = gpu_trace(1).replace('"computeMajor": 7', f'"computeMajor": {major}')
    for name in list(TF32_NAMES)[:renamed]:
        text = text.replace(name, TF32_NAMES[name])
    return text


def begun(number: int, start: float, from_: float, to: float) -> list[Event]:
    return [event for event in step(number, start) if from_ <= event["ts"] - start <= to]


def unmarked(*more: Event) -> str:
    events = [event for event in step(0, 0.0) if not event["name"].startswith("ProfilerStep")]
    return document([*events, *more])


def naming(number: int) -> str:
    """A kernel outside of operators, whose event names an operator or a launch."""
    product = [
        operator("aten::mm", 10, 5, [[4, 96], [96, 10]], ["float", "float"], number=7),
        operator("aten::mm", 20, 5, [[4, 96], [96, 10]], ["float", "float"], number=50),
    ]
    launched = kernel("sgemm", 100, 10, 50)
    launched["args"]["External id"] = number
    return document([*product, launch(50, 60), launched])


def until_1_10(library: str) -> str:
    images, gradient, weight = [4, 3, 8, 8], [4, 6, 4, 4], [6, 3, 3, 3]
    return document(
        [
            operator("aten::convolution", 10, 20, [images, weight, []], ["float", "float", ""], number=1),
            operator(f"aten::{library}_convolution", 12, 10, [images, weight], ["float", "float"], number=2),
            operator(
                f"aten::{library}_convolution_backward", 40, 20, [images, gradient, weight], ["float"] * 3, number=3
            ),
            operator(
                f"aten::{library}_convolution_backward_input", 42, 5, [[], gradient, weight], ["", "float", "float"]
            ),
        ]
    )


def of_2020() -> str:
    product = operator("aten::mm", 10, 20, number=1)
    product["args"] |= {"Input dims": [[4, 96], [96, 10]], "Input type": []}
    return document([product])


SGD = [annotation("Optimizer.step#SGD.step", at, 80) for at in (690, 890)]
GRADIENTS = [
    operator("torch::autograd::AccumulateGrad", 10_500 + at, 5, [[size]], ["float"], tid=9, number=200 + at)
    for at, size in ((0, 162), (10, 960))
]
ON_THE_HOST = operator("aten::mm", 10_500, 20, [[50, 50], [50, 50]], ["float", "float"], number=99)
IN_THE_LAST = operator("aten::relu_", 11_900, 20, [[1000]], ["float"], number=999)
LINEAR = [[2048, 160, 606], [2048, 3906], [2048, 3906]]
# A trace, the number of steps that somebody said, and the device: None is a CPU.
TRACES: dict[str, tuple[str, int | None, str | None]] = {
    "one step": (gpu_trace(1), None, "0"),
    # 162 + 960 parameters, gradients and two moments, read and written.
    "an optimizer of many tensors": (with_long_lists(*GRADIENTS), None, "0"),
    "without gradients": (with_long_lists(), None, "0"),
    # As PyTorch computes by default: the product's kernel takes a quarter of the time. Each call counts for itself.
    "three kernels in tf32": (in_tf32(3, 8), None, "0"),
    "two kernels in tf32": (in_tf32(2, 8), None, "0"),
    "one kernel in tf32": (in_tf32(1, 8), None, "0"),
    "no kernel in tf32": (in_tf32(0, 8), None, "0"),
    "a GPU without tf32": (in_tf32(3, 7), None, "0"),
    # The backward pass tells the output, and both gradients are counted.
    "without values": (gpu_trace(1, values=False), None, "0"),
    "work on the host": (document([*step(0, 10_000.0), ON_THE_HOST]), None, "0"),
    # What only one step has is in the fewest bytes once, with 4 x 1000.
    "two steps": (document([*step(0, 10_000.0), *step(1, 11_000.0)]), None, None),
    "two steps and more in the last": (document([*step(0, 10_000.0), *step(1, 11_000.0), IN_THE_LAST]), None, None),
    "incomplete steps at both ends": (
        document(
            [
                annotation("ProfilerStep#3", 9_000, 1000),
                *begun(3, 9_000.0, 300, 2000),
                *step(4, 10_000.0),
                *step(5, 11_000.0),
                *begun(6, 12_000.0, 0, 100),
            ]
        ),
        None,
        "0",
    ),
    "nobody says the steps": (unmarked(), None, "0"),
    "somebody says them": (unmarked(), 2, "0"),
    "one optimizer": (unmarked(*SGD), None, "0"),
    # Of a GAN: which of them ends a step?
    "two optimizers": (unmarked(SGD[0], annotation("Optimizer.step#Adam.step", 890, 80)), None, "0"),
    "marks against what somebody says": (gpu_trace(3), 4, "0"),
    "an optimizer's steps against it": (unmarked(SGD[0]), 10, "0"),
    "two optimizers of one class": (unmarked(*SGD), 1, "0"),
    "kernels of the step before": (document(product_step(before=3)), None, "0"),
    "none of them": (document(product_step()), None, "0"),
    "a kernel that names an operator": (naming(7), 1, "0"),
    "a kernel that names its launch, as until 2023": (naming(50), 1, "0"),
    # The work of the kernel that the caller launches itself is unknown.
    "a caller whose shapes contradict each other": (
        document(
            [
                operator("aten::linear", 10, 50, LINEAR, ["float"] * 3, number=1),
                operator("aten::addmm", 20, 30, [[2048], [64, 3906], [3906, 2048]], ["float"] * 3, number=2),
                launch(1, 25),
                kernel("sgemm", 100, 10, 1),
                launch(2, 55),
                kernel("copy", 110, 5, 2),
            ]
        ),
        1,
        "0",
    ),
    **{
        f"a backward pass until torch 1.10, {name}": (until_1_10(name), 1, None)
        for name in ("cudnn", "miopen", "mkldnn")
    },
    # The type may have 16 or 32 bits.
    "shapes without types, as in 2020": (of_2020(), 1, None),
}


def told(text: str, given: int | None, device: str | None) -> list[str]:
    trace = kineto.read(text, file="t.json")
    steps = steps_of(trace, given)
    if steps is None:
        return ["the number of steps is unknown"]
    found = attribute(trace, steps, device=device)
    lines = [f"{steps.number} steps, {1e6 * found.busy_s:.4g} us busy, {100 * found.uncounted_share:.3g} % uncounted"]
    for row in found.rows:
        moved = f"{row.bytes_low} to {row.bytes_high} bytes"
        work = row.lack or f"{row.flop} FLOP, {moved}"
        lines.append(f"    {row.name}: {row.family}, {row.calls} calls, {1e6 * row.seconds:.4g} us, {work}")
    lines.append(f"FLOP {dict(found.flop_by_op)}, {dict(found.flop_by_precision)}, backward {found.has_backward}")
    lines.append(f"bytes {found.bytes_low} to {found.bytes_high}")
    return [*lines, *filter(None, (*found.remarks, steps.contradiction))]


def test_work_and_time_of_operators(golden: Golden) -> None:
    """Lines of "one step" are not printed again."""
    said = {name: told(*trace) for name, trace in TRACES.items()}
    known = said["one step"]
    lines = known + [
        line
        for name, found in said.items()
        if found is not known
        for line in (f"## {name}", *(one for one in found if one not in known))
    ]
    golden("traces.txt", "\n".join([*lines, ""]))


# --- the work of single calls


def call(name: str, dims: list[object], values: tuple[str, ...] = (), dtype: str = "float") -> Call:
    frozen = tuple(tuple(shape) if isinstance(shape, list) else shape for shape in dims)
    return Call(name=name, dims=frozen, types=tuple(dtype if shape else "Scalar" for shape in dims), values=values)


def convolution(images: list[int], weight: list[int], *, transposed: bool = False, groups: int = 1) -> Call:
    values = ("", "", "", "[2, 2]", "[0, 0]", "[1, 1]", str(transposed), "[0, 0]", str(groups))
    return call("aten::convolution", [images, weight, *[[]] * 7], values)


FLASH = "aten::_scaled_dot_product_flash_attention"
EFFICIENT = "aten::_scaled_dot_product_efficient_attention_backward"
# FLOP by hand: two for each multiplication of a product. Bytes: read and written, of 4 or 2 bytes.
CALLS = {
    "2 x 2 x 3 x 5": call("aten::mm", [[2, 3], [3, 5]]),
    "7 x 2 x 2 x 3 x 5": call("aten::bmm", [[7, 2, 3], [7, 3, 5]]),
    "2 x 2 x 3 x 5, and a bias": call("aten::addmm", [[5], [2, 3], [3, 5]]),
    "7 x 2 x 2 x 3 x 5, and a bias": call("aten::baddbmm", [[7, 2, 5], [7, 2, 3], [7, 3, 5]]),
    "7 x 2 x 2 x 3 x 5, added up": call("aten::addbmm", [[2, 5], [7, 2, 3], [7, 3, 5]]),
    "2 x 4 x 3": call("aten::mv", [[4, 3], [3]]),
    "2 x 9": call("aten::dot", [[9], [9]]),
    "2 x 4 x 6 x 3 x 5": call("aten::linear", [[4, 6, 3], [5, 3], [5]]),
    "2 x 16 x 8 x 2 x 9": convolution([1, 4, 9, 9], [8, 2, 3, 3], groups=2),
    # Each weight at each position of the input.
    "2 x 25 x 4 x 2 x 9": convolution([1, 4, 5, 5], [4, 2, 3, 3], transposed=True),
    "2 x 2 x 3 x 7 x 9 x 16": call(FLASH, [[2, 3, 7, 8], [2, 3, 9, 8], [2, 3, 9, 8]]),
    "2 x 2 x 2 x 3 x 7 x 9 x 16": call(EFFICIENT, [[2, 3, 7, 8], [2, 3, 7, 8], [2, 3, 9, 8], [2, 3, 9, 8]]),
    "2 x 2 x 3 x (1 + … + 7) x 16": call(FLASH, [[2, 3, 7, 8]] * 3, ("", "", "", "0.", "True", "False")),
    "no FLOP": call("aten::relu_", [[2, 3]]),
    "2 x (24 + 6 + 24) bytes": call("aten::add", [[4, 6], [6]], dtype="c10::Half"),
    "4 x (24 + 24 + 24) bytes": call("aten::add_", [[4, 6], [4, 6]]),
    "4 x (24 + 24) bytes": call("aten::copy_", [[4, 6], [4, 6]]),
    "4 x 24 bytes": call("aten::sum", [[4, 6]]),
    # Of the table only the rows that come out.
    "3 x 8 + 2 x 4 x 3 x 8 bytes": Call(name="aten::embedding", dims=((1000, 8), (3,)), types=("float", "long int")),
    # An expanded tensor lies in memory once.
    "4 x (800 + 8 + 800) bytes": Call(
        name="aten::mul", dims=((100, 8), (100, 8)), strides=((8, 1), (0, 1)), types=("float", "float")
    ),
    "no shapes": call("aten::mm", []),
    "lists without shapes": Call(name="aten::cat", dims=((), ()), types=("TensorList", "Scalar")),
    "stride and padding are nowhere": call("aten::convolution", [[1, 4, 9, 9], [8, 4, 3, 3]]),
    "no formula": call("flash_attn::_flash_attn_forward", [[2, 7, 3, 8]]),
    "an FFT": call("aten::_fft_r2c", [[2, 7]]),
    # A list of tensors that may be absent, whose shapes no version records.
    "indices": call("aten::index", [[15360, 4096], []]),
    "a linear layer that cannot be": call("aten::linear", LINEAR),
    "a product that cannot be": call("aten::mm", [[2, 3], [4, 5]]),
    "products that cannot be": call("aten::bmm", [[7, 2, 3], [6, 3, 5]]),
    "a product with a bias that cannot be": call("aten::addmm", [[5], [2, 3], [4, 5]]),
    "a vector that cannot be": call("aten::mv", [[4, 3], [4]]),
    "attention that cannot be": call(FLASH, [[2, 3, 7, 8], [2, 3, 9, 6], [2, 3, 9, 8]]),
    "a convolution that cannot be": convolution([1, 4, 9, 9], [8, 3, 3, 3]),
}


def test_work_of_a_call(golden: Golden) -> None:
    lines = []
    for name, called in CALLS.items():
        work = work_of(called, Context())
        said = f"{work.flop} FLOP, {work.bytes_high} bytes" if isinstance(work, CallWork) else f"{work}"
        lines.append(f"{called.name}, {name}: {said}")
    golden("calls.txt", "\n".join([*lines, ""]))

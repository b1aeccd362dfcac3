"""Traces in the forms of torch.profiler on a GPU, made by hand after real ones; times in microseconds."""

import json
from collections.abc import Sequence
from typing import Any

HOST, MAIN, AUTOGRAD, STREAM = 4515, 4515, 25556, 7
V100: dict[str, Any] = {
    "id": 0, "name": "Tesla V100-SXM2-16GB", "totalGlobalMem": 16935682048, "computeMajor": 7, "computeMinor": 0,
    "numSms": 80,
}  # fmt: skip
Event = dict[str, Any]


def operator(
    name: str,
    ts: float,
    dur: float,
    dims: Sequence[Any] = (),
    types: Sequence[str] = (),
    values: Sequence[str] = (),
    *,
    tid: int = MAIN,
    number: int = 0,
) -> Event:
    """Of the host; `number` is its External id."""
    args: dict[str, Any] = {"External id": number, "Ev Idx": number}
    if dims:
        args |= {"Input Dims": list(dims), "Input type": list(types)}
    if values:
        args["Concrete Inputs"] = list(values)
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": HOST, "tid": tid, "ts": ts, "dur": dur, "args": args}


def launch(correlation: int, ts: float, *, tid: int = MAIN) -> Event:
    args = {"cbid": 211, "correlation": correlation}
    return {
        "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": HOST, "tid": tid, "ts": ts, "dur": 2,
        "args": args,
    }  # fmt: skip


def kernel(
    name: str, ts: float, dur: float, correlation: int, *, device: int = 0, stream: int = STREAM, cat: str = "kernel"
) -> Event:
    args = {"External id": correlation, "device": device, "context": 1, "stream": stream, "correlation": correlation}
    return {"ph": "X", "cat": cat, "name": name, "pid": device, "tid": stream, "ts": ts, "dur": dur, "args": args}


def annotation(name: str, ts: float, dur: float, *, pid: int = HOST) -> Event:
    return {"ph": "X", "cat": "user_annotation", "name": name, "pid": pid, "tid": pid, "ts": ts, "dur": dur, "args": {}}


def document(events: Sequence[Event], **facts: Any) -> str:
    """A file as libkineto writes it: a line per event."""
    head = {"schemaVersion": 1, "record_shapes": 1, "displayTimeUnit": "ms", **facts}
    lines = ",\n".join(json.dumps(event) for event in events)
    return json.dumps(head)[:-1] + f', "traceEvents": [\n{lines}\n]}}\n'


# 4 x 3 x 8 x 8 images, 6 weights of 3 x 3 x 3: 2 x 4 x 6 x 4 x 4 x 27 FLOP at stride 2.
CONVOLUTION_FLOP = 2 * 4 * 6 * 16 * 27
MM_FLOP = 2 * 4 * 10 * 96
LIST = "TensorList"


def step(number: int, start: float, *, values: bool = True) -> list[Event]:
    """Of 1000 us on the host: convolution, product, their backward pass on a second thread, a fused optimizer.

    The kernels run 100 us later, two of them on streams at once, with one of Triton and one of NCCL.
    """
    n = 100 * number
    conv = (
        [[4, 3, 8, 8], [6, 3, 3, 3], [], [], [], [], [], [], []],
        ["float", "float", "", "ScalarList", "ScalarList", "ScalarList", "Scalar", "ScalarList", "Scalar"],
        ["", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"],
    )
    back = (
        [[4, 6, 4, 4], [4, 3, 8, 8], [6, 3, 3, 3], [], [], [], [], [], [], [], []],
        ["float", "float", "float", *["ScalarList"] * 4, "Scalar", "ScalarList", "Scalar", "ScalarList"],
        ["", "", "", "[0]", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1", "[False, True, False]"],
    )
    conv, back = (part if values else (*part[:2], ()) for part in (conv, back))
    at = start
    device = start + 100
    return [
        annotation(f"ProfilerStep#{number}", at, 1000),
        operator("aten::conv2d", at + 10, 100, *conv, number=n + 1),
        operator("aten::convolution", at + 11, 98, *conv, number=n + 2),
        operator("aten::_convolution", at + 12, 96, *conv, number=n + 3),
        operator("aten::cudnn_convolution", at + 13, 94, *conv, number=n + 4),
        launch(n + 1, at + 20),
        kernel("implicit_convolve_sgemm", device, 200, n + 1),
        operator("aten::mm", at + 120, 20, [[4, 96], [96, 10]], ["float", "float"], ["", ""], number=n + 5),
        launch(n + 2, at + 125),
        # Beside the convolution, on another stream.
        kernel("volta_sgemm_32x32_nn", device + 150, 100, n + 2, stream=20),
        operator("CompiledFunction", at + 150, 30, number=n + 6),
        launch(n + 3, at + 155),
        kernel("triton_poi_fused_add_relu_0", device + 300, 50, n + 3),
        operator(
            "autograd::engine::evaluate_function: ConvolutionBackward0", at + 300, 90, tid=AUTOGRAD, number=n + 7
        ),
        operator("aten::convolution_backward", at + 310, 70, *back, tid=AUTOGRAD, number=n + 8),
        launch(n + 4, at + 320, tid=AUTOGRAD),
        kernel("cudnn::wgrad_alg0_engine", device + 350, 100, n + 4),
        kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", device + 450, 30, n + 5),
        launch(n + 5, at + 450, tid=AUTOGRAD),
        operator(
            "aten::_fused_adam_", at + 700, 60,
            [[[6, 3, 3, 3], [10, 96]]] * 4 + [[], [[], []]], [LIST] * 6, number=n + 9,
        ),
        launch(n + 6, at + 710),
        kernel("multi_tensor_apply_kernel<FusedAdam>", device + 650, 20, n + 6),
        operator("aten::copy_", at + 800, 10, [[4, 3, 8, 8], [4, 3, 8, 8]], ["float", "float"], number=n + 10),
        kernel("Memcpy HtoD (Pinned -> Device)", device + 720, 5, n + 7, cat="gpu_memcpy"),
        launch(n + 7, at + 803),
    ]  # fmt: skip


def product_step(*, before: int = 0, gpu_us: float = 100) -> list[Event]:
    """One step of 1000 us with a product, whose kernel runs behind `before` kernels that were launched earlier."""
    earlier = [kernel("volta_sgemm_128x128_nn", 100.0 * number, 100, 10 + number) for number in range(before)]
    return [
        annotation("ProfilerStep#0", 0, 1000),
        operator("aten::mm", 10, 20, [[800, 800], [800, 700]], ["float", "float"], number=1),
        launch(100, 12),
        *earlier,
        kernel("volta_sgemm_128x128_nn", 100.0 * before + 50, gpu_us, 100),
    ]


def gpu_trace(steps: int = 3, *, values: bool = True, **facts: Any) -> str:
    """Whole steps one after the other on a V100."""
    events = [event for number in range(steps) for event in step(number, 10_000.0 + 1000 * number, values=values)]
    return document(events, **({"deviceProperties": [V100]} | facts))


# Of the kernels of a step: 200 + 100 (50 of them beside the first) + 50 + 100 + 30 + 20 + 5.
KERNELS_S, BUSY_S = 505e-6, 455e-6

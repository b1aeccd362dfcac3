"""One of a few counted steps is chosen for all."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

from workload.contract.errors import UsageError
from workload.contract.spec import Device, Precision, RunSpec
from workload.environment.device import precision_of_fp32, prepare
from workload.model.flop import Tally
from workload.steps.step_work import Site, Work, WorkCounter, usual


def work(flop: int) -> Work:
    return Work(
        tally=Tally(flop_by_op={"matmul": flop}, bytes_lower=0, bytes_upper=0),
        forward_flop=0,
        flop_by_precision={},
        time_s={},
        unattributed={},
        uncounted=(),
        copied_to_device_bytes=0,
        copied_to_device_s=0.0,
        devices=frozenset(),
    )


# counted: (the one that stands for all, the range that is told); None: count on
STEPS = {
    "all alike": ((7, 7, 7, 7), (7, None)),
    "one more to see": ((7, 9, 7, 7), None),
    "pictures every five steps": ((7, 9, 7, 7, 7), (7, (7, 9))),
    "all differ": ((5, 9, 7, 3, 11), (7, (3, 11))),
}


@pytest.mark.parametrize("name", STEPS)
def test_the_usual_step_stands_for_all(name: str) -> None:
    counted: Sequence[int]
    counted, expected = STEPS[name]
    known = usual([work(flop) for flop in counted])
    assert (None if known is None else (known.tally.flop, known.flop_range)) == expected


MODEL, OTHER = torch.nn.Linear(6, 4), torch.nn.Linear(6, 4)
X, TARGET = torch.ones(5, 6), torch.zeros(5, dtype=torch.int64)
CODE = (lambda: None).__code__
HERE: Site = (CODE, 1, CODE, 1)


def loss(target: Tensor) -> None:
    F.mse_loss(MODEL(X), target).backward()


def average() -> Tensor:
    for slow, fast in zip(OTHER.parameters(), MODEL.parameters(), strict=True):
        slow.lerp_(fast, 0.1)
    return torch.zeros(5, 4)


def into_a_buffer() -> Tensor:
    targets = torch.empty(5, 4)
    targets[:] = OTHER(X)
    return targets


# work without gradients: (what it computes, what becomes of it, whether it is an evaluation)
WITHOUT_GRADIENTS: dict[str, tuple[Callable[[], Tensor], Callable[[Tensor], object], bool]] = {
    "a score that is printed": (lambda: MODEL(X).argmax(1), lambda scores: float(scores.float().mean()), True),
    "a score that is compared": (lambda: MODEL(X), lambda scores: bool((scores > 1).any()), True),
    "a teacher": (lambda: OTHER(X), loss, False),
    "a teacher whose result is changed first": (lambda: OTHER(X), lambda made: loss(made.softmax(1)[:, :]), False),
    "a teacher's label": (lambda: OTHER(X).argmax(1), lambda made: F.cross_entropy(MODEL(X), made).backward(), False),
    "a teacher's result in a buffer": (into_a_buffer, loss, False),
    "an average of weights": (average, lambda _: None, False),
}


@pytest.mark.parametrize("switch", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("name", WITHOUT_GRADIENTS)
def test_work_that_a_loss_uses_is_no_evaluation(name: str, switch: Callable[[], torch.no_grad]) -> None:
    compute, use, is_evaluation = WITHOUT_GRADIENTS[name]
    counter = WorkCounter(Device.CPU).start()
    with switch():
        counter.without_gradients.enter(HERE)
        made = compute()
        counter.without_gradients.enter(None)
    use(made if switch is torch.no_grad or is_evaluation else made.clone())
    loss(torch.zeros(5, 4))
    counter.stop()

    assert counter.without_gradients.are_evaluations() == {HERE: is_evaluation}


def test_what_is_ignored_is_run_and_not_counted() -> None:
    counter = WorkCounter(Device.CPU).start()
    MODEL(X)
    counter.ignores = True
    assert MODEL(X).shape == (5, 4)
    counter.ignores = False
    assert counter.stop().tally.flop == 2 * 5 * 6 * 4


# --- fp32 on a GPU

B = torch.backends
# Statement of a script, and the precisions of its convolutions and of its matrix products on a GPU with TF32.
SETTINGS = {
    "pass": ("tf32", "fp32"),
    "torch.set_float32_matmul_precision('high')": ("tf32", "tf32"),
    "B.cudnn.allow_tf32 = False": ("fp32", "fp32"),
    "B.cudnn.enabled = False": ("fp32", "fp32"),
    "B.cudnn.conv.fp32_precision = 'ieee'": ("fp32", "fp32"),
    "B.fp32_precision = 'tf32'": ("tf32", "tf32"),
    "torch.set_float32_matmul_precision('high'); B.cuda.matmul.fp32_precision = 'ieee'": ("tf32", "fp32"),
    "B.cuda.matmul.fp32_precision = 'tf32'; torch.set_float32_matmul_precision('highest')": ("tf32", "fp32"),
    # As our trainer does.
    "prepare(RunSpec(precision=Precision.FP32), cpus=64)": ("fp32", "fp32"),
    "prepare(RunSpec(precision=Precision.TF32), cpus=64)": ("tf32", "tf32"),
}


@pytest.fixture
def gpu_of(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[tuple[int, int]], None]]:
    """Stand-in for a GPU of a compute capability; before and afterwards, PyTorch's settings are the default ones."""

    def by_default() -> None:
        B.fp32_precision = B.cudnn.fp32_precision = "none"
        B.cudnn.enabled = B.cudnn.allow_tf32 = True
        torch.set_float32_matmul_precision("highest")
        B.cuda.matmul.fp32_precision = B.mkldnn.matmul.fp32_precision = "none"

    def stand_in(capability: tuple[int, int]) -> None:
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _=None: capability)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _=None: "a GPU")

    by_default()
    yield stand_in
    by_default()


# Forward and backward pass of a convolution, without the gradient of its images; a product.
CONVOLUTION, PRODUCT = 2 * 2 * (2 * 8 * 32 * 32) * 27, 2 * 2 * 64 * 512


def flop_on_a_gpu() -> Mapping[str, int]:
    """FLOP by precision of a step with this convolution and this product."""
    with FakeTensorMode():
        images, weight = torch.empty(2, 3, 34, 34, device="cuda"), torch.empty(8, 3, 3, 3, device="cuda")
        counter, shape = WorkCounter(Device.CPU).start(), ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
        # Autograd itself would need a GPU.
        gradient = F.conv2d(images, weight)
        torch.ops.aten.convolution_backward(gradient, images, weight, None, *shape, [False, True, False])
        torch.mm(torch.empty(2, 64, device="cuda"), torch.empty(64, 512, device="cuda"))
        return counter.stop().flop_by_precision


@pytest.mark.parametrize("statement", SETTINGS)
@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (7, 5), (7, 0)])
def test_precision_of_fp32_follows_settings_of_its_kind_and_the_gpu(
    statement: str, capability: tuple[int, int], gpu_of: Callable[[tuple[int, int]], None]
) -> None:
    gpu_of(capability)
    convolution, product = SETTINGS[statement] if capability >= (8, 0) else ("fp32", "fp32")
    is_refused = "Precision.TF32" in statement and capability < (8, 0)
    refusal = pytest.raises(UsageError, match=r"needs compute capability 8\.0 or newer; a GPU has 7")
    with refusal if is_refused else nullcontext():
        exec(statement)
        assert flop_on_a_gpu() == Counter({convolution: CONVOLUTION}) + Counter({product: PRODUCT})


def test_variables_and_recurrent_layers_have_settings_of_their_own(
    gpu_of: Callable[[tuple[int, int]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu_of((8, 0))
    assert precision_of_fp32("recurrent_backward") is Precision.TF32
    B.cudnn.rnn.fp32_precision = "ieee"
    assert precision_of_fp32("recurrent_backward") is Precision.FP32
    assert precision_of_fp32("convolution") is Precision.TF32
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    assert set(flop_on_a_gpu()) == {"fp32"}
    with pytest.raises(UsageError, match="NVIDIA_TF32_OVERRIDE=0 turns TF32 off"):
        prepare(RunSpec(precision=Precision.TF32), cpus=64)

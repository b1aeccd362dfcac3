"""Whole training steps: published figures, bytes by hand, real tensors against fake ones, and rejections."""

import json
import logging
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from _pytest.mark import ParameterSet
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from workload.contract.errors import ExitCode, UsageError
from workload.contract.spec import Optimizer, Precision
from workload.model import models
from workload.model.flop import FlopCounter, Tally
from workload.steps import complexity
from workload.steps.complexity import Complexity
from workload.steps.training_step import make_optimizer

# Parameters, forward MACs and training FLOP of an image of 224 x 224 in 1000 classes. Published reports print the first
# in M and the others in G.
PUBLISHED = {
    "resnet18": (11689512, 1814073344, 10648412160),
    "resnet34": (21797672, 3663761408, 21746540544),
    "resnet50": (25557032, 4089184256, 24299077632),
    "vgg16": (138357544, 15470264320, 92648177664),
    "mobilenet_v2": (3504872, 300774272, 1782969600),
    "mobilenet_v3_small": (2542856, 56510400, 328224384),
    "mobilenet_v3_large": (5483032, 216589760, 1288700544),
    "vit_b_16": (86567656, 17563828224, 105151758336),
}
# One of each family that differs in its ops.
FAMILIES = """
alexnet convnext_tiny efficientnet_b0 googlenet inception_v3 maxvit_t mnasnet0_5 regnet_y_400mf resnext50_32x4d
shufflenet_v2_x0_5 squeezenet1_1 swin_t swin_v2_t vgg11_bn vit_b_32 wide_resnet50_2 densenet121 efficientnet_v2_s
"""


# The others take seconds each: they are counted at night.
EVERYDAY = {"resnet18", "resnet50", "mobilenet_v3_small", "squeezenet1_1", "shufflenet_v2_x0_5", "vit_b_32"}


def few(names: Iterable[str]) -> list[ParameterSet]:
    return [pytest.param(name, marks=() if name in EVERYDAY else pytest.mark.night(part="trainer")) for name in names]


@cache
def count(model: str = "resnet18", size: int = 64, batch: int = 2, **more: Any) -> Complexity:
    return complexity.count(model, num_classes=1000, image_size=size, batch_size=batch, **more)


@pytest.mark.parametrize("model", few(PUBLISHED))
def test_the_counts_are_the_published_ones(model: str) -> None:
    counted = count(model, 224)
    figures = counted.parameters, counted.forward_mac_per_image, counted.train_flop_per_image
    assert figures == PUBLISHED[model]
    assert counted.forward_mac_per_image == counted.forward_flop_per_image // 2
    assert counted.train_flop_per_step == sum(counted.flop_by_op.values()) == 2 * counted.train_flop_per_image
    assert (counted.uncounted, counted.fvcore_mac_per_image) == ((), None)


@pytest.mark.parametrize(("model", "threads"), [("squeezenet1_1", 1), ("vgg16", 3)])
def test_fvcore_has_one_thread_for_a_small_model(monkeypatch: pytest.MonkeyPatch, model: str, threads: int) -> None:
    used = []
    monkeypatch.setattr(complexity, "fvcore_mac_per_image", lambda *_, **__: used.append(torch.get_num_threads()))
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        complexity.count(model, num_classes=10, image_size=224, batch_size=2, with_fvcore=True)
        assert (used, torch.get_num_threads()) == ([threads], 3)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("model", few(FAMILIES.split()))
def test_every_family_is_counted_whole(model: str) -> None:
    random_state = torch.random.get_rng_state()
    counted = count(model, models.NATIVE_IMAGE_SIZES.get(model, 224))
    assert torch.equal(torch.random.get_rng_state(), random_state), "dropout leaves it alone"
    assert counted.uncounted == ()
    # Two gradients for each product, except the first layer's input gradient.
    assert 2.7 < counted.train_flop_per_image / counted.forward_flop_per_image <= 3
    assert 0 < counted.bytes_per_step_lower < counted.bytes_per_step_upper


@pytest.mark.parametrize("precision", ["tf32", "amp", "bf16"])
@pytest.mark.parametrize("model", ["resnet18", pytest.param("vit_b_32", marks=pytest.mark.slow)])
def test_flop_do_not_depend_on_the_precision(model: str, precision: str) -> None:
    assert count(model, 64, precision=precision).flop_by_op == count(model, 64).flop_by_op


def test_accumulation_repeats_a_pass_and_not_the_optimizer() -> None:
    upper = [count(grad_accumulation=passes).bytes_per_step_upper for passes in (1, 2, 3, 4)]
    assert upper[2] - upper[1] == upper[3] - upper[2] > 0
    # SGD with momentum moves 8 tensors of the parameters' size: m = 0.9 m; m = m + g; p = p - lr m.
    one_pass = count().bytes_per_step_upper - 8 * 4 * count().parameters
    # A later pass also reads and writes the gradients that it adds to: three times 4 bytes a parameter.
    assert upper[1] - upper[0] == pytest.approx(one_pass + 3 * 4 * count().parameters, rel=1e-3)


@pytest.mark.parametrize(("optimizer", "state_tensors"), [("sgd", 1), ("adam", 2), ("adamw", 2)])
def test_each_optimizer_touches_its_own_state(optimizer: str, state_tensors: int) -> None:
    lower, sgd = count(optimizer=optimizer).bytes_per_step_lower, count().bytes_per_step_lower
    assert lower - sgd >= (state_tensors - 1) * 4 * count().parameters
    assert count(optimizer=optimizer).train_flop_per_step == count().train_flop_per_step


def test_a_linear_layer_by_hand() -> None:
    """4 images of 10 values, 10 classes, no bias; all tensors float32, labels int64."""
    layer = nn.Sequential(nn.Flatten(), nn.Linear(3 * 2 * 2, 10, bias=False))
    with FakeTensorMode():
        step = complexity._FakeStep(layer, Optimizer.SGD, Precision.FP32, "cpu", shape=(4, 3, 2, 2))
        forward, whole = step.pass_()
        update = step.update()
    images, weight, logits = 4 * 12 * 4, 12 * 10 * 4, 4 * 10 * 4
    assert forward == Tally(
        flop_by_op={"matmul": 2 * 4 * 12 * 10},
        bytes_lower=images + weight + logits,
        bytes_upper=images + weight + logits,
    )
    assert whole.flop == 2 * forward.flop  # the images need no gradient
    assert update.flop == 0
    assert update.bytes_upper == 8 * weight


def test_fake_tensors_count_as_real_ones_do() -> None:
    """One steady step of a real ResNet18 on the CPU: the same FLOP, kind by kind, and the same bytes."""
    model = models.build("resnet18", num_classes=1000, image_size=64).train()
    optimizer = make_optimizer(model.parameters(), Optimizer.SGD)
    images, labels = torch.randn(2, 3, 64, 64), torch.tensor([1, 2])

    def step() -> None:
        models.loss(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    step()
    with FlopCounter() as counter:
        step()
    real, modelled = counter.tally(), count()
    assert real.flop_by_op == modelled.flop_by_op
    assert real.bytes_upper == pytest.approx(modelled.bytes_per_step_upper, rel=1e-3)
    assert real.bytes_lower == pytest.approx(modelled.bytes_per_step_lower, rel=1e-3)


# Model, image size, batch size; why it is refused; hint.
REJECTIONS = {
    "too small for a pool": (
        ("alexnet", 32, 2),
        (
            "alexnet cannot train on 32x32 images: Given input size: (256x1x1). Calculated output size: (256x0x0). "
            "Output size is too small"
        ),
        "--image-size 224",
    ),
    "too small for an auxiliary head": (
        ("inception_v3", 224, 2),
        (
            "inception_v3 cannot train on 224x224 images: Calculated padded input size per channel: (3 x 3). "
            "Kernel size: (5 x 5). Kernel size can't be greater than actual input size"
        ),
        "--image-size 299",
    ),
    "batch norm over one value": (
        ("resnet18", 32, 1),
        (
            "resnet18 cannot train on 32x32 images at batch size 1: batch normalisation needs more than one value per "
            "channel"
        ),
        "--batch-size 2",
    ),
}


@pytest.mark.parametrize("case", REJECTIONS)
def test_unfit_images_are_refused_without_noise(case: str, logged: list[logging.LogRecord]) -> None:
    (model, size, batch), message, hint = REJECTIONS[case]
    with pytest.raises(UsageError) as caught:
        complexity.count(model, num_classes=10, image_size=size, batch_size=batch)
    assert (str(caught.value), caught.value.hint) == (message, hint)
    assert caught.value.exit_code is ExitCode.USAGE
    assert [record for record in logged if record.levelno >= logging.WARNING] == []


@pytest.mark.parametrize("model", few(["resnet18", "shufflenet_v2_x0_5", "vit_b_32", "mobilenet_v2", "densenet121"]))
def test_modules_sum_to_the_step_and_their_backward_pass_is_twice_their_forward_pass(model: str) -> None:
    counted = complexity.count(model, num_classes=10, image_size=224, batch_size=2, grad_accumulation=2)
    assert sum(counted.flop_by_module.values()) == counted.train_flop_per_step
    assert sum(counted.bytes_by_module.values()) == counted.bytes_per_step_upper
    first, *others = (name for name, flop in counted.forward_flop_by_module.items() if flop)
    forward = counted.forward_flop_by_module
    # Two passes: three times the forward FLOP each, but in the first layer, whose images need no gradient.
    assert counted.flop_by_module[first] == 2 * 2 * forward[first]
    assert all(counted.flop_by_module[name] == 2 * 3 * forward[name] for name in others)


def test_modules_have_the_macs_that_fvcore_counts_for_them() -> None:
    fvcore = pytest.importorskip("fvcore.nn")
    counted = complexity.count("resnet18", num_classes=10, image_size=64, batch_size=2)
    analysis = fvcore.FlopCountAnalysis(
        models.build("resnet18", num_classes=10, image_size=64).eval(), torch.zeros(1, 3, 64, 64)
    )
    by_module = analysis.unsupported_ops_warnings(False).by_module()
    multiplied = {name: flop // (2 * 2) for name, flop in counted.forward_flop_by_module.items() if flop}
    assert len(multiplied) == 21  # 20 convolutions and the linear layer
    assert multiplied == {name: by_module[name] for name in multiplied}


def test_activations_are_what_autograd_keeps() -> None:
    """The same sum over the tensors that a real forward pass saves, by the addresses of their memory."""
    model, images = models.build("resnet18", num_classes=10, image_size=64).train(), torch.zeros(2, 3, 64, 64)
    ignored = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers(), images)}
    saved: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = models.loss(model(images), torch.zeros(2, dtype=torch.long))
    kept = [tensor.untyped_storage().nbytes() for address, tensor in saved.items() if address not in ignored]
    counted = complexity.count("resnet18", num_classes=10, image_size=64, batch_size=2)
    labels_bytes = 2 * 8
    # Allocators may give a tensor of a few bytes more than it asked for.
    assert counted.memory.activations_bytes == pytest.approx(sum(kept), abs=labels_bytes)
    assert loss.requires_grad


@pytest.mark.parametrize(
    ("model", "batch_size", "bytes_per_step"),
    [
        ("resnet18", 128, (7464606348, 23064999316)),
        ("resnet50", 32, (8082616468, 26076407204)),
        ("mobilenet_v2", 128, (20275409548, 57031861524)),
    ],
)
def test_models_of_published_reports_have_exact_bytes(
    model: str, batch_size: int, bytes_per_step: tuple[int, int]
) -> None:
    counted = count(model, 224, batch_size)
    assert (counted.bytes_per_step_lower, counted.bytes_per_step_upper) == bytes_per_step


def test_the_record_has_the_largest_modules() -> None:
    counted = complexity.count("resnet18", num_classes=10, image_size=64, batch_size=2)
    record = counted.record()
    assert record.flop_by_module is not None
    assert list(record.flop_by_module.values()) == sorted(counted.flop_by_module.values(), reverse=True)[:10]
    assert set(record.bytes_by_module or {}) == set(record.flop_by_module)


# --- counts that are kept beside the bundles


def asked(**changes: Any) -> dict[str, Any]:
    return {"model": "squeezenet1_1", "num_classes": 10, "image_size": 64, "batch_size": 2, "device": "cpu"} | changes


@pytest.fixture(scope="module")
def counted() -> Complexity:
    return complexity.count(**asked(), with_fvcore=True)


@pytest.mark.parametrize("text", [None, "", "[]", '{"counted_by": "other code", "counts": {}}', '{"counts": 3}'])
def test_a_count_is_read_as_it_was_written(text: str | None, tmp_path: Path, counted: Complexity) -> None:
    """`text`: a file of others, which is replaced."""
    path = tmp_path / complexity.KEPT_COUNTS
    if text is not None:
        path.write_text(text)
    assert complexity.read_kept(tmp_path, asked()) is None
    complexity.keep(tmp_path, asked(), counted)
    assert complexity.read_kept(tmp_path, asked()) == counted
    assert complexity.read_kept(tmp_path, asked(batch_size=4)) is None
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "counted_by": content["counted_by"].replace("torch", "x") + "+"}))
    assert complexity.read_kept(tmp_path, asked()) is None, "counted by other code"
    complexity.keep(tmp_path / "absent", asked(), counted)
    assert list(tmp_path.iterdir()) == [path], "a folder that cannot be written is no error"


def test_the_oldest_counts_make_room(tmp_path: Path, counted: Complexity) -> None:
    sizes = range(1, complexity.MAX_ENTRIES + 3)
    for size in sizes:
        complexity.keep(tmp_path, asked(batch_size=size), counted)
    assert [size for size in sizes if not complexity.read_kept(tmp_path, asked(batch_size=size))] == [1, 2]

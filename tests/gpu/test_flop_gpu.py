"""FLOP counted on a real GPU equal those counted on fake tensors of that GPU."""

import pytest
import torch

from workload.contract.spec import Device, Optimizer, Precision
from workload.model import models
from workload.model.flop import FlopCounter, Tally
from workload.steps import complexity
from workload.steps.training_step import make_optimizer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

CLASSES, BATCH = 1000, 4


def real_step(model: str, precision: Precision, *, image_size: int) -> Tally:
    """Forward, loss, backward and a steady SGD step, unscaled, on the GPU."""
    module = models.build(model, num_classes=CLASSES, image_size=image_size).cuda().train()
    optimizer = make_optimizer(module.parameters(), Optimizer.SGD)
    images = torch.randn(BATCH, 3, image_size, image_size, device="cuda")
    labels = torch.randint(CLASSES, (BATCH,), device="cuda")
    dtype = complexity.AUTOCAST_DTYPES.get(precision)

    def step() -> None:
        with torch.autocast("cuda", dtype=dtype, enabled=dtype is not None):
            loss = models.loss(module(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    step()
    with FlopCounter() as counter:
        step()
    assert counter.uncounted == set()
    return counter.tally()


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.AMP, Precision.BF16])
@pytest.mark.parametrize(("model", "image_size"), [("resnet18", 224), ("vit_b_32", 224), ("mobilenet_v2", 64)])
def test_a_real_step_counts_as_the_modelled_one(model: str, image_size: int, precision: Precision) -> None:
    modelled = complexity.count(
        model,
        num_classes=CLASSES,
        image_size=image_size,
        batch_size=BATCH,
        precision=precision,
        device=Device.CUDA,
    )
    real = real_step(model, precision, image_size=image_size)
    assert modelled.uncounted == ()
    assert real.flop == modelled.train_flop_per_step
    assert real.flop_by_op == modelled.flop_by_op
    # GradScaler's pass over the gradients, which this step lacks; kernels differ in small outputs of their own.
    unscaling = 2 * 4 * modelled.parameters if precision is Precision.AMP else 0
    assert real.bytes_upper + unscaling == pytest.approx(modelled.bytes_per_step_upper, rel=0.02)
    assert real.bytes_lower == pytest.approx(modelled.bytes_per_step_lower, rel=0.02)


def test_modelling_takes_no_gpu_memory() -> None:
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    complexity.count("resnet18", num_classes=CLASSES, image_size=224, batch_size=512, device=Device.CUDA)
    assert torch.cuda.memory_reserved() == before

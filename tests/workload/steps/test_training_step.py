"""The training step on a CPU: its parts, and the steps that AMP skips."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import repeat

import pytest
import torch
from torch import nn

from workload.contract.spec import Device, Optimizer, Precision, RunSpec
from workload.measure.recorder import StepPart
from workload.model import models
from workload.steps.training_step import Batch, TrainingStep

SPEC = RunSpec(device=Device.CPU, batch_size=2, precision=Precision.AMP)


def batches() -> Iterator[Batch]:
    return repeat((torch.ones(2, 4), torch.zeros(2, dtype=torch.long)))


def step_of(spec: RunSpec) -> TrainingStep:
    torch.manual_seed(0)
    return TrainingStep(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), spec)


@pytest.fixture
def losses_that_overflow(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Numbers of the losses, counted from 0, whose gradients are not finite; empty at first."""
    overflowing, taken = set[int](), iter(range(10**6))
    plain = models.loss

    def loss(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return plain(output, labels) * (float("inf") if next(taken) in overflowing else 1.0)

    monkeypatch.setattr(models, "loss", loss)
    return overflowing


def test_parts_come_in_order() -> None:
    parts: list[StepPart] = []
    step_of(SPEC)(batches(), parts.append)
    assert parts == [StepPart.DATA, StepPart.FORWARD, StepPart.BACKWARD, StepPart.OPTIMIZER]


@pytest.mark.parametrize("optimizer", list(Optimizer))
def test_one_image_is_not_learned_by_heart(optimizer: Optimizer) -> None:
    """Gradients would become subnormal: at a learning rate of 0.01, a backward pass took 7 x as long after 34 steps."""
    torch.manual_seed(0)
    model = models.build("resnet18", num_classes=1000, image_size=64)
    step = TrainingStep(model, RunSpec(device=Device.CPU, batch_size=1, optimizer=optimizer))
    batch = (torch.randn(1, 3, 64, 64), torch.zeros(1, dtype=torch.long))
    losses = [float(step(repeat(batch), lambda _: None)) for _ in range(40)]
    assert losses[0] > losses[-1] > 0.01


@pytest.mark.parametrize(
    ("accumulation", "overflowing", "skipped"),
    [(1, {2}, 1), (1, {0, 1, 4}, 3), (2, {1}, 1), (2, {0, 1}, 1), (1, {0, 1, 2, 3, 4}, 5)],
)
@pytest.mark.parametrize("optimizer", list(Optimizer))
def test_steps_that_amp_skips_are_counted_without_a_further_read_of_the_device(
    losses_that_overflow: set[int],
    optimizer: Optimizer,
    accumulation: int,
    overflowing: set[int],
    skipped: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Beside the optimizer, only GradScaler's own `.item()`, one in each step, reads from the device."""
    read: list[torch.Tensor] = []
    item = torch.Tensor.item
    monkeypatch.setattr(torch.Tensor, "item", lambda tensor: (read.append(tensor), item(tensor))[1])
    losses_that_overflow |= overflowing
    step = step_of(replace(SPEC, grad_accumulation=accumulation, optimizer=optimizer))
    for _ in range(5):
        step(batches(), lambda _: None)
    assert step.skipped == skipped
    assert len(read) == 5 or optimizer is not Optimizer.SGD, "Adam reads its own numbers of steps"

"""Training step: forward + loss + backward + optimizer on one batch, and nothing else."""

from collections.abc import Callable, Iterator

import torch
from torch import nn

from workload.contract.spec import Optimizer, Precision, RunSpec
from workload.environment import device
from workload.measure.collectives import Collectives
from workload.measure.recorder import StepPart
from workload.model import models
from workload.steps.data import Batch

# Low enough for every model and optimizer to learn random labels without a schedule, and not within a few steps: the
# gradients of a model that knows its few images by heart become subnormal numbers, with which a CPU computes several
# times slower.
SGD_LEARNING_RATE, SGD_MOMENTUM = 1e-5, 0.9
ADAM_LEARNING_RATE = 1e-6


class TrainingStep:
    """A model on its device with its optimizer; call it once per step.

    `skipped` counts the steps in which AMP skipped the optimizer because a gradient overflowed in fp16. `collectives`:
    times how several ranks average their gradients; None for one device.
    """

    def __init__(self, model: nn.Module, spec: RunSpec, collectives: Collectives | None = None) -> None:
        layout = torch.channels_last if spec.channels_last else torch.contiguous_format
        self._model: nn.Module = model.to(spec.device.value).to(memory_format=layout).train()
        self.optimizer = make_optimizer(self._model.parameters(), spec.optimizer)
        self._scaler = torch.amp.GradScaler(spec.device.value, enabled=spec.precision is Precision.AMP)
        self._spec = spec
        self._steps = self._updates = 0
        if self._scaler.is_enabled():
            # The scaler has waited for the device before the hook (`.item()`); reading its scale would wait again. The
            # hook works only for optimizers that are not fused: a fused one is always called, and skips on the device.
            self.optimizer.register_step_post_hook(self._count_update)
        if spec.compile:
            self._model.compile()
        self._parallel = collectives.parallel(self._model) if collectives else None
        self._model = self._parallel or self._model

    def __call__(self, batches: Iterator[Batch], mark: Callable[[StepPart], object]) -> torch.Tensor:
        """Train on `grad_accumulation` batches; return the last batch's loss, detached, on the device.

        `mark(part)` is called after each part of the step.
        """
        share = 1 / self._spec.grad_accumulation
        for index in range(self._spec.grad_accumulation):
            images, labels = next(batches)
            mark(StepPart.DATA)
            if self._parallel is not None:
                # Only the last batch of a step averages the gradients: DDP's `no_sync` sets the same attribute.
                self._parallel.require_backward_grad_sync = index == self._spec.grad_accumulation - 1
            with device.autocast(self._spec):
                loss = models.loss(self._model(images), labels)
            mark(StepPart.FORWARD)
            # Gradients are freed here, as in PyTorch's ImageNet example: the freed memory is still in the cache for the
            # backward pass.
            if index == 0:
                self.optimizer.zero_grad(set_to_none=True)
            # Do not multiply by a share of 1: the product would add a kernel to the plain step.
            self._scaler.scale(loss if share == 1 else loss * share).backward()
            mark(StepPart.BACKWARD)
        self._scaler.step(self.optimizer)
        self._scaler.update()
        self._steps += 1
        mark(StepPart.OPTIMIZER)
        return loss.detach()

    @property
    def skipped(self) -> int:
        """Number of steps so far in which AMP skipped the optimizer; reading it never synchronises the device."""
        return self._steps - self._updates if self._scaler.is_enabled() else 0

    def _count_update(self, *_: object) -> None:
        self._updates += 1


def make_optimizer(parameters: Iterator[nn.Parameter], name: Optimizer) -> torch.optim.Optimizer:
    """PyTorch's optimizer of this name with a fixed learning rate."""
    match name:
        case Optimizer.SGD:
            return torch.optim.SGD(parameters, lr=SGD_LEARNING_RATE, momentum=SGD_MOMENTUM)
        case Optimizer.ADAM:
            return torch.optim.Adam(parameters, lr=ADAM_LEARNING_RATE)
        case Optimizer.ADAMW:
            return torch.optim.AdamW(parameters, lr=ADAM_LEARNING_RATE)

"""The trainer's loop against two others on the same model and batch, paired.

    python benchmarks/loops.py                      both, resnet18 batch 16 on the CPU, about 8 minutes
    python benchmarks/loops.py --against bare --pairs 20 --device cuda --batch-size 256

`bare`      the same step without marks, rows, telemetry and progress: what instrumentation costs. Wanted <= 1.005.
`imagenet`  the loop of PyTorch's ImageNet example (pytorch/examples, imagenet/main.py) with its meters, its
            accuracy and its loss.item() each step, printing every 10 steps. Wanted <= 1 / 0.99.

First the instrumentation alone is timed around empty steps: that figure is exact where the pairs are noisy.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import paired
import torch
from torch import nn

from benchmarks.gpu_truth.loops import bare, ours
from workload.contract.spec import Device, Precision, RunSpec
from workload.environment import device, host
from workload.measure.clock import Clock, clock_for
from workload.measure.recorder import StepPart
from workload.model import models
from workload.steps import training_step
from workload.steps.training_step import TrainingStep

EMPTY_STEPS = 50_000


def instrumentation_s(spec: RunSpec, clock: Clock) -> float:
    """Seconds per step of marks, rows, flushes, telemetry and progress, around steps that do nothing."""
    loss = torch.zeros((), device=spec.device.value)

    def nothing(_: Iterator[training_step.Batch], mark: Callable[[StepPart], object]) -> torch.Tensor:
        for part in StepPart:
            mark(part)
        return loss

    return ours(nothing, iter(()), spec, clock, EMPTY_STEPS) / EMPTY_STEPS


class Meter:
    """The example's AverageMeter."""

    def __init__(self) -> None:
        self.sum = 0.0
        self.count = 0

    def update(self, value: float, n: int = 1) -> None:
        self.sum += value * n
        self.count += n


def accuracy(output: torch.Tensor, target: torch.Tensor, topk: tuple[int, ...]) -> list[torch.Tensor]:
    """The example's accuracy over the k top predictions."""
    with torch.no_grad():
        _, predicted = output.topk(max(topk), 1, largest=True, sorted=True)
        correct = predicted.t().eq(target.view(1, -1).expand_as(predicted.t()))
        return [correct[:k].reshape(-1).float().sum(0, keepdim=True).mul_(100.0 / target.size(0)) for k in topk]


def imagenet(
    model: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterator[training_step.Batch], clock: Clock, steps: int
) -> float:
    """Seconds of the example's loop."""
    criterion = nn.CrossEntropyLoss()
    meters = [Meter() for _ in range(5)]
    clock.synchronize()
    begin_s = end_s = time.perf_counter()
    for index in range(steps):
        images, target = next(batches)
        meters[0].update(time.perf_counter() - end_s)
        output = model(images)
        loss = criterion(output, target)
        acc1, acc5 = accuracy(output, target, topk=(1, 5))
        meters[1].update(loss.item(), images.size(0))
        meters[2].update(acc1[0].item(), images.size(0))
        meters[3].update(acc5[0].item(), images.size(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        meters[4].update(time.perf_counter() - end_s)
        end_s = time.perf_counter()
        if index % 10 == 0:
            print(*(f"{meter.sum / meter.count:.4f}" for meter in meters), file=DEV_NULL)
    clock.synchronize()
    return time.perf_counter() - begin_s


DEV_NULL = Path("/dev/null").open("w")  # noqa: SIM115 - as long as the process


def contestants(spec: RunSpec, steps: int) -> dict[str, Callable[[], float]]:
    """The loops, warmed up; they share one model and optimizer, so that none trains on other numbers."""
    clock = clock_for(spec.device)
    batches = training_step.open_source(spec).batches()
    model = models.build(spec.model, num_classes=1000, image_size=spec.image_size or 224)
    step = TrainingStep(model, spec)
    loops = {
        "ours": lambda: ours(step, batches, spec, clock, steps),
        "bare": lambda: bare(step, batches, clock, steps),
        "imagenet": lambda: imagenet(model, step.optimizer, batches, clock, steps),
    }
    for loop in loops.values():
        loop()
    return loops


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", choices=("bare", "imagenet"), action="append")
    parser.add_argument("--pairs", type=int, default=150)
    parser.add_argument("--steps", type=int, default=1, help="steps per turn")
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--device", type=Device, default=Device.CPU)
    given = parser.parse_args()
    spec = RunSpec(
        model=given.model, batch_size=given.batch_size, image_size=given.image_size, precision=Precision.FP32
    ).filled(given.device, cpus=1)
    device.prepare(spec, cpus=host.usable_cpus())
    loops = contestants(spec, given.steps)
    clock = clock_for(spec.device)
    alone_s, step_s = instrumentation_s(spec, clock), loops["bare"]() / given.steps
    print(f"instrumentation alone: {alone_s * 1e6:.1f} us a step, {alone_s / step_s:.4%} of {step_s * 1e3:.1f} ms")
    for name in given.against or ("bare", "imagenet"):
        ratios = paired.measure(loops["ours"], loops[name], pairs=given.pairs)
        print(paired.report(f"time of ours / {name}, {spec.model} batch {spec.batch_size}", ratios), flush=True)


if __name__ == "__main__":
    main()

"""Counted memory of a training step against torch's own tracker, and against the resident memory of real CPU steps.

python benchmarks/counted_memory.py tracker [MODEL...]     on tensors without memory, about 20 minutes for all on two cores
python benchmarks/counted_memory.py resident [MODEL...]    one child process for each model; needs Linux
"""

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker

from workload.contract.allocations import Kind
from workload.contract.spec import Device
from workload.model import models
from workload.steps import complexity
from workload.steps.model_input import ModelInput
from workload.steps.step_memory import CountedMemory, StorageFollower
from workload.steps.step_work import WorkCounter

BATCH_SIZE, CLASSES, IMAGE_SIZE = 8, 1000, 224
MODELS = """
alexnet convnext_tiny densenet121 densenet169 efficientnet_b0 efficientnet_b3 efficientnet_v2_s googlenet inception_v3
mnasnet1_0 mobilenet_v2 mobilenet_v3_large regnet_x_800mf regnet_y_800mf resnet18 resnet50 resnet101 resnext50_32x4d
shufflenet_v2_x1_0 squeezenet1_1 swin_t swin_v2_t vgg11 vit_b_16 wide_resnet50_2
""".split()
RESIDENT = ("alexnet", "densenet121", "mobilenet_v2", "resnet18", "resnet50", "vgg11", "vit_b_16")
HERE = Path(__file__)
# Without these, glibc keeps freed blocks of up to 32 MB, which stay resident.
GLIBC = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_TOP_PAD_": "0"}
Step = Callable[[], None]


def made(name: str, *, is_fake: bool) -> tuple[nn.Module, torch.optim.Optimizer, Tensor, Tensor, Step]:
    """Model, optimizer, batch and a training step of the usual kind; the first step has been taken."""
    size = models.NATIVE_IMAGE_SIZES.get(name, IMAGE_SIZE)
    with ExitStack() as stack:
        if is_fake:
            stack.enter_context(complexity._MetaWeights())
        model = models.build(name, num_classes=CLASSES, image_size=size).train()
    if is_fake:
        model._apply(lambda tensor: torch.empty(tensor.shape, dtype=tensor.dtype))
    optimizer = torch.optim.Adam(model.parameters())
    images, labels = torch.ones(BATCH_SIZE, 3, size, size), torch.zeros(BATCH_SIZE, dtype=torch.long)

    def step() -> None:
        optimizer.zero_grad()
        models.loss(model(images), labels).backward()
        optimizer.step()

    step()
    return model, optimizer, images, labels, step


def counted(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Sequence[Tensor], step: Step) -> CountedMemory:
    """Memory of one step."""
    follower = StorageFollower("cpu", HERE.parent, [optimizer])
    follower.called(model, ())
    follower.holds(batch, Kind.INPUTS)
    counter = WorkCounter(Device.CPU, ModelInput(HERE.parent), follower).start()
    step()
    counter.stop()
    memory = follower.end_step([optimizer])
    follower.stop()
    return memory


# --- torch's tracker


def tracked(names: Sequence[str]) -> Iterator[str]:
    """Row for each model: bytes by our count and by torch's tracker, and their difference."""
    yield f"{'model':<20} {'counted':>14} {'tracker':>14} {'difference':>11}"
    for name in names:
        with FakeTensorMode():
            model, optimizer, images, labels, step = made(name, is_fake=True)
            ours = counted(model, optimizer, (images, labels), step).peak_bytes
            tracker = MemTracker()
            tracker.track_external(model, optimizer, images, labels)
            with tracker:
                step()
            theirs = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
        yield f"{name:<20} {ours:>14,} {theirs:>14,} {ours - theirs:>11,}"


# --- resident memory


def resident(names: Sequence[str]) -> Iterator[str]:
    """Row for each model: counted bytes, and by how much more a real step made the process resident."""
    yield f"{'model':<20} {'counted':>14} {'resident':>14} {'more':>7}"
    for name in names:
        command = [sys.executable, str(HERE), "child", name]
        done = subprocess.run(command, env={**os.environ, **GLIBC}, check=True, stdout=subprocess.PIPE, text=True)
        ours, real = map(int, done.stdout.split()[-2:])
        yield f"{name:<20} {ours:>14,} {real:>14,} {real / ours - 1:>7.1%}"


def status(name: str) -> int:
    """Bytes of a line of /proc/self/status, such as `VmRSS`."""
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def child(name: str) -> str:
    """Counted bytes of a step, and bytes by which the most resident memory in the next step exceeds the base.

    Base: torch and its threads and kernels, which a small model of the same kind has loaded.
    """
    warm = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 30 * 30, 8))
    warm(torch.ones(2, 3, 32, 32)).sum().backward()
    torch.optim.Adam(warm.parameters()).step()
    del warm
    base = status("VmRSS")
    model, optimizer, images, labels, step = made(name, is_fake=False)
    # Makes the most resident memory begin again.
    Path("/proc/self/clear_refs").write_text("5")
    step()
    real = status("VmHWM") - base
    return f"{counted(model, optimizer, (images, labels), step).peak_bytes} {real}"


def main() -> None:
    """Print the rows of a part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("tracker", "resident", "child"))
    parser.add_argument("models", nargs="*")
    given = parser.parse_args()
    match given.part:
        case "tracker":
            rows = tracked(given.models or MODELS)
        case "resident":
            rows = resident(given.models or RESIDENT)
        case _:
            rows = iter([child(given.models[0])])
    for row in rows:
        print(row, flush=True)


if __name__ == "__main__":
    main()

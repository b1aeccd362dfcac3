"""Counted memory of a training step against torch's own tracker, and against the resident memory of real CPU steps.

python benchmarks/counted_memory.py tracker [MODEL...]    on tensors without memory, 20 minutes for all on two cores
python benchmarks/counted_memory.py scripts [SCRIPT...]   unchanged scripts, once measured and once tracked
python benchmarks/counted_memory.py resident [MODEL...]   one child process for each model; needs Linux
python benchmarks/counted_memory.py cost                  of following storages in a counted step
"""

import argparse
import os
import re
import runpy
import subprocess
import sys
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker, _MemRefType
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._pytree import tree_leaves

from workload import __main__ as trainer
from workload.contract.allocations import Kind
from workload.contract.formulas import GATHERING
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
""".split()  # noqa: SIM905 - readable
RESIDENT = ("alexnet", "densenet121", "mobilenet_v2", "resnet18", "resnet50", "vgg11", "vit_b_16")
HERE = Path(__file__).resolve()
# Loops of many kinds in folders of this repository; of one that lacks its package, that is said.
SCRIPTS = [
    f"{folder}/{name}.py"
    for folder, names in {
        "benchmarks/foreign": "accelerate_loop checkpointing contrastive detection diffusion ema kfold lightning_loop "
        "maml recommender sam speech timm_loop transformers_loop",
        "tests/workload/scripts": "accumulation dcgan full_batch get_batch gpt lbfgs mnist scaler seq2seq two_loaders",
        "examples": "chars shapes",
    }.items()
    for name in names.split()
]
# Our trainer has counted by then.
MOST_STEPS = 30
PEAK = "PEAK"
# Without these, glibc keeps freed blocks of up to 32 MB, which stay resident.
GLIBC = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_TOP_PAD_": "0"}
Step = Callable[[], None]


def built(name: str, *, is_meta: bool) -> nn.Module:
    """Model in training mode; `is_meta`: its weights take no memory."""
    size = models.NATIVE_IMAGE_SIZES.get(name, IMAGE_SIZE)
    with complexity._MetaWeights() if is_meta else nullcontext():  # noqa: SLF001 - as `complexity.count`
        return models.build(name, num_classes=CLASSES, image_size=size).train()


def made(name: str, model: nn.Module) -> tuple[torch.optim.Optimizer, tuple[Tensor, Tensor], Step]:
    """Optimizer, batch and a training step of the usual kind, which has been taken once."""
    size = models.NATIVE_IMAGE_SIZES.get(name, IMAGE_SIZE)
    optimizer = torch.optim.Adam(model.parameters())
    images, labels = torch.ones(BATCH_SIZE, 3, size, size), torch.zeros(BATCH_SIZE, dtype=torch.long)

    def step() -> None:
        optimizer.zero_grad()
        models.loss(model(images), labels).backward()
        optimizer.step()

    step()
    return optimizer, (images, labels), step


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
        model = built(name, is_meta=True)
        with FakeTensorMode():
            model._apply(lambda tensor: torch.empty(tensor.shape, dtype=tensor.dtype))  # noqa: SLF001
            optimizer, batch, step = made(name, model)
            ours = counted(model, optimizer, batch, step).peak_bytes
            tracker = MemTracker()
            tracker.track_external(model, optimizer, *batch)
            with tracker:
                step()
            theirs = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
        yield f"{name:<20} {ours:>14,} {theirs:>14,} {ours - theirs:>11,}"


# --- torch's tracker around unchanged scripts


class WholeScript(MemTracker):
    """Tracks a script from its beginning, and prints the peak of each of its optimizer steps.

    Of what existed before the model is first called, such as a data set, the largest tensor that is read counts: a GPU
    does not have to hold the rest.
    """

    _steps = 0
    # Of modules, it can follow one call only.
    _post_fw_hook = _pre_bw_hook = _post_bw_hook = lambda *_: None

    def __enter__(self) -> Self:
        self._read, self._before = Counter[Any](), set[Any]()
        register_optimizer_step_post_hook(self._end_step)
        return super().__enter__()

    def _pre_fw_hook(self, *_: Any) -> None:
        self._before = self._before or {known for known, _ in self._WINFO.values()}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # A view reads nothing, and an index reads some rows.
        read = () if func.is_view else args[1:] if func.overloadpacket.__name__ in GATHERING else args
        for tensor in filter(torch.is_tensor, tree_leaves((read, kwargs))):
            # Those that no operation made, such as arrays of numpy, are unknown.
            for known in self._update_and_maybe_create_winfos(tensor, _MemRefType.OTH):
                self._read[known] = max(tensor.numel() * tensor.element_size(), self._read[known])
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _end_step(self, *_: Any) -> None:
        alive = {known for known, _ in self._WINFO.values()}
        unread = sum(max(0, known.mem_consumed - self._read[known]) for known in self._before & alive)
        print(PEAK, self._peak_mem_snap[torch.device("cpu")]["Total"] - unread, flush=True)
        self._steps += 1
        if self._steps == MOST_STEPS:
            sys.exit()
        self._peak_mem_snap = self.get_tracker_snapshot()
        self._peak_mem = {device: snapshot["Total"] for device, snapshot in self._peak_mem_snap.items()}


def tracked_script(path: str) -> None:
    """Run a script with torch's tracker around it."""
    sys.argv, sys.path[0] = [path], str(Path(path).parent)
    with WholeScript():
        runpy.run_path(path, run_name="__main__")


def measured_script(path: str) -> None:
    """Measure a script; print for each counted step its peak, and the numbers of optimizer steps before and after."""
    taken, begin, end = [0], StorageFollower._begin, StorageFollower.end_step  # noqa: SLF001
    began = weakref.WeakKeyDictionary[StorageFollower, int]()

    def begun(follower: StorageFollower) -> None:
        began[follower] = len(taken) - 1
        begin(follower)

    def ended(follower: StorageFollower, optimizers: Sequence[Any]) -> CountedMemory:
        first, memory = began[follower], end(follower, optimizers)
        print(PEAK, memory.peak_bytes, first, len(taken) - 1, flush=True)
        return memory

    StorageFollower._begin, StorageFollower.end_step = begun, ended  # type: ignore[method-assign] # noqa: SLF001
    register_optimizer_step_post_hook(lambda *_: taken.append(0))
    sys.argv = ["workload", "script", "--no-ceilings", "--warmup=0", "--iterations=1", "-o", "results", "--", path]
    trainer.enter()


def scripts(paths: Sequence[str]) -> Iterator[str]:
    """Row for each script: most bytes of the steps that our trainer counted, and of the same steps by the tracker."""
    yield f"{'script':<20} {'counted':>14} {'tracker':>14} {'difference':>11}  optimizer steps"
    for path in (HERE.parents[1] / each for each in paths):
        peaks: dict[str, list[list[int]]] = {}
        for part in ("measured", "tracked"):
            command = [sys.executable, str(HERE), part, str(path)]
            with TemporaryDirectory() as folder:
                done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
            lines = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith(PEAK)]
            peaks[part] = [[int(word) for word in line] for line in lines]
            if not lines:
                yield f"{path.stem:<20} {part}: {(done.stderr.strip().splitlines() or ['no step'])[-1]}"
        if all(peaks.values()):
            first, last = min(row[1] for row in peaks["measured"]), max(row[2] for row in peaks["measured"])
            ours, theirs = max(peaks["measured"])[0], max(peaks["tracked"][first:last], default=[0])[0]
            yield f"{path.stem:<20} {ours:>14,} {theirs:>14,} {ours - theirs:>11,}  {first + 1} to {last}"


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


def child(name: str) -> None:
    """Print the counted bytes of a step, and bytes by which the most resident memory in the next step exceeds the base.

    Base: torch and its threads and kernels, which a small model of the same kind has loaded.
    """
    warm = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 30 * 30, 8))
    warm(torch.ones(2, 3, 32, 32)).sum().backward()
    torch.optim.Adam(warm.parameters()).step()
    del warm
    base = status("VmRSS")
    model = built(name, is_meta=False)
    optimizer, batch, step = made(name, model)
    # Makes the most resident memory begin again.
    Path("/proc/self/clear_refs").write_text("5")
    step()
    real = status("VmHWM") - base
    print(counted(model, optimizer, batch, step).peak_bytes, real)


# --- cost


def costs() -> Iterator[str]:
    """Row for each step: CPU seconds of a counted step with and without following storages, taken in turn."""
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    small = {
        "two layers": (nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)), torch.ones(16, 32)),
        "transformer": (
            nn.Sequential(nn.TransformerEncoder(layer, 4), nn.Flatten(), nn.LazyLinear(8)),
            torch.ones(4, 16, 64),
        ),
        "resnet18": (models.build("resnet18", num_classes=8, image_size=32), torch.ones(2, 3, 32, 32)),
    }
    yield f"{'step':<12} {'counted':>9} {'followed':>9} {'ratio':>6}"
    for name, (model, images) in small.items():
        model(images)
        optimizer = torch.optim.Adam(model.parameters())
        model_input, taken_s = ModelInput(HERE.parent), dict[bool, list[float]]({False: [], True: []})
        follower = StorageFollower("cpu", HERE.parent, [optimizer])
        for number in range(60):
            follows = number % 2 == 1
            began_s = time.process_time()
            counter = WorkCounter(Device.CPU, model_input, follower if follows else None).start()
            optimizer.zero_grad()
            model(images).sum().backward()
            optimizer.step()
            counter.stop()
            if follows:
                follower.end_step([optimizer])
            taken_s[follows].append(time.process_time() - began_s)
        without, with_ = median(taken_s[False]), median(taken_s[True])
        yield f"{name:<12} {without * 1e3:>6.2f} ms {with_ * 1e3:>6.2f} ms {with_ / without:>6.2f}"


# Parts that run in processes of their own.
CHILDREN = {"child": child, "measured": measured_script, "tracked": tracked_script}


def main() -> None:
    """Print the rows of a part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("tracker", "scripts", "resident", "cost", *CHILDREN))
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    if given.part in CHILDREN:
        CHILDREN[given.part](given.names[0])
        return
    match given.part:
        case "tracker":
            rows = tracked(given.names or MODELS)
        case "scripts":
            rows = scripts(given.names or SCRIPTS)
        case "resident":
            rows = resident(given.names or RESIDENT)
        case _:
            rows = costs()
    for row in rows:
        print(row, flush=True)


if __name__ == "__main__":
    main()

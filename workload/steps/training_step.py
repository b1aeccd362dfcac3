"""Training step: forward + loss + backward + optimizer on one batch, and nothing else."""

import signal
import sys
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias
from urllib.error import URLError

import torch
from PIL import Image, UnidentifiedImageError
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset
from torch.utils.data.distributed import DistributedSampler
from torchvision import datasets
from torchvision.transforms import v2

from workload.contract.errors import RooflaunchError, ToolError, UsageError
from workload.contract.spec import CIFAR10, IMAGENETTE, SYNTHETIC, Device, Optimizer, Precision, RunSpec
from workload.environment import device
from workload.measure.clock import Collectives
from workload.measure.recorder import StepPart
from workload.model import models

Batch: TypeAlias = tuple[torch.Tensor, torch.Tensor]

IMAGENET_CLASSES = 1000
IMAGENETTE_SIZE = "320px"
# Channel means and standard deviations of ImageNet, from torchvision's reference training.
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# Resize to 256 before cropping 224: torchvision's reference evaluation.
RESIZE_RATIO = 256 / 224
LAYOUT = "images must be in FOLDER/<class>/<image>.jpg, or FOLDER/train/<class>/<image>.jpg"


class BrokenImageError(Exception):
    """An image file cannot be decoded; the text is `path: reason`."""


@dataclass(frozen=True, kw_only=True)
class DataSource:
    """Endless full batches on the device: images float32 (batch, 3, size, size), labels int64 (batch,).

    Close the generator of batches to end the worker processes that it has started.
    """

    batches: Callable[[], Generator[Batch]]
    classes: int
    images: int | None
    path: Path | None


def open_source(spec: RunSpec, rank: int = 0) -> DataSource:
    """Open the data set that `spec` names.

    `rank`: number of the rank that the batches are for; each rank has batches of its own.
    Raises `UsageError` or `ToolError` if the data set is absent, empty or too small.
    """
    if spec.dataset == SYNTHETIC:
        return _synthetic(spec, rank)
    root = Path(spec.data_dir).expanduser()
    if spec.dataset == CIFAR10:
        return _loaded(spec, rank, _cifar10(spec, root), path=root)
    if spec.dataset == IMAGENETTE:
        # 9,469 training images, 10 classes, shorter side 320 pixels.
        folder = root / "imagenette2-320" / "train"
        if not folder.is_dir():
            _fetch(spec, root, lambda: datasets.Imagenette(root, size=IMAGENETTE_SIZE, download=spec.download))
    else:
        folder = Path(spec.dataset).expanduser()
        if not folder.is_dir():
            known = f"{SYNTHETIC}, {CIFAR10} and {IMAGENETTE}"
            raise UsageError(
                f"data set '{spec.dataset}' is neither a folder nor one of {known}", hint=f"--dataset FOLDER; {LAYOUT}"
            )
        folder = folder / "train" if (folder / "train").is_dir() else folder
    try:
        # Torchvision's reference pipelines: random crop and flip for training, centre crop with `no_augment`.
        assert spec.image_size is not None
        if spec.no_augment:
            crop = [v2.Resize(round(spec.image_size * RESIZE_RATIO)), v2.CenterCrop(spec.image_size)]
        else:
            crop = [v2.RandomResizedCrop(spec.image_size, antialias=True), v2.RandomHorizontalFlip()]
        dataset = datasets.ImageFolder(folder, transform=v2.Compose([*crop, *_to_tensor()]), loader=_load_image)
    except FileNotFoundError as error:
        raise UsageError(f"no images in '{folder}': {str(error).splitlines()[0]}", hint=LAYOUT) from error
    return _loaded(spec, rank, dataset, path=folder)


def _synthetic(spec: RunSpec, rank: int) -> DataSource:
    """Source of a fixed batch with random labels, made on the device, so that only training is measured."""

    def batches() -> Generator[Batch]:
        generator = torch.Generator().manual_seed(spec.seed + rank)
        assert spec.batch_size is not None
        assert spec.image_size is not None
        images = torch.randn(spec.batch_size, 3, spec.image_size, spec.image_size, generator=generator)
        labels = torch.randint(IMAGENET_CLASSES, (spec.batch_size,), generator=generator)
        batch = _to_device(spec, (images, labels))
        while True:
            yield batch

    return DataSource(batches=batches, classes=IMAGENET_CLASSES, images=None, path=None)


def _loaded(spec: RunSpec, rank: int, dataset: Any, *, path: Path) -> DataSource:
    classes = len(dataset.classes)
    if spec.subset is not None:
        order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(spec.seed))
        dataset = Subset(dataset, order[: spec.subset].tolist())
    if len(dataset) < (spec.batch_size or 0) * spec.ranks:
        each = f" for each of {spec.ranks} devices" if spec.ranks > 1 else ""
        raise UsageError(
            f"data set '{spec.dataset}' gives {len(dataset)} images: fewer than one batch of {spec.batch_size}{each}",
            hint=f"--batch-size {max(1, len(dataset) // spec.ranks)}, or more images",
        )
    loader = _loader(spec, rank, dataset)
    return DataSource(batches=lambda: _endless(spec, loader), classes=classes, images=len(dataset), path=path)


def _loader(spec: RunSpec, rank: int, dataset: Dataset[Any]) -> DataLoader[Any]:
    workers = spec.workers or 0
    sampler: DistributedSampler[Any] | None = None
    if spec.ranks > 1:
        # All ranks draw the same order, and take turns in it.
        ordered: Any = dataset
        sampler = DistributedSampler(ordered, spec.ranks, rank, shuffle=True, seed=spec.seed, drop_last=True)
    return DataLoader(
        dataset,
        batch_size=spec.batch_size,
        shuffle=sampler is None,
        sampler=sampler,
        drop_last=True,
        num_workers=workers,
        pin_memory=spec.device is Device.CUDA if spec.pin_memory is None else spec.pin_memory,
        persistent_workers=workers > 0 if spec.persistent_workers is None else spec.persistent_workers,
        prefetch_factor=spec.prefetch_factor,
        worker_init_fn=_ignore_ctrl_c,
        generator=torch.Generator().manual_seed(spec.seed),
    )


def _ignore_ctrl_c(_: int) -> None:
    """Ignore Ctrl-C in a worker process: the trainer ends its workers itself."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.platform == "win32":
        signal.signal(signal.SIGBREAK, signal.SIG_IGN)


def _endless(spec: RunSpec, loader: DataLoader[Any]) -> Generator[Batch]:
    epoch: Any = None
    try:
        while True:
            if isinstance(loader.sampler, DistributedSampler):
                loader.sampler.set_epoch(loader.sampler.epoch + 1)
            epoch = iter(loader)
            for batch in epoch:
                yield _to_device(spec, batch)
    except BrokenImageError as error:
        # An error from a worker has a whole traceback as its text, which ends with the original error.
        text = str(error).strip().rpartition(f"{BrokenImageError.__name__}: ")[2]
        path, _, reason = text.partition(": ")
        raise UsageError(
            f"image '{path}' cannot be decoded: {reason}", hint=f"remove or replace the image: {path}"
        ) from error
    finally:
        # End the worker processes now: torch reports workers that still run at exit as crashed. The methods are
        # private, because torch has no public function that ends workers.
        if spec.workers and epoch is not None:
            epoch._shutdown_workers()  # noqa: SLF001
        loader._iterator = None  # noqa: SLF001


def _to_device(spec: RunSpec, batch: Batch) -> Batch:
    images, labels = batch
    layout = torch.channels_last if spec.channels_last else torch.contiguous_format
    device = spec.device.value
    return (images.to(device, non_blocking=True, memory_format=layout), labels.to(device, non_blocking=True))


def _cifar10(spec: RunSpec, root: Path) -> Any:
    """CIFAR-10: 50,000 training images, 32 x 32 pixels, 10 classes."""
    crop = [] if spec.no_augment else [v2.RandomCrop(32, padding=4), v2.RandomHorizontalFlip()]
    resize = [v2.Resize(spec.image_size)] if spec.image_size != 32 else []  # noqa: PLR2004 - CIFAR's own size
    transform = v2.Compose([*crop, *resize, *_to_tensor()])
    return _fetch(spec, root, lambda: datasets.CIFAR10(root, transform=transform, download=spec.download))


def _fetch(spec: RunSpec, root: Path, make: Callable[[], Any]) -> Any:
    try:
        return make()
    except (URLError, TimeoutError, ConnectionError) as error:
        raise ToolError(
            f"data set '{spec.dataset}' cannot be downloaded: {error}",
            hint=f"copy the data set to {root} from a machine with a network, or use --dataset synthetic",
        ) from error
    except RooflaunchError:
        raise
    except (RuntimeError, OSError) as error:
        raise UsageError(
            f"data set '{spec.dataset}' is not in '{root}': {str(error).splitlines()[0]}",
            hint=f"--dataset {spec.dataset} --download, or --data-dir FOLDER",
        ) from error


def _load_image(path: str) -> Image.Image:
    try:
        with Image.open(path) as image:
            return image.convert("RGB")
    except (OSError, SyntaxError, ValueError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        # PIL repeats the path in some of its messages.
        reason = str(error).replace(f" {path!r}", "").replace("\n", " ")
        raise BrokenImageError(f"{path}: {reason}") from error


def _to_tensor() -> list[Any]:
    return [v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]


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

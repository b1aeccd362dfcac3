"""Contents of a DataLoader's batch: numbers of samples and of tokens, and the line that fetched the batch."""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import Any

import torch

IMAGE_DIMENSIONS, ID_DIMENSIONS = 4, 2
# Dimensions of each image in a list of images of different sizes: (C, H, W).
LISTED_DIMENSIONS, CHANNELS = 3, (1, 3, 4)
# Integers (N, 2) to (N, 4) are pairs or triplets of ids, for example user and item; token sequences are longer.
MOST_IDS = 4
# Leaves of a batch beyond this number are ignored: the first ones already show the batch's length.
MOST_LEAVES = 16
IDS = (torch.int64, torch.int32)
MASK = "attention_mask"


class Unit(StrEnum):
    """Unit that throughput counts; tokens are a second figure."""

    IMAGES = "images"
    SAMPLES = "samples"
    STEPS = "steps"


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Contents of a batch from the DataLoader with the number `loader`; `count`: number of samples, see `unit`.

    `tokens`: number of tokens with padding, 0 for other data; `mask`: marks the tokens without padding, read on demand.
    """

    loader: int
    count: int
    unit: Unit
    tokens: int = 0
    mask: torch.Tensor | None = None

    @property
    def real_tokens(self) -> int:
        """Number of tokens without padding, if a mask marks the padding."""
        if self.mask is None or self.mask.device.type != "cpu":
            return self.tokens
        # NumPy, because an operation of torch would be counted as the script's operation.
        return int(self.mask.detach().numpy().astype(bool).sum())


def size_of(loader: Any) -> int | None:
    """Batch size that a DataLoader or its batch sampler was made with; None if neither has one."""
    for known in (loader, getattr(loader, "batch_sampler", None)):
        if isinstance(size := getattr(known, "batch_size", None), int):
            return size
    return None


def measure(batch: Any, loader: int, size: int | None = None) -> Batch:
    """Contents of `batch`; `size`: batch size that the loader knows, else None.

    A batch has `size` samples if one of its tensors or lists has this length, or none is shorter. A shorter batch, at
    the end of the data, has the length of its first shorter tensor or list. Without `size`, the batch has the length of
    its first tensor or list. A batch without tensors and lists is one sample.
    """
    # Fast path for nearly every batch.
    first = batch[0] if type(batch) in (list, tuple) and batch else batch
    if isinstance(first, torch.Tensor) and first.dim() and (size is None or first.shape[0] == size):
        return _of(loader, first.shape, first.dtype, first.shape[0])
    lengths = _lengths(batch)
    fitting = [length for length in lengths if size is None or length < size]
    count = size if size is not None and (size in lengths or not fitting) else fitting[0] if fitting else 1
    leaves = [leaf for leaf in tensors_of(batch) if leaf.dim()]
    mask = batch.get(MASK) if isinstance(batch, Mapping) else None
    if isinstance(mask, torch.Tensor) and mask.dim() == ID_DIMENSIONS:
        return Batch(loader=loader, count=count, unit=Unit.SAMPLES, tokens=mask.numel(), mask=mask)
    if not leaves:
        return Batch(loader=loader, count=count, unit=Unit.SAMPLES)
    known = _of(loader, leaves[0].shape, leaves[0].dtype, count)
    # A list of images of different sizes.
    is_listed = isinstance(first, list | tuple) and all(isinstance(item, torch.Tensor) for item in first)
    is_listed = is_listed and leaves[0].dim() == LISTED_DIMENSIONS and leaves[0].shape[0] in CHANNELS
    return Batch(loader=loader, count=count, unit=Unit.IMAGES, tokens=0) if is_listed else known


@lru_cache
def _of(loader: int, shape: torch.Size, dtype: torch.dtype, count: int) -> Batch:
    """Batch from the shape and type of its tensor.

    Cached, because this function is called in timed steps, whose batches are alike.
    """
    if len(shape) == IMAGE_DIMENSIONS:
        return Batch(loader=loader, count=count, unit=Unit.IMAGES)
    is_tokens = len(shape) == ID_DIMENSIONS and dtype in IDS and shape[1] > MOST_IDS
    return Batch(loader=loader, count=count, unit=Unit.SAMPLES, tokens=shape.numel() if is_tokens else 0)


def _lengths(batch: Any) -> list[int]:
    """Lengths of the tensors and lists in a batch, in order.

    If the batch consists of equally long lists, their length comes first. A batch of graphs has only the number of
    graphs.
    """
    graphs = getattr(batch, "num_graphs", None)
    if isinstance(graphs, int):
        return [graphs]
    lengths = []
    # `tuple(zip(*batch))`: a tuple of images and one of targets.
    if isinstance(batch, list | tuple) and all(isinstance(part, list | tuple) for part in batch):
        of_parts = {len(part) for part in batch}
        lengths = list(of_parts) if len(of_parts) == 1 else []
    for leaf in _leaves(batch):
        if isinstance(leaf, list | tuple):
            lengths.append(len(leaf))
        elif leaf.dim():
            lengths.append(leaf.shape[0])
    return lengths


def tensors_of(batch: Any) -> Iterator[torch.Tensor]:
    """Tensors in a batch, in order."""
    return (leaf for leaf in _leaves(batch) if isinstance(leaf, torch.Tensor))


def _leaves(value: Any) -> Iterator[Any]:
    """Tensors in a batch, and lists of texts, numbers or mappings, in order. Hugging Face's batches are mappings."""
    waiting = [value]
    for _ in range(MOST_LEAVES):
        if not waiting:
            return
        item = waiting.pop(0)
        if isinstance(item, torch.Tensor):
            yield item
        elif isinstance(item, Mapping):
            waiting = [*item.values(), *waiting]
        elif isinstance(item, list | tuple):
            if item and all(isinstance(part, str | bytes | int | float | Mapping) for part in item):
                yield item
            waiting = [*item[:MOST_LEAVES], *waiting]
        elif isinstance(item, type):
            continue
        elif is_dataclass(item):
            waiting = [*(getattr(item, part.name, None) for part in fields(item)), *waiting]
        elif hasattr(item, "to") and hasattr(item, "__dict__"):
            waiting = [*vars(item).values(), *waiting]


def fetched_at(folder: Path) -> str:
    """Line that is being executed, such as `train.py:41`: the innermost one in `folder`, else in a library."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - what traceback uses too, without reading any source
    outside = ""
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        where = f"{path.name}:{frame.f_lineno}"
        if path.is_relative_to(folder) and "site-packages" not in path.parts:
            return where
        if not outside and "torch" not in path.parts and not path.is_relative_to(Path(__file__).parents[1]):
            outside = where
        frame = frame.f_back
    return outside or "an unknown line"

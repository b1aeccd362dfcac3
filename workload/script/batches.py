"""What a DataLoader's batch holds: how many images, tokens or samples, and which line of the script fetched it."""

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
# More leaves than this in a batch are looked at no further: a list of samples, say, has its count already.
MOST_LEAVES = 16
IDS = (torch.int64, torch.int32)


class Unit(StrEnum):
    """What throughput counts."""

    IMAGES = "images"
    TOKENS = "tokens"
    SAMPLES = "samples"
    STEPS = "steps"


@dataclass(frozen=True, kw_only=True)
class Batch:
    """`count` of `unit`, from the DataLoader with this `loader` number."""

    loader: int
    count: int
    unit: Unit


def measure(batch: Any, loader: int) -> Batch:
    """By the batch's first tensor: (N, C, H, W) are N images, integers (N, L) are N x L tokens, else N samples.

    A batch without a tensor counts as one sample, a list of anything else as its length.
    """
    # Nearly every batch, without a walk through it.
    tensor = batch[0] if type(batch) in (list, tuple) and batch else batch
    if not isinstance(tensor, torch.Tensor) or not tensor.dim():
        tensor = next((leaf for leaf in _tensors(batch) if leaf.dim()), None)
    if tensor is None:
        count = len(batch) if isinstance(batch, list) else 1
        return Batch(loader=loader, count=count, unit=Unit.SAMPLES)
    return _of(loader, tensor.shape, tensor.dtype)


@lru_cache
def _of(loader: int, shape: torch.Size, dtype: torch.dtype) -> Batch:
    """Kept, for batches are alike: it is asked for in timed steps."""
    if len(shape) == IMAGE_DIMENSIONS:
        return Batch(loader=loader, count=shape[0], unit=Unit.IMAGES)
    if len(shape) == ID_DIMENSIONS and dtype in IDS:
        return Batch(loader=loader, count=shape.numel(), unit=Unit.TOKENS)
    return Batch(loader=loader, count=shape[0], unit=Unit.SAMPLES)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in a batch, in order; Hugging Face's batches are mappings of a class of their own."""
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
            waiting = [*item, *waiting]
        elif is_dataclass(item):
            waiting = [*(getattr(item, part.name) for part in fields(item)), *waiting]
        elif hasattr(item, "to") and hasattr(item, "__dict__"):
            waiting = [*vars(item).values(), *waiting]


def fetched_at(folder: Path) -> str:
    """`train.py:41`: the innermost line of a file below `folder` that is being executed; else that of the library."""
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

"""Whether a counted training step fits a GPU's memory, and its largest batch, from a step's allocations.

The tensors of a step are the same on every device. To them come what PyTorch's allocator holds beside them
(`allocator.py`), and what CUDA and its libraries take (`gpu_memory.toml`). What is not known exactly is an interval, so
the answer is one of three words. Standard library only: the launcher refuses machines with it.

On Windows the driver moves memory to the host instead of refusing it, so a step that does not fit runs, slowly.
Workspaces of cuDNN are not in the sum: if a convolution cannot have one, PyTorch tries the next algorithm (pytorch,
aten/src/ATen/native/cudnn/Conv_v7.cpp and Conv_v8.cpp: `catch (c10::OutOfMemoryError&)`).
"""

import functools
import itertools
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from workload.contract.allocations import Allocation, Kind
from workload.contract.allocator import MIN_BLOCK_BYTES, replay

TABLE = Path(__file__).with_name("gpu_memory.toml")
GIB = 2**30
# Batches that are tried.
BATCHES = tuple(2**power for power in range(21))


class Word(StrEnum):
    """`CLOSE`: neither is certain. The step may run because the allocator gives cached memory back, which is slow."""

    FITS = "fits"
    CLOSE = "close"
    DOES_NOT_FIT = "does not fit"


@dataclass(frozen=True, kw_only=True)
class Interval:
    """Bytes that are needed at least, and at most."""

    low: int
    high: int

    def __add__(self, other: "Interval") -> "Interval":
        return Interval(low=self.low + other.low, high=self.high + other.high)


@dataclass(frozen=True, kw_only=True)
class Card:
    """A GPU with its memory. `total`: what CUDA reports as its total; gpu_memory.toml has the sources.

    `gpu`: name in peaks.toml; `memory_gb`: nominal, as in peaks.toml. `outside`: what a process takes beside PyTorch's
    allocator, alone on the card. `workspaces`: of cuBLAS, in the allocator. `group`: how much more of a group's.
    """

    gpu: str
    memory_gb: float
    total: Interval
    outside: Interval
    workspaces: Interval
    group: Interval


@dataclass(frozen=True, kw_only=True)
class Needed:
    """Memory that a step needs on a card, in bytes; `low` is certain, `high` is enough."""

    word: Word
    low: int
    high: int


@dataclass(frozen=True, kw_only=True)
class LargestBatch:
    """Powers of two: the largest batch that fits, the smallest that does not; None if there is none to name."""

    fits: int | None
    does_not_fit: int | None


@dataclass(frozen=True, kw_only=True, eq=False)
class CountedStep:
    """A step's allocations at a batch of `samples`. `ranks`: processes that train together, each on its own card.

    `at_least`: the count is a lower bound, or memory grows from step to step: no batch is said to fit. `is_compiled`:
    the step was counted without torch.compile, with which it may need less: no batch is said not to fit.
    """

    allocations: Sequence[Allocation]
    samples: float | None = None
    at_least: bool = False
    is_compiled: bool = False
    ranks: int = 1
    _tensors: dict[float, int] = field(default_factory=dict, init=False, repr=False)
    _reserved: dict[float, int] = field(default_factory=dict, init=False, repr=False)

    @functools.cached_property
    def scales(self) -> bool:
        """Whether other batches can be judged: two batches were counted."""
        return bool(self.samples) and all(each.bytes_per_sample is not None for each in self.allocations)

    def needed(self, card: Card, *, samples: float | None = None) -> Needed:
        """Memory at a batch, by default the counted one; another one only if the step `scales`."""
        more = 0.0 if samples is None or self.samples is None else samples - self.samples
        beside = self._beside(card)
        low, high = self._tensors_bytes(more) + beside.low, self._reserved_bytes(more) + beside.high
        fits = high <= card.total.low and not self.at_least
        is_too_large = low > card.total.high and not self.is_compiled
        word = Word.DOES_NOT_FIT if is_too_large else Word.FITS if fits else Word.CLOSE
        return Needed(word=word, low=low, high=high)

    def largest_batch(self, card: Card) -> LargestBatch:
        """Search the powers of two."""
        found = LargestBatch(fits=None, does_not_fit=None)
        for samples in BATCHES if self.scales else ():
            word = self.needed(card, samples=samples).word
            if word is Word.DOES_NOT_FIT:
                return replace(found, does_not_fit=samples)
            if word is Word.FITS:
                found = replace(found, fits=samples)
        return found

    def _beside(self, card: Card) -> Interval:
        """Bytes of the GPU's memory that CUDA and its libraries take, and PyTorch's allocator does not count."""
        alone = card.outside + card.workspaces
        if self.ranks == 1:
            return alone
        # DistributedDataParallel may hold a copy of all gradients (its option `gradient_as_bucket_view`).
        copies = sum(each.size_bytes for each in self.allocations if each.kind is Kind.WEIGHTS)
        return alone + card.group + Interval(low=0, high=copies)

    def _tensors_bytes(self, more: float) -> int:
        """Most bytes alive at a time, rounded as blocks are; what the allocator cannot cut off a block is not in it."""
        if more not in self._tensors:
            sizes = [-(-each.bytes_at(more) // MIN_BLOCK_BYTES) * MIN_BLOCK_BYTES for each in self.allocations]
            changes = [(each.born, size) for each, size in zip(self.allocations, sizes, strict=True)]
            changes += [
                (each.died, -size) for each, size in zip(self.allocations, sizes, strict=True) if each.died is not None
            ]
            self._tensors[more] = max(itertools.accumulate((change for _, change in sorted(changes)), initial=0))
        return self._tensors[more]

    def _reserved_bytes(self, more: float) -> int:
        if more not in self._reserved:
            self._reserved[more] = replay(self.allocations, more_samples=more).peak_reserved_bytes
        return self._reserved[more]


@functools.cache
def cards() -> tuple[Card, ...]:
    """Read gpu_memory.toml."""
    table = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    outside, group, workspaces = (_gib(table[name]["gib"]) for name in ("context", "nccl", "workspaces"))
    return tuple(
        Card(
            gpu=row["gpu"],
            memory_gb=row["memory_gb"],
            total=_gib(row["total_gib"]),
            outside=outside,
            workspaces=workspaces,
            group=group,
        )
        for row in table["card"]
    )


def card(gpu: str, *, memory_gb: float) -> Card | None:
    """Card by its name and nominal memory in peaks.toml; None if unknown."""
    return next((each for each in cards() if (each.gpu, each.memory_gb) == (gpu, memory_gb)), None)


def _gib(limits: Sequence[float]) -> Interval:
    low, high = (round(limit * GIB) for limit in limits)
    return Interval(low=low, high=high)

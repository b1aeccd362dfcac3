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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from workload.contract.allocations import Allocation, Kind
from workload.contract.allocator import MIN_BLOCK_BYTES, replay

TABLE = Path(__file__).with_name("gpu_memory.toml")
GIB = 2**30
# A batch beyond this is not searched for.
MOST_SAMPLES = 2**20


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
    """A GPU with its memory. `total`: what CUDA reports as its total; `source`: title and date.

    `gpu`: name in peaks.toml; `memory_gb`: nominal, as in peaks.toml. `outside`: what a process takes beside PyTorch's
    allocator, alone on the card. `workspaces`: of cuBLAS, in the allocator. `group`: how much more of a group's.
    """

    gpu: str
    memory_gb: float
    total: Interval
    outside: Interval
    workspaces: Interval
    group: Interval
    source: str


@dataclass(frozen=True, kw_only=True)
class Needed:
    """Memory that a step needs on a card, in bytes; `low` is certain, `high` is enough.

    `tensors_bytes`: most bytes of tensors alive at a time, each in its block of the allocator. `allocator_bytes`: what
    the allocator holds beside them at most. `outside`, `workspaces`: see `Card`. `word`: see `Word`.
    """

    word: Word
    tensors_bytes: int
    allocator_bytes: int
    outside: Interval
    workspaces: Interval

    @property
    def low(self) -> int:
        return self.tensors_bytes + self.outside.low + self.workspaces.low

    @property
    def high(self) -> int:
        return self.tensors_bytes + self.allocator_bytes + self.outside.high + self.workspaces.high


@dataclass(frozen=True, kw_only=True)
class LargestBatch:
    """Powers of two: the largest batch that fits, the smallest that does not; None if there is none to name."""

    fits: int | None
    does_not_fit: int | None


@dataclass(frozen=True, kw_only=True, eq=False)
class CountedStep:
    """A step's allocations at a batch of `samples`. `ranks`: processes that train together, each on its own card.

    `expandable`: as of `CachingAllocator`. `at_least`: the count is a lower bound, or memory grows from step to step:
    no batch is said to fit. The step is not compiled: a compiled one may need less.
    """

    allocations: Sequence[Allocation]
    samples: float | None = None
    at_least: bool = False
    ranks: int = 1
    expandable: bool = False
    _tensors: dict[float, int] = field(default_factory=dict, init=False, repr=False)
    _reserved: dict[float, int] = field(default_factory=dict, init=False, repr=False)

    @functools.cached_property
    def scales(self) -> bool:
        """Whether other batches can be judged: two batches were counted."""
        return bool(self.samples) and all(each.bytes_per_sample is not None for each in self.allocations)

    def needed(self, card: Card, *, samples: float | None = None) -> Needed:
        """Memory at a batch, by default the counted one. Raises `ValueError` for another batch if none `scales`."""
        more = self._more(samples)
        outside = self._outside(card)
        tensors = self._tensors_bytes(more)
        does_not_fit = tensors + outside.low + card.workspaces.low > card.total.high
        reserved = self._reserved_bytes(more)
        fits = reserved + outside.high + card.workspaces.high <= card.total.low and not self.at_least
        return Needed(
            word=Word.DOES_NOT_FIT if does_not_fit else Word.FITS if fits else Word.CLOSE,
            tensors_bytes=tensors,
            allocator_bytes=reserved - tensors,
            outside=outside,
            workspaces=card.workspaces,
        )

    def largest_batch(self, card: Card) -> LargestBatch:
        """Search the powers of two; only the counted batch is judged if no other can be."""
        if not self.scales:
            return LargestBatch(fits=None, does_not_fit=None)
        batches = list(itertools.takewhile(lambda batch: batch <= MOST_SAMPLES, (2**power for power in range(64))))
        certain = card.total.high - self._outside(card).low - card.workspaces.low
        does_not_fit = next((each for each in batches if self._tensors_bytes(self._more(each)) > certain), None)
        below = [each for each in batches if does_not_fit is None or each < does_not_fit]
        fitting = (each for each in reversed(below) if self.needed(card, samples=each).word is Word.FITS)
        return LargestBatch(fits=None if self.at_least else next(fitting, None), does_not_fit=does_not_fit)

    def _outside(self, card: Card) -> Interval:
        if self.ranks == 1:
            return card.outside
        # DistributedDataParallel may hold a copy of all gradients (its option `gradient_as_bucket_view`).
        copies = sum(each.size_bytes for each in self.allocations if each.kind is Kind.WEIGHTS)
        return card.outside + card.group + Interval(low=0, high=copies)

    def _more(self, samples: float | None) -> float:
        if samples is None or samples == self.samples:
            return 0.0
        if not self.scales or self.samples is None:
            raise ValueError(f"one batch was counted, of {self.samples} samples; got {samples}")
        return samples - self.samples

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
            again = replay(self.allocations, more_samples=more, expandable=self.expandable)
            self._reserved[more] = again.peak_reserved_bytes
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
            source=_source(table, row),
        )
        for row in table["card"]
    )


def card(gpu: str, *, memory_gb: float | None = None) -> Card | None:
    """Card by its name in peaks.toml, the one with the least memory if there are several; None if unknown."""
    found = [each for each in cards() if each.gpu == gpu and memory_gb in (None, each.memory_gb)]
    return min(found, key=lambda each: each.memory_gb, default=None)


def _source(table: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    source = table["source"][row["source"]]
    return f"{source['title']}, read {source['read']}"


def _gib(limits: Sequence[float]) -> Interval:
    low, high = (round(limit * GIB) for limit in limits)
    return Interval(low=low, high=high)

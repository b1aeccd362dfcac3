"""The replayed allocator. Expected figures are computed by hand from the rules of CUDACachingAllocator.cpp."""

import random

import pytest

from workload.contract.allocations import Allocation, Kind
from workload.contract.allocator import MIB, Block, CachingAllocator, replay

# A sequence: a name with a size in MiB allocates, a name with a minus frees, ! empties the cache. Then the allocated
# and the reserved MiB.
SEQUENCES = {
    "a byte takes 512 of a segment of 2 MiB": ("a=0.000001", 512 / MIB, 2),
    "blocks of 1 MiB share a segment": ("a=1 b=1", 2, 2),
    "a third needs another segment": ("a=1 b=1 c=1", 3, 4),
    "more than 1 MiB is cut from 20 MiB": ("a=1.0001", 1 + 512 / MIB, 20),
    "two of 9 MiB share 20 MiB": ("a=9 b=9", 18, 20),
    "the rest of 2 MiB is no block for a third": ("a=9 b=9 c=9", 27, 40),
    "from 10 MiB on a segment of its own": ("a=10", 10, 10),
    "which is a multiple of 2 MiB, and not cut if 1 MiB is left": ("a=11", 12, 12),
    "but cut if more is left, and the next block takes all of it": ("a=10.9 b=1.05", 12, 12),
    "best fit: the smaller of two free blocks": ("a=30 b=14 -a -b c=12 d=28", 40, 44),
    "freed neighbors are one block again": ("a=6 b=6 -a -b c=20", 20, 20),
    "fragments are not": ("a=6 b=6 -a c=9", 15, 40),
    "a free block merges on both sides": ("a=5 b=5 c=5 -a -c -b d=20", 20, 20),
    "small blocks do not come from large segments": ("a=15 -a b=1", 1, 18),
    "an emptied cache keeps the segments in use": ("a=30 b=9 c=6 -a -b ! d=2", 8, 20),
}
EXPANDABLE = {
    "a page of 20 MiB": ("a=6", 6, 20),
    "grows at its end by what is missing": ("a=6 b=30", 36, 40),
    "an inner fragment is not used, the end is": ("a=6 b=30 -a c=8", 38, 60),
    "small blocks have pages of 2 MiB": ("a=1 b=1 c=1", 3, 4),
    "any rest from 512 bytes on is cut": ("a=19 b=1.5", 20.5, 40),
    "a larger inner block is taken before the end, which can grow": ("a=4 b=16 c=25 -b d=10 e=16", 55, 80),
}


@pytest.mark.parametrize(
    ("expandable", "sequence", "allocated_mib", "reserved_mib"),
    [(False, *row) for row in SEQUENCES.values()] + [(True, *row) for row in EXPANDABLE.values()],
    ids=[*SEQUENCES, *(f"expandable: {name}" for name in EXPANDABLE)],
)
def test_allocated_and_reserved_bytes(
    expandable: bool, sequence: str, allocated_mib: float, reserved_mib: float
) -> None:
    allocator = _after(sequence, CachingAllocator(expandable=expandable))
    assert allocator.allocated_bytes / MIB == pytest.approx(allocated_mib, abs=2 * 512 / MIB)
    assert allocator.reserved_bytes / MIB == reserved_mib


@pytest.mark.parametrize("expandable", [False, True])
def test_everything_freed_is_given_back_or_one_block(expandable: bool) -> None:
    allocator, chance = CachingAllocator(expandable=expandable), random.Random(5)
    live: list[Block] = []
    for _ in range(2000):
        if live and chance.random() < 0.5:
            allocator.free(live.pop(chance.randrange(len(live))))
        else:
            live.append(allocator.allocate(chance.choice([100, MIB, 3 * MIB, 15 * MIB]) * chance.randint(1, 4)))
        if chance.random() < 0.05:
            allocator.release_cached()
        assert sum(block.size for block in live) == allocator.allocated_bytes <= allocator.reserved_bytes
    for block in live:
        allocator.free(block)
    allocator.release_cached()
    assert allocator.allocated_bytes == 0
    # All that is left is one block for each size of pages.
    assert [len(allocator.pool(size).free) for size in (1, 2 * MIB)] == ([1, 1] if expandable else [0, 0])
    assert allocator.reserved_bytes == sum(size for kind in (1, 2 * MIB) for size, _, _ in allocator.pool(kind).free)


GRADIENTS = [
    (Kind.WEIGHTS, 30, 0, None),
    (Kind.GRADIENTS, 30, 1, 2),
    (Kind.ACTIVATIONS, 50, 3, 5),
    (Kind.GRADIENTS, 30, 4, None),
]
# What the first step leaves is in the way of the second one.
OPTIMIZER = [(Kind.ACTIVATIONS, 50, 0, 1), (Kind.OPTIMIZER, 40, 2, None)]
# The outputs of the step before live until the new ones are there.
OUTPUTS = [(Kind.INPUTS, 12, 0, 3), (Kind.TEMPORARIES, 12, 2, None)]


@pytest.mark.parametrize(
    ("rows", "steps", "allocated_mib", "reserved_mib"),
    [
        (GRADIENTS, 1, 110, 110),
        (GRADIENTS, 3, 110, 110),
        (OPTIMIZER, 1, 50, 50),
        (OPTIMIZER, 2, 90, 100),
        (OPTIMIZER, 3, 90, 100),
        (OUTPUTS, 3, 24, 24),
    ],
)
def test_peaks_of_several_steps(
    rows: list[tuple[Kind, int, int, int | None]], steps: int, allocated_mib: int, reserved_mib: int
) -> None:
    found = replay(_allocations(rows), steps=steps)
    assert (found.peak_allocated_bytes / MIB, found.peak_reserved_bytes / MIB) == (allocated_mib, reserved_mib)


def test_step_with_more_samples() -> None:
    allocations = _allocations(GRADIENTS)
    # The activations have 5 MiB per sample: 50 + 2 x 5.
    assert replay(allocations, more_samples=2).peak_allocated_bytes == 120 * MIB
    assert replay(allocations, more_samples=-10).peak_allocated_bytes == 60 * MIB


def _after(sequence: str, allocator: CachingAllocator) -> CachingAllocator:
    blocks: dict[str, Block] = {}
    for word in sequence.split():
        if word.startswith("-"):
            allocator.free(blocks.pop(word[1:]))
        elif word == "!":
            allocator.release_cached()
        else:
            name, _, mib = word.partition("=")
            blocks[name] = allocator.allocate(int(float(mib) * MIB))
    return allocator


def _allocations(rows: list[tuple[Kind, int, int, int | None]]) -> list[Allocation]:
    return [
        Allocation(
            kind=kind,
            size_bytes=mib * MIB,
            bytes_per_sample=5.0 * MIB if kind is Kind.ACTIVATIONS else 0.0,
            born=born,
            died=died,
        )
        for kind, mib, born, died in rows
    ]

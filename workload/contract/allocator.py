"""PyTorch's caching allocator of CUDA memory, replayed on a sequence of allocations and frees.

A GPU must hold more than the live tensors: the allocator takes segments from the driver, cuts blocks from them, and
keeps what the program frees. Source: pytorch/pytorch, c10/cuda/CUDACachingAllocator.cpp (2.0 to 2.8: `malloc`,
`get_free_block`, `should_split`, `free_block`, `release_cached_blocks`, `find_expandable_block`) and
c10/core/AllocatorConfig.h of 2.15, which still has these sizes. One stream. Left out are options that are off by
default (`max_split_size_mb`, `roundup_power2_divisions`, `garbage_collection_threshold`), and that an expandable
segment gives pages back before memory runs out. Standard library only.
"""

import bisect
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from workload.contract.allocations import Allocation, Kind

MIB = 2**20
MIN_BLOCK_BYTES = 512
# Up to this size a block comes from the pool of small blocks.
SMALL_BYTES = MIB
SMALL_SEGMENT_BYTES = 2 * MIB
# Smaller blocks of the pool of large blocks share segments of `LARGE_SEGMENT_BYTES`, others have one of their own size.
OWN_SEGMENT_BYTES = 10 * MIB
LARGE_SEGMENT_BYTES = 20 * MIB
ROUND_LARGE_BYTES = 2 * MIB


@dataclass(eq=False, slots=True, kw_only=True)
class Block:
    """A part of a segment; `before`, `after`: its neighbors there."""

    pool: "_Pool"
    address: int
    size: int
    used: bool = False
    before: "Block | None" = None
    after: "Block | None" = None


@dataclass(eq=False, slots=True, kw_only=True)
class _Pool:
    """Free blocks by size, then address; `end`: the last block of an expandable segment, which a pool has one of."""

    segment_bytes: int
    free: list[tuple[int, int, Block]] = field(default_factory=list)
    end: Block | None = None

    def add(self, block: Block) -> None:
        bisect.insort(self.free, (block.size, block.address, block))

    def remove(self, block: Block) -> None:
        del self.free[bisect.bisect_left(self.free, (block.size, block.address))]


class CachingAllocator:
    """The allocator of one device whose memory is large enough.

    `expandable`: `expandable_segments:True` in `PYTORCH_CUDA_ALLOC_CONF`.
    """

    def __init__(self, *, expandable: bool = False) -> None:
        """Start without any segment."""
        self.expandable = expandable
        self.allocated_bytes = self.reserved_bytes = 0
        self.peak_allocated_bytes = self.peak_reserved_bytes = 0
        self._small = _Pool(segment_bytes=SMALL_SEGMENT_BYTES)
        self._large = _Pool(segment_bytes=LARGE_SEGMENT_BYTES)
        self.next_address = 0

    def allocate(self, size_bytes: int) -> Block:
        """A block of at least this size."""
        size = max(1, -(-size_bytes // MIN_BLOCK_BYTES)) * MIN_BLOCK_BYTES
        pool = self.pool(size)
        block = self._cached(pool, size) or self._new(pool, size)
        rest = block.size - size
        if rest >= MIN_BLOCK_BYTES if pool is self._small or self.expandable else rest > SMALL_BYTES:
            pool.add(_cut(block, size))
        block.used = True
        self.allocated_bytes += block.size
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes)
        return block

    def pool(self, size: int) -> _Pool:
        """Pool that blocks of this size come from."""
        return self._small if size <= SMALL_BYTES else self._large

    def free(self, block: Block) -> None:
        """Keep a block for later allocations, as one with its free neighbors."""
        self.allocated_bytes -= block.size
        block.used = False
        block.pool.add(_merged(block))

    def release_cached(self) -> None:
        """Give the driver back all segments that are not in use, as the allocator does when memory runs out."""
        for pool in () if self.expandable else (self._large, self._small):
            for _, _, block in list(pool.free):
                if block.before is None and block.after is None:
                    pool.remove(block)
                    self.reserved_bytes -= block.size

    def _cached(self, pool: _Pool, size: int) -> Block | None:
        """The smallest free block that is large enough; the end of an expandable segment only if there is no other."""
        at = bisect.bisect_left(pool.free, (size,))
        if self.expandable and at + 1 < len(pool.free) and pool.free[at][2] is pool.end:
            at += 1
        return pool.free.pop(at)[2] if at < len(pool.free) else None

    def _new(self, pool: _Pool, size: int) -> Block:
        if self.expandable:
            return self._expanded(pool, size)
        segment = pool.segment_bytes
        if size >= OWN_SEGMENT_BYTES:
            segment = -(-size // ROUND_LARGE_BYTES) * ROUND_LARGE_BYTES
        self._reserve(segment)
        block = Block(pool=pool, address=self.next_address, size=segment)
        self.next_address += segment
        return block

    def _reserve(self, size: int) -> None:
        self.reserved_bytes += size
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)

    def _expanded(self, pool: _Pool, size: int) -> Block:
        """The end of the segment, to which pages are added."""
        end = pool.end
        is_free = end is not None and not end.used
        missing = size - end.size if end is not None and is_free else size
        pages = -(-missing // pool.segment_bytes) * pool.segment_bytes
        self._reserve(pages)
        if end is not None and is_free:
            pool.remove(end)
            end.size += pages
            return end
        block = Block(pool=pool, address=end.address + end.size if end else 0, size=pages, before=end)
        if end is not None:
            end.after = block
        pool.end = block
        return block


def _cut(block: Block, size: int) -> Block:
    """Shorten a block to `size`; the rest of it."""
    rest = Block(pool=block.pool, address=block.address + size, size=block.size - size, before=block)
    _join(rest, block.after)
    block.size, block.after = size, rest
    return rest


def _merged(block: Block) -> Block:
    """Join a block that is in no pool with its free neighbors, which leave theirs."""
    before, after = block.before, block.after
    if after is not None and not after.used:
        after.pool.remove(after)
        block.size += after.size
        _join(block, after.after)
    if before is not None and not before.used:
        before.pool.remove(before)
        before.size += block.size
        _join(before, block.after)
        return before
    return block


def _join(block: Block, after: Block | None) -> None:
    """Make `after` the next block of the segment; None: there is none."""
    block.after = after
    if after is not None:
        after.before = block
    elif block.pool.end is not None:
        block.pool.end = block


def is_expandable(variables: Mapping[str, str | None]) -> bool:
    """Whether these environment variables switch expandable segments on."""
    settings = (variables.get(name) or "" for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"))
    return any("expandable_segments:true" in each.casefold().replace(" ", "") for each in settings)


# Blocks that a step left alive, by kind and size.
_Left: TypeAlias = dict[tuple[Kind | None, int], list[Block]]


@dataclass(frozen=True, kw_only=True)
class Replay:
    """Peaks of a sequence."""

    peak_allocated_bytes: int
    peak_reserved_bytes: int


def replay(
    allocations: Sequence[Allocation], *, more_samples: float = 0.0, steps: int = 2, expandable: bool = False
) -> Replay:
    """Repeat a step, with `more_samples` in its batch; the second step finds what the first has left in the cache.

    What a step leaves alive is what the next one finds: gradients, for example, that it frees before it makes its own.
    """
    allocator = CachingAllocator(expandable=expandable)
    sizes = [each.bytes_at(more_samples) for each in allocations]
    events = sorted(
        [(each.born, index) for index, each in enumerate(allocations)]
        + [(each.died, ~index) for index, each in enumerate(allocations) if each.died is not None]
    )
    left: _Left = {}
    for _ in range(steps):
        left = _step(allocator, allocations, sizes, events, left)
    return Replay(
        peak_allocated_bytes=allocator.peak_allocated_bytes, peak_reserved_bytes=allocator.peak_reserved_bytes
    )


def _step(
    allocator: CachingAllocator,
    allocations: Sequence[Allocation],
    sizes: Sequence[int],
    events: Sequence[tuple[int, int]],
    left: _Left,
) -> _Left:
    """Make one step; an event is a position and an index into `allocations`, inverted (`~`) for a death."""
    alive: dict[int, Block] = {}
    for _, index in events:
        if not sizes[index if index >= 0 else ~index]:
            # Tensors without elements have no block.
            continue
        if index < 0:
            allocator.free(alive.pop(~index))
        else:
            found = left.get((_role(allocations[index]), sizes[index])) if left else None
            alive[index] = found.pop() if found else allocator.allocate(sizes[index])
    kept = defaultdict(list, left)
    for index, block in alive.items():
        kept[_role(allocations[index]), sizes[index]].append(block)
    return kept


def _role(allocation: Allocation) -> Kind | None:
    """Kind under which the next step finds it; None: it may have another there, as outputs that a variable holds."""
    return allocation.kind if allocation.kind in (Kind.WEIGHTS, Kind.GRADIENTS, Kind.OPTIMIZER) else None

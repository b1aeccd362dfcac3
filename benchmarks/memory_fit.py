"""How well a step's memory is counted and a GPU's memory is judged; no GPU is needed.

`python benchmarks/memory_fit.py snapshots FOLDER`: replay public `torch.cuda.memory` snapshots (`*.pickle`, `*.pkl`)
and compare the reserved bytes with those of the real allocator after each event.
`python benchmarks/memory_fit.py published FILE`: judge the published runs of a table with the columns gpu, model,
precision, batch and notes. None that ran may be called impossible.
"""

import argparse
import csv
import functools
import pickle
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from workload.contract import allocations
from workload.contract.allocator import MIB, MIN_BLOCK_BYTES, SMALL_BYTES, SMALL_SEGMENT_BYTES, Block, CachingAllocator
from workload.contract.memory_fit import GIB, Card, CountedStep, Interval, Word, cards
from workload.steps import complexity

# Names of the published table for cards of gpu_memory.toml, and nominal GiB of those that have no row there.
CARDS = {
    "A100-PCIE-40": "A100 40 GB",
    "A100-SXM-40": "A100 40 GB",
    "A100-PCIE-80": "A100 80 GB PCIe",
    "A100-SXM-80": "A100 80 GB SXM",
    "A10": "A10G",
    "H100-PCIE": "H100 PCIe",
    "H100-SXM": "H100 SXM5",
    "H200-SXM": "H200 SXM",
    "RTX4080": "RTX 4080",
    "RTX4080-Laptop": "RTX 4080 Laptop",
    "RTX4090": "RTX 4090",
    "V100-PCIE": "V100 PCIe",
    "V100-SXM2": "V100 SXM2",
}
NOMINAL_GIB = {
    "GH200-96": 96,
    "GTX1080Ti": 11,
    "L40S": 48,
    "P100": 16,
    "RTX2080Ti": 11,
    "RTX3080": 10,
    "RTX3090": 24,
    "RTX4070S": 12,
    "RTX4080S": 16,
    "RTX4090-Laptop": 16,
    "RTX6000Ada": 48,
    "RTX6000Turing": 24,
    "RTX8000": 48,
    "RTXA6000": 48,
    "TitanRTX": 24,
    "TitanV": 12,
    "TitanXp": 12,
}
PRECISIONS = {"fp32": "fp32", "tf32": "fp32", "amp": "amp", "fp16": "amp", "bf16": "bf16"}
COUNTED_SAMPLES = 16


class _Plain(pickle.Unpickler):
    """Reads lists, dicts, texts and numbers; a foreign file may name no class or function."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name}")


def snapshots(folder: Path) -> None:
    """Print a line for each snapshot with a history: reserved MiB at its end and at its peak, real and replayed."""
    equal = total = 0
    for path in sorted([*folder.glob("*.pickle"), *folder.glob("*.pkl")]):
        with path.open("rb") as file:
            try:
                snapshot = _Plain(file).load()
                traces = list(enumerate(snapshot["device_traces"]))
            except (pickle.UnpicklingError, KeyError, TypeError) as error:
                print(f"{path.name}: no snapshot ({error})")
                continue
        for device, trace in traces:
            if any(event["action"] == "alloc" for event in trace):
                segments = [segment for segment in snapshot["segments"] if segment["device"] == device]
                real, replayed = zip(*_reserved(segments, trace), strict=True)
                same = sum(one == other for one, other in zip(real, replayed, strict=True)) / len(real)
                is_equal = (real[-1], max(real)) == (replayed[-1], max(replayed))
                equal, total = equal + is_equal, total + 1
                print(
                    f"{path.name}: {len(real)} events, {same:.1%} equal; end {real[-1] // MIB} {replayed[-1] // MIB}, "
                    f"peak {max(real) // MIB} {max(replayed) // MIB}{'' if is_equal else '  DIFFERS'}"
                )
    print(f"{equal} of {total} snapshots have equal reserved bytes at their end and at their peak")


def _reserved(segments: Sequence[dict[str, Any]], trace: Sequence[dict[str, Any]]) -> Iterator[tuple[int, int]]:
    """Reserved bytes after each allocation and free: of the real allocator, and of the replay."""
    sizes, live = _at_start(segments, trace)
    allocator = CachingAllocator()
    blocks = _seeded(allocator, sizes, live)
    real = sum(sizes.values())
    released = False
    for event in trace:
        size = event["size"]
        match event["action"]:
            case "segment_alloc":
                real += size
            case "segment_free":
                real -= size
                if not released:
                    allocator.release_cached()
            case "alloc":
                blocks[event["addr"]] = allocator.allocate(size)
                yield real, allocator.reserved_bytes
            case "free_completed":
                allocator.free(blocks.pop(event["addr"]))
                yield real, allocator.reserved_bytes
        released = event["action"] == "segment_free"


def _at_start(
    segments: Sequence[dict[str, Any]], trace: Sequence[dict[str, Any]]
) -> tuple[dict[int, int], dict[int, int]]:
    """Segments and live blocks before a history, by address: those at its end, its events undone."""
    sizes = {segment["address"]: segment["total_size"] for segment in segments}
    live: dict[int, int] = {}
    for segment in segments:
        address = segment["address"]
        for block in segment["blocks"]:
            if block["state"] != "inactive":
                live[block.get("address", address)] = block["size"]
            address += block["size"]
    for event in reversed(trace):
        match event["action"]:
            case "segment_alloc":
                del sizes[event["addr"]]
            case "segment_free":
                sizes[event["addr"]] = event["size"]
            case "alloc":
                del live[event["addr"]]
            case "free_completed":
                live[event["addr"]] = -(-event["size"] // MIN_BLOCK_BYTES) * MIN_BLOCK_BYTES
    return sizes, live


def _seeded(allocator: CachingAllocator, sizes: dict[int, int], live: dict[int, int]) -> dict[int, Block]:
    """Give an allocator these segments and live blocks; the blocks by address."""
    blocks: dict[int, Block] = {}
    for start, size in sizes.items():
        is_small = size == SMALL_SEGMENT_BYTES
        # A rest that the allocator does not cut off belongs to the block before it.
        least = MIN_BLOCK_BYTES if is_small else SMALL_BYTES + 1
        inside = sorted(address for address in live if start <= address < start + size)
        parts: list[tuple[int, int, bool]] = []
        at = start
        for address in [*inside, start + size]:
            if address - at >= least:
                parts.append((at, address - at, False))
            elif parts and address > at:
                parts[-1] = (parts[-1][0], address - parts[-1][0], True)
            if address < start + size:
                parts.append((address, live[address], True))
                at = address + live[address]
        before = None
        for address, length, used in parts:
            block = Block(pool=allocator.pool(1 if is_small else size), address=address, size=length, used=used)
            block.before = before
            if before is not None:
                before.after = block
            before = block
            if used:
                blocks[address] = block
                allocator.allocated_bytes += length
            else:
                block.pool.add(block)
        allocator.reserved_bytes += size
    allocator.peak_reserved_bytes = allocator.reserved_bytes
    allocator.next_address = max((start + size for start, size in sizes.items()), default=0)
    return blocks


def published(table: Path) -> None:
    """Print how published runs are judged, and a line for each of which it is not said that it fits."""
    words = Counter[str]()
    with table.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            notes = row["notes"]
            # Where the source does not tell the batch, the table has a guess.
            if not row["batch"] or "batch not read" in notes or "batch assumed" in notes:
                continue
            # The source's own report calls this card "GeForce RTX 4090 Laptop GPU 16 GB".
            gpu = "RTX4090-Laptop" if row["gpu"] == "RTX4090" and "stack=jcxal" in notes else row["gpu"]
            card = _card(gpu, 32 if gpu.startswith("V100") and "32 GB" in notes else None)
            step = replace(_step(row["model"], PRECISIONS[row["precision"]]), is_compiled="torch.compile" in notes)
            needed = step.needed(card, samples=int(row["batch"]))
            # Windows moves memory to the host where Linux refuses it.
            kind = "spilled" if "VRAM" in notes else "ran compiled" if "torch.compile" in notes else "ran"
            words[f"{kind}: {needed.word}"] += 1
            if kind == "spilled" or needed.word is not Word.FITS:
                print(
                    f"{kind}, {needed.word}: {gpu} {row['model']} {row['precision']} batch {row['batch']} needs "
                    f"{needed.low / GIB:.1f} to {needed.high / GIB:.1f} of {card.total.high / GIB:.1f} GiB"
                )
    print("; ".join(f"{word}: {count}" for word, count in sorted(words.items())))


def _card(gpu: str, memory_gb: int | None) -> Card:
    known = [each for each in cards() if each.gpu == CARDS.get(gpu, gpu) and memory_gb in (None, each.memory_gb)]
    if known:
        return min(known, key=lambda each: each.memory_gb)
    size = NOMINAL_GIB[gpu]
    total = Interval(low=int(0.95 * size * GIB), high=size * GIB)
    return replace(cards()[0], gpu=gpu, memory_gb=size, total=total)


@functools.cache
def _step(model: str, precision: str) -> CountedStep:
    counted = complexity.count(
        model, num_classes=1000, image_size=224, batch_size=COUNTED_SAMPLES, precision=precision, optimizer="sgd"
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / allocations.FILE
        path.write_text(counted.allocations, encoding="utf-8")
        return CountedStep(allocations=allocations.read(path), samples=COUNTED_SAMPLES)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("snapshots").add_argument("folder", type=Path)
    commands.add_parser("published").add_argument("table", type=Path)
    options = parser.parse_args()
    if options.command == "snapshots":
        snapshots(options.folder)
    else:
        published(options.table)


if __name__ == "__main__":
    main()

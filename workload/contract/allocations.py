"""Memory of one training step: each allocation from birth to death, file `allocations.csv` of a bundle.

A step's tensors are the same on every device. So an allocation sequence that was counted on a laptop tells what a
GPU's allocator will be asked for. Standard library only.
"""

import csv
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass, fields
from enum import StrEnum
from pathlib import Path

from workload.contract.operating_system import replace_text
from workload.contract.record import StepMemory
from workload.contract.text import si

FILE = "allocations.csv"
# A sentence leaves out kinds with smaller shares of the peak.
LEAST_SHARE = 0.015
# Memory that grows is told if this many steps add the same as the peak.
LEAKING_STEPS = 100_000


class Kind(StrEnum):
    """Use of an allocation.

    `ACTIVATIONS`: results of the forward pass that are still alive when the backward pass begins.
    `TEMPORARIES`: all other memory.
    """

    WEIGHTS = "weights"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer"
    ACTIVATIONS = "activations"
    TEMPORARIES = "temporaries"
    INPUTS = "inputs"


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """A storage of tensors on the device.

    `born`, `died`: positions in the one sequence of births and deaths of the step; `died` is None for what outlives the
    step. What was there before the step comes first. `size_bytes`: at the batch that was counted; `bytes_per_sample`:
    how much larger with each further sample of the batch, None if only one batch size was counted.
    """

    kind: Kind
    size_bytes: int
    bytes_per_sample: float | None
    born: int
    died: int | None

    def bytes_at(self, more_samples: float) -> int:
        """Size with `more_samples` samples more in the batch than were counted, or fewer if negative."""
        return max(0, round(self.size_bytes + (self.bytes_per_sample or 0.0) * more_samples))


def sentence(memory: StepMemory | None) -> str:
    """`at most 5.1 GB in tensors (activations 4.7 GB, weights 0.1 GB), at conv2d, train.py:41`; empty if unknown."""
    if memory is None or not memory.peak_bytes:
        return ""
    parts = {kind: getattr(memory, f"{kind}_bytes") or 0.0 for kind in Kind}
    shown = sorted(
        (kind for kind in Kind if parts[kind] > LEAST_SHARE * memory.peak_bytes), key=lambda kind: -parts[kind]
    )
    listed = ", ".join(f"{kind} {si(parts[kind], 'B', 2)}" for kind in shown)
    place = ", ".join(filter(None, (memory.peak_op, memory.peak_line)))
    bound = "at least" if memory.lower_bound else "at most"
    return f"{bound} {si(memory.peak_bytes, 'B')} in tensors ({listed})" + (f", at {place}" if place else "")


def notes(memory: StepMemory | None) -> Iterator[str]:
    """Sentences on memory that grows from step to step, and on what was not seen."""
    if memory and memory.peak_bytes and (memory.growth_bytes or 0.0) * LEAKING_STEPS > memory.peak_bytes:
        yield (
            f"every step keeps {si(memory.growth_bytes or 0.0, 'B')} more than the one before: the script holds on to "
            "tensors of past steps, such as losses that it has not turned into numbers"
        )
    if memory and memory.lower_bound:
        yield f"the memory of a step is a lower bound: {'; '.join(memory.lower_bound)}"


def write(path: Path, allocations: Iterable[Allocation]) -> None:
    """Write a file, whole or not at all."""
    replace_text(path, as_text(allocations))


def as_text(allocations: Iterable[Allocation]) -> str:
    """Content of the file."""
    rows = (["" if value is None else str(value) for value in astuple(each)] for each in allocations)
    return "".join(f"{','.join(row)}\n" for row in ([field.name for field in fields(Allocation)], *rows))


def read(path: Path) -> list[Allocation]:
    """Read a file that `write` wrote. Raises `OSError` if it is absent, `ValueError` or `KeyError` if damaged."""
    return parse(path.read_text(encoding="utf-8"))


def parse(text: str) -> list[Allocation]:
    """Allocations in the content of a file. Raises `ValueError` or `KeyError` if it is damaged."""
    return [
        Allocation(
            kind=Kind(row["kind"]),
            size_bytes=int(row["size_bytes"]),
            bytes_per_sample=float(row["bytes_per_sample"]) if row["bytes_per_sample"] else None,
            born=int(row["born"]),
            died=int(row["died"]) if row["died"] else None,
        )
        for row in csv.DictReader(text.splitlines())
    ]

"""Memory of one training step: each allocation from birth to death, file `allocations.csv` of a bundle.

A step's tensors are the same on every device. So an allocation sequence that was counted on a laptop tells what a
GPU's allocator will be asked for. Standard library only.
"""

import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path

from workload.contract.operating_system import replace_text

FILE = "allocations.csv"


class Kind(StrEnum):
    """What an allocation holds. `ACTIVATIONS`: computed in the forward pass and still needed when the backward begins.

    `TEMPORARIES`: everything that is none of the others.
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


def write(path: Path, allocations: Iterable[Allocation]) -> None:
    """Write a file, whole or not at all."""
    replace_text(path, as_text(allocations))


def as_text(allocations: Iterable[Allocation]) -> str:
    """Content of the file."""
    names = [field.name for field in fields(Allocation)]
    rows = (",".join(_text(getattr(each, name)) for name in names) for each in allocations)
    return "\n".join([",".join(names), *rows, ""])


def read(path: Path) -> list[Allocation]:
    """Read a file that `write` wrote. Raises `OSError` if it is absent, `ValueError` or `KeyError` if damaged."""
    return parse(path.read_text(encoding="utf-8"))


def parse(text: str) -> list[Allocation]:
    """Allocations in the content of a file. Raises `ValueError` or `KeyError` if it is damaged."""
    return list(_rows(csv.DictReader(text.splitlines())))


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _rows(found: Iterable[dict[str, str]]) -> Iterator[Allocation]:
    for row in found:
        yield Allocation(
            kind=Kind(row["kind"]),
            size_bytes=int(row["size_bytes"]),
            bytes_per_sample=float(row["bytes_per_sample"]) if row["bytes_per_sample"] else None,
            born=int(row["born"]),
            died=int(row["died"]) if row["died"] else None,
        )

"""Sizes of memory as Docker's command line writes them."""

import re

from workload.contract.errors import UsageError

# Docker's units are binary, whatever their letter says: docs.docker.com/engine/containers/resource_constraints.
UNIT_BYTES = {"b": 1, "k": 2**10, "m": 2**20, "g": 2**30}
# DataLoader workers hand over batches in /dev/shm; Docker's 64 MB are too few for one batch of 128 images.
DEFAULT_SHM_BYTES = 2 * UNIT_BYTES["g"]


def parse_bytes(text: str, *, flag: str, example: str) -> int:
    """`512m`, `2g` or a plain number of bytes; `UsageError` for anything else."""
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,6})?)([bkmg]?)b?", text.strip().lower())
    size = round(float(found[1]) * UNIT_BYTES[found[2] or "b"]) if found else 0
    if size <= 0:
        raise UsageError(f"{flag} must be a size such as {example}; got '{text}'", hint=f"{flag} {example}")
    return size


def text(size: int) -> str:
    """The size in its largest whole unit: `2g`, `512m`."""
    unit = next(unit for unit, factor in reversed(UNIT_BYTES.items()) if size % factor == 0)
    return f"{size // UNIT_BYTES[unit]}{unit}"

"""Length of a script's data: the number of samples in one pass over a DataLoader."""

import random
import sys
from typing import Any

import torch
from torch.utils import data

from workload.steps.program import several_processes

# The largest public set of images has 5.85e9 (LAION-5B, 2022). The length of a sampler without end is often the largest
# integer.
MOST_SAMPLES = 10**12


def samples_in_pass(loader: Any, size: int | None, count: int) -> int | None:
    """Samples of one pass over a DataLoader in this process; None if unknown.

    `size`: batch size that the DataLoader was made with, if any; `count`: number of samples in one of its batches.
    Calls only `len`, whose code may be the script's own: an error or an impossible length is an unknown one, and random
    numbers that it draws are put back.
    """
    numpy_random = sys.modules.get("numpy.random")
    states = random.getstate(), torch.get_rng_state(), numpy_random and numpy_random.get_state()
    try:
        samples = _length(loader, size, count)
    except (Exception, SystemExit):  # noqa: BLE001 - whatever the script's own code may raise
        return None
    finally:
        random.setstate(states[0])
        torch.set_rng_state(states[1])
        if numpy_random:
            numpy_random.set_state(states[2])
    return samples if samples and samples <= MOST_SAMPLES else None


def _length(loader: Any, size: int | None, count: int) -> int | None:
    dataset, batches = loader.dataset, loader.batch_sampler
    if isinstance(dataset, data.IterableDataset):
        # Its own length, because torch warns of further samples once the DataLoader was asked. Nobody knows how several
        # ranks share it.
        return len(dataset) if several_processes() is None else None
    if type(batches) is data.BatchSampler:
        # Without `drop_last`, the last batch is shorter.
        samples = len(batches.sampler)  # type: ignore[arg-type]
        return samples - samples % batches.batch_size if batches.drop_last else samples
    size = count if batches is None else size
    return len(loader) * size if size else None

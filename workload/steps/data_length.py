"""Length of a script's data: the number of samples in one pass over its DataLoaders."""

import random
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils import data

from workload.steps.program import several_processes
from workload.steps.step import Fetch, size_of

# The largest public set of images has 5.85e9 (LAION-5B, 2022). The length of a sampler without end is often the largest
# integer.
MOST_SAMPLES = 10**12


def samples_of_step(loaders: Mapping[int, Any], fetches: Sequence[Fetch], samples_per_step: int | None) -> int | None:
    """Samples in a pass over the data of a step with these `fetches`, in this process; None if unknown.

    If a step uses several DataLoaders, the one whose pass has the fewest steps ends the pass. `loaders`: by number;
    `samples_per_step`: as the user counts them, else None. Runs the script's own `__len__`: not for timed steps.
    """
    in_step, counts, total = Counter[int](), dict[int, int](), 0
    for batch, _ in fetches:
        counts[batch.loader] = batch.count
        size = size_of(loaders.get(batch.loader)) or batch.count
        in_step[batch.loader] += size
        # A DataLoader of whole batches has the batch size 1.
        total += max(size, batch.count)
    lengths = {number: samples_in_pass(loaders.get(number), count) for number, count in counts.items()}
    steps = [length / in_step[number] for number, length in lengths.items() if length]
    return round(min(steps) * (samples_per_step or total)) if steps else None


def samples_in_pass(loader: Any, count: int) -> int | None:
    """Samples of one pass over a DataLoader in this process; None if unknown. `count`: samples in one of its batches.

    Calls only `len`, whose code may be the script's own: an error or an impossible length is an unknown one, and random
    numbers that it draws are put back.
    """
    numpy_random = sys.modules.get("numpy.random")
    states = random.getstate(), torch.get_rng_state(), numpy_random and numpy_random.get_state()
    try:
        samples = _length(loader, count)
    except (Exception, SystemExit):  # noqa: BLE001 - whatever the script's own code may raise
        return None
    finally:
        random.setstate(states[0])
        torch.set_rng_state(states[1])
        if numpy_random:
            numpy_random.set_state(states[2])
    return samples if samples and samples <= MOST_SAMPLES else None


def _length(loader: Any, count: int) -> int | None:
    dataset, batches = loader.dataset, loader.batch_sampler
    is_stream = isinstance(dataset, data.IterableDataset)
    if is_stream:
        # Its own length, because torch warns of further samples once the DataLoader was asked. Nobody knows how several
        # ranks share it.
        return len(dataset) if several_processes() is None else None
    if type(batches) is data.BatchSampler:
        # Without `drop_last`, the last batch is shorter.
        samples = len(batches.sampler)  # type: ignore[arg-type]
        return samples - samples % batches.batch_size if batches.drop_last else samples
    size = count if batches is None else size_of(loader)
    return len(loader) * size if size else None

"""Measures the links between ranks: an all-reduce, and an exchange with the next rank, each of three sizes.

All ranks measure at once, and other work waits. In an exchange each rank sends to the next one and receives from the
one before it. It ends once both links of the rank have moved their bytes, so a link takes as long as the faster of its
two ends.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from torch import distributed

from workload.contract.ranks import Collective, LinkRate
from workload.contract.spec import Device
from workload.measure.clock import clock_for

# Bytes: a message whose time is mostly latency, a bucket of DistributedDataParallel's first gradients, and a large one.
SIZES = (2**16, 2**20, 2**24)
SAMPLES = 10
# The next size is left out if it would take longer than this, as on a link of 100 Mbit/s.
LONGEST_S = 4.0


def measure(device: Device, backend: str) -> list[LinkRate]:
    """Rates of all-reduces and of the slowest link, by the default group of torch.distributed.

    Every rank has to call it. `backend`: name of the group's library; none but NCCL and gloo are measured, each with
    tensors on its own kind of device.
    """
    if ("nccl" if device is Device.CUDA else "gloo") not in backend:
        return []
    found = []
    for kind, begin in ((Collective.ALL_REDUCE, _all_reduce), (Collective.POINT_TO_POINT, _exchange)):
        expected_s = 0.0
        for size in SIZES:
            if expected_s > LONGEST_S:
                break
            tensors = [torch.zeros(size, dtype=torch.uint8, device=device.value) for _ in range(2)]
            times_s = _times_s(device, partial(begin, *tensors))
            pair = None
            if kind is Collective.POINT_TO_POINT:
                links_s = np.minimum(times_s, np.roll(times_s, -1, axis=0))
                slowest = int(np.argmax(np.median(links_s, axis=1)))
                pair, link_s = sorted((slowest, (slowest + 1) % len(times_s))), links_s[slowest]
            else:
                # The rank that begins last waits for no other one.
                link_s = times_s.min(axis=0)
            found.append(_rate(kind, size, link_s, pair))
            expected_s = float(np.median(times_s.max(axis=0))) * SAMPLES * SIZES[1] / SIZES[0]
    return found


def _rate(kind: Collective, size: int, times_s: np.ndarray, pair: Sequence[int] | None) -> LinkRate:
    p5, usual, p95 = (float(rate) for rate in np.quantile(size / times_s, (0.05, 0.5, 0.95)))
    return LinkRate(kind=kind, bytes=size, bytes_per_s=usual, p5=p5, p95=p95, samples=len(times_s), ranks=pair)


def _times_s(device: Device, call: Callable[[], object]) -> np.ndarray:
    """Seconds of each sample, of shape (ranks, samples), in every rank."""
    clock = clock_for(device)
    marks = [clock.mark()]
    # The first two samples open connections and touch the memory.
    for _ in range(2 + SAMPLES):
        call()
        marks.append(clock.mark())
    clock.synchronize()
    own_s = [clock.seconds_between(*pair) for pair in pairwise(marks)][2:]
    own = torch.tensor(own_s, device=device.value)
    every = [torch.empty_like(own) for _ in range(distributed.get_world_size())]
    distributed.all_gather(every, own)
    # Without clocks that tell it, no sample takes no time.
    times_s: np.ndarray = np.maximum(torch.stack(every).cpu().numpy(), 1e-9)
    return times_s


def _all_reduce(tensor: torch.Tensor, _: torch.Tensor) -> None:
    distributed.all_reduce(tensor)


def _exchange(sent: torch.Tensor, received: torch.Tensor) -> None:
    rank, size = distributed.get_rank(), distributed.get_world_size()
    operations = [
        distributed.P2POp(distributed.isend, sent, (rank + 1) % size),
        distributed.P2POp(distributed.irecv, received, (rank - 1) % size),
    ]
    for work in distributed.batch_isend_irecv(operations):
        work.wait()

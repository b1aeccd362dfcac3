"""The group of ranks that this process trains with, and messages by which the ranks agree."""

import os
from dataclasses import dataclass
from datetime import timedelta
from math import ceil

import torch
from torch import distributed

from workload.contract.ranks import backend_of
from workload.contract.spec import Device

# Longest wait for another rank: all wait while rank 0 measures the ceilings of the machine.
LIMIT = timedelta(minutes=30)


@dataclass(frozen=True, kw_only=True)
class Group:
    """Position of this process among the ranks. `device`: the kind of device of all ranks."""

    rank: int
    size: int
    device: Device

    @classmethod
    def join(cls, device: Device) -> "Group":
        """Join the group that torchrun's variables describe; wait for the other ranks."""
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        distributed.init_process_group(backend_of(device), timeout=LIMIT)
        return cls(rank=rank, size=size, device=device)

    def shared(self, text: str) -> str:
        """Send the `text` of rank 0 to all ranks; returns it in each rank."""
        holder = [text]
        distributed.broadcast_object_list(holder, src=0)
        return holder[0]

    def more_steps(self, taken: int, taken_s: float, least_s: float) -> int:
        """Number of steps that are missing until `least_s` seconds have passed, as rank 0 sees it.

        `taken`: steps so far, in `taken_s` seconds. Every rank gets the same number.
        """
        wanted = 0 if taken_s >= least_s else max(1, ceil(taken * (least_s - taken_s) / taken_s))
        shared = torch.tensor(wanted, device=self.device.value)
        distributed.broadcast(shared, src=0)
        return int(shared)

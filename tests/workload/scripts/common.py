"""What the scripts beside this share: data without a download, and a digest of what was learned."""

import hashlib

import torch
from torch import nn
from torch.utils.data import TensorDataset


def images(count: int, size: int, *, channels: int = 1, classes: int = 10) -> TensorDataset:
    return TensorDataset(torch.randn(count, channels, size, size), torch.randint(classes, (count,)))


def digest(*modules: nn.Module) -> str:
    """Of every bit of the parameters and buffers."""
    known = hashlib.sha256()
    for module in modules:
        for tensor in module.state_dict().values():
            known.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return known.hexdigest()[:16]

"""Digest of every bit of the learned parameters, for the loops in this folder."""

import hashlib

import torch


def digest(*modules):
    known = hashlib.sha256()
    for module in modules:
        for tensor in module.state_dict().values():
            known.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    print("digest", known.hexdigest()[:16])

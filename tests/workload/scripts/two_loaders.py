"""Batches of two DataLoaders a step, a new DataLoader every epoch, an optimizer over two models, activation checkpoints."""

import itertools

import torch
from common import digest, images
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

torch.manual_seed(5)
first, second = (nn.Sequential(nn.Flatten(), nn.Linear(36, 20), nn.Tanh(), nn.Linear(20, 36)) for _ in range(2))
optimizer = torch.optim.Adam(itertools.chain(first.parameters(), second.parameters()))
left, right = images(40, 6), images(60, 6)
for _ in range(4):
    for (a, _), (b, _) in zip(DataLoader(left, batch_size=4), DataLoader(right, batch_size=6), strict=True):
        loss = (checkpoint(second, first(a), use_reentrant=False) - a.flatten(1)).abs().mean()
        loss = loss + (checkpoint(first, second(b), use_reentrant=True) - b.flatten(1)).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print("digest", digest(first, second))

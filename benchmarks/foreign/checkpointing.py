"""Gradient checkpointing in both of torch's ways: a layer's forward pass is computed again in the backward pass."""

import torch
from digest import digest
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
layers = nn.ModuleList(nn.Sequential(nn.Linear(40, 40), nn.Dropout(0.1), nn.GELU()) for _ in range(6))
first, head = nn.Linear(40, 40), nn.Linear(40, 5)
optimizer = torch.optim.AdamW([*layers.parameters(), *first.parameters(), *head.parameters()])
for x, y in DataLoader(TensorDataset(torch.randn(240, 40), torch.randint(5, (240,))), batch_size=8):
    h = first(x)
    for number, layer in enumerate(layers):
        h = checkpoint(layer, h, use_reentrant=number % 2 == 0)
    F.cross_entropy(head(h), y).backward()
    optimizer.step()
    optimizer.zero_grad()
digest(layers, first, head)

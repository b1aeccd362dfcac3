"""Train a small head on a large frozen layer: memory limits the step (docs/analysing.md)."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
features = TensorDataset(torch.rand(256, 25_088), torch.randint(10, (256,)))
loader = DataLoader(features, batch_size=4)
frozen = nn.Sequential(nn.Linear(25_088, 4096), nn.ReLU()).requires_grad_(False)
head = nn.Linear(4096, 10)
optimizer = torch.optim.SGD(head.parameters(), lr=0.01)
for inputs, labels in loader:
    optimizer.zero_grad()
    nn.functional.cross_entropy(head(frozen(inputs)), labels).backward()
    optimizer.step()

"""K-fold with folds of nine steps, and a new model and optimizer for each."""

import torch
from common import digest
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x, y = torch.randn(45, 16), torch.randint(3, (45,))
for fold in range(5):
    model = nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 3))
    optimizer = torch.optim.Adam(model.parameters())
    kept = torch.arange(45) % 5 != fold
    for inputs, labels in DataLoader(TensorDataset(x[kept], y[kept]), batch_size=4, shuffle=True):
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    with torch.no_grad():
        print(fold, F.cross_entropy(model(x[~kept]), y[~kept]).item())
    print("digest", digest(model))

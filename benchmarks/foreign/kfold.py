"""K-fold: a model, an optimizer and a loader for each fold of 12 steps, and a score after each."""

import torch
from digest import digest
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset

torch.manual_seed(0)
x, y = torch.randn(240, 20), torch.randint(4, (240,))
models = []
for held_out in torch.randperm(240).chunk(5):
    train = [index for index in range(240) if index not in set(held_out.tolist())]
    loader = DataLoader(TensorDataset(x, y), batch_size=16, sampler=SubsetRandomSampler(train))
    model = nn.Sequential(nn.Linear(20, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for inputs, labels in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        print((model(x[held_out]).argmax(1) == y[held_out]).float().mean().item())
    models.append(model)
digest(*models)

"""Matrix factorisation with a tower: batches of (user, item) pairs of ids, and ratings."""

import torch
from digest import digest
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Factors(nn.Module):
    def __init__(self):
        super().__init__()
        self.users, self.items = nn.Embedding(500, 16), nn.Embedding(300, 16)
        self.tower = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, pairs):
        return self.tower(torch.cat([self.users(pairs[:, 0]), self.items(pairs[:, 1])], 1)).squeeze(1)


torch.manual_seed(0)
pairs = torch.stack([torch.randint(500, (960,)), torch.randint(300, (960,))], 1)
model = Factors()
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
for ids, ratings in DataLoader(TensorDataset(pairs, torch.rand(960) * 5), batch_size=32, shuffle=True):
    loss = nn.functional.mse_loss(model(ids), ratings)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
digest(model)

"""MAML: four tasks a step, each with two inner updates by `torch.autograd.grad` through which the outer loss flows."""

import torch
from digest import digest
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(1, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 1))
outer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(30):
    outer.zero_grad()
    for _ in range(4):
        phase, x = torch.rand(()) * 3.14, torch.rand(20, 1) * 10 - 5
        y = (x + phase).sin()
        weights = dict(model.named_parameters())
        for _ in range(2):
            loss = F.mse_loss(functional_call(model, weights, (x[:10],)), y[:10])
            gradients = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
            weights = {name: w - 0.01 * g for (name, w), g in zip(weights.items(), gradients)}
        (F.mse_loss(functional_call(model, weights, (x[10:],)), y[10:]) / 4).backward()
    outer.step()
digest(model)

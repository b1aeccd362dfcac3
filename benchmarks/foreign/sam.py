"""Sharpness-aware minimization: two forward and backward passes and two halves of an update a step."""

import torch
from digest import digest
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class SAM(torch.optim.Optimizer):
    def __init__(self, parameters, base, rho=0.05, **given):
        super().__init__(parameters, {"rho": rho, **given})
        self.base = base(self.param_groups, **given)

    @torch.no_grad()
    def first_step(self):
        norm = torch.stack([p.grad.norm() for group in self.param_groups for p in group["params"]]).norm()
        for p in self.param_groups[0]["params"]:
            self.state[p]["old"] = p.clone()
            p.add_(p.grad * self.param_groups[0]["rho"] / (norm + 1e-12))
        self.zero_grad()

    @torch.no_grad()
    def second_step(self):
        for p in self.param_groups[0]["params"]:
            p.copy_(self.state[p]["old"])
        self.base.step()
        self.zero_grad()


torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(1152, 10))
optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
for x, y in DataLoader(TensorDataset(torch.randn(192, 3, 14, 14), torch.randint(10, (192,))), batch_size=8):
    F.cross_entropy(model(x), y).backward()
    optimizer.first_step()
    F.cross_entropy(model(x), y).backward()
    optimizer.second_step()
digest(model)

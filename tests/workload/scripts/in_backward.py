"""In the form of PyTorch's tutorial on optimizer steps within the backward pass: an optimizer a parameter."""

import torch
from common import digest, images
from torch import nn
from torch.utils.data import DataLoader

torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
optimizers = {p: torch.optim.Adam([p], foreach=False) for p in model.parameters()}


def optimizer_hook(parameter):
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()


for p in model.parameters():
    p.register_post_accumulate_grad_hook(optimizer_hook)
for x, y in DataLoader(images(4 * 40, 8), batch_size=4):
    nn.functional.cross_entropy(model(x), y).backward()
print("digest", digest(model))

"""An evaluation in each step, on eight times as many images; `sys.argv[1]` says where it turns gradients off."""

import sys
from contextlib import nullcontext

import torch
from common import digest, images
from torch import nn
from torch.utils.data import DataLoader

torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
train, held_out = DataLoader(images(8 * 15, 8), batch_size=8, shuffle=True), DataLoader(images(64, 8), batch_size=32)
around_all, around_batch = (torch.no_grad if sys.argv[1] == where else nullcontext for where in ("block", "batch"))
for epoch in range(3):
    for x, y in train:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        right = 0
        with around_all():
            for images_, labels in held_out:
                with around_batch():
                    right += int((model(images_).argmax(1) == labels).sum())
    print(epoch, loss.item(), right)
print("digest", digest(model))

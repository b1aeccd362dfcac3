"""An evaluation in each step, on eight times as many images: how it turns gradients off is the script's argument."""

import sys

import torch
from common import digest, images
from torch import nn
from torch.utils.data import DataLoader

torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
train, held_out = DataLoader(images(8 * 15, 8), batch_size=8, shuffle=True), DataLoader(images(64, 8), batch_size=32)


def right(x: torch.Tensor, y: torch.Tensor) -> int:
    return int((model(x).argmax(1) == y).sum())


def evaluate() -> int:
    if sys.argv[1] == "block":
        with torch.no_grad():
            return sum(right(x, y) for x, y in held_out)
    if sys.argv[1] == "gradients":
        return sum(right(x, y) for x, y in held_out)
    total = 0
    for x, y in held_out:
        with torch.no_grad():
            total += right(x, y)
    return total


for epoch in range(3):
    for x, y in train:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        correct = evaluate()
    print(epoch, loss.item(), correct)
print("digest", digest(model))

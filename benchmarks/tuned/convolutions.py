"""Planted: convolutions, pooling and normalization of images in NCHW order; `channels_last` suits them better."""

from itertools import pairwise

import torch
from torch import nn


def main() -> None:
    torch.manual_seed(0)
    channels = (3, 32, 64, 64)
    blocks = [
        part
        for a, b in pairwise(channels)
        for part in (nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    ]
    model = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images, labels = torch.randn(16, 3, 96, 96), torch.arange(16) % 10
    for _ in range(5000):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


if __name__ == "__main__":
    main()

"""Planted: more threads than CPUs, on small products; `torch.set_num_threads(`."""

import os

import torch


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(2 * (os.cpu_count() or 1))
    model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    samples = torch.randn(128, 256)
    for _ in range(20000):
        optimizer.zero_grad()
        model(samples).square().mean().backward()
        optimizer.step()


if __name__ == "__main__":
    main()

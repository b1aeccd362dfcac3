"""Planted: temporaries of 64 MB are freed and allocated again in each step; `MALLOC_MMAP_MAX_=0` keeps the memory."""

import torch


def main() -> None:
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.ones(1024))
    optimizer = torch.optim.SGD([weight], lr=1e-3)
    samples = torch.randn(16384, 1024)
    for _ in range(4000):
        optimizer.zero_grad()
        (samples * weight).square().mean().backward()
        optimizer.step()


if __name__ == "__main__":
    main()

"""Planted: Adam steps through 400 parameters one by one; `optimizer(foreach=True)` or `optimizer(fused=True)`."""

import torch


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(200)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, foreach=False)
    samples = torch.randn(8, 16)
    for _ in range(4000):
        optimizer.zero_grad()
        model(samples).square().mean().backward()
        optimizer.step()


if __name__ == "__main__":
    main()

"""Nothing to gain: products at the ceiling."""

import torch


def main() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    samples = torch.randn(1024, 1024)
    for _ in range(2000):
        optimizer.zero_grad()
        model(samples).square().mean().backward()
        optimizer.step()


if __name__ == "__main__":
    main()

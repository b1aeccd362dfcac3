"""Nothing to gain: each step waits 10 ms for another program, as for a logging service."""

import time

import torch


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    samples = torch.randn(32, 64)
    for _ in range(10000):
        optimizer.zero_grad()
        loss = model(samples).square().mean()
        loss.backward()
        time.sleep(0.01)
        optimizer.step()


if __name__ == "__main__":
    main()

"""Nothing to gain from outside: the model and its data have double precision, which no change of the table lowers."""

import torch


def main() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(4))).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    samples = torch.randn(256, 512, dtype=torch.float64)
    for _ in range(20000):
        optimizer.zero_grad()
        model(samples).square().mean().backward()
        optimizer.step()


if __name__ == "__main__":
    main()

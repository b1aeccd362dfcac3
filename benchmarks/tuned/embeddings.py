"""Planted: Adam steps through 300 small tables one by one; `optimizer(foreach=True)`, `optimizer(fused=True)`."""

import torch
from torch import nn


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    tables = nn.ModuleList(nn.Embedding(50, 8) for _ in range(300))
    head = nn.Linear(300 * 8, 1)
    optimizer = torch.optim.Adam([*tables.parameters(), *head.parameters()], lr=1e-3, foreach=False)
    ids = torch.randint(50, (300, 16))
    for _ in range(10000):
        optimizer.zero_grad()
        features = torch.cat([table(column) for table, column in zip(tables, ids, strict=True)], dim=1)
        head(features).square().mean().backward()
        optimizer.step()


if __name__ == "__main__":
    main()

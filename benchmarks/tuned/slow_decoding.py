"""Planted: images are decoded for 5 ms each, without workers; `DataLoader(num_workers=`."""

import time

import torch
from torch.utils.data import DataLoader, Dataset


class Decoded(Dataset):  # type: ignore[type-arg] # as users write it
    """A data set whose samples take long to decode."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(0.005)
        return torch.full((256,), index / 4096), index % 10


def main() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for samples, labels in DataLoader(Decoded(), batch_size=16, shuffle=True):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(samples), labels).backward()
        optimizer.step()


if __name__ == "__main__":
    main()

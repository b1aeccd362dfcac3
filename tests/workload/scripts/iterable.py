"""An iterable data set, two persistent workers, a U-Net with validation and a checkpoint in between."""

import tempfile

import torch
from common import digest
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Stream(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        generator = torch.Generator().manual_seed(info.id if info else 9)
        for _ in range(20):
            image = torch.randn(3, 16, 16, generator=generator)
            yield {"image": image, "mask": (image.sum(0) > 0).long()}


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.InstanceNorm2d(8, affine=True), nn.LeakyReLU())
        self.middle = nn.Conv2d(8, 8, 3, padding=1)
        self.up = nn.ConvTranspose2d(8, 8, 2, stride=2)
        self.last = nn.Conv2d(16, 2, 1)

    def forward(self, x):
        skip = self.down(x)
        low = torch.relu(self.middle(nn.functional.max_pool2d(skip, 2)))
        return self.last(torch.cat([self.up(low), skip], dim=1))


def main():
    torch.manual_seed(0)
    model = UNet()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3, foreach=True)
    loader = DataLoader(Stream(), batch_size=5, num_workers=2, persistent_workers=True)
    held_out = DataLoader(Stream(), batch_size=10)
    with tempfile.TemporaryFile() as file:
        for _ in range(5):
            for batch in loader:
                loss = nn.functional.cross_entropy(model(batch["image"]), batch["mask"])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            with torch.inference_mode():
                score = sum((model(batch["image"]).argmax(1) == batch["mask"]).sum().item() for batch in held_out)
            torch.save(model.state_dict(), file)
            print(loss.item(), score)
    print("digest", digest(model))


if __name__ == "__main__":
    main()

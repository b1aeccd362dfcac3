"""In the form of pytorch/examples, super_resolution/main.py: a dataset of its own, pixel shuffle, PSNR after each epoch."""

from math import log10

import torch
from common import digest
from torch import nn, optim
from torch.nn import init
from torch.utils.data import DataLoader, Dataset


class Pairs(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        image = torch.randn(1, 24, 24, generator=torch.Generator().manual_seed(index))
        return nn.functional.avg_pool2d(image, 2), image


class Net(nn.Module):
    def __init__(self, upscale_factor):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 5, 1, 2)
        self.conv2 = nn.Conv2d(16, 8, 3, 1, 1)
        self.conv3 = nn.Conv2d(8, upscale_factor**2, 3, 1, 1)
        self.pixel_shuffle = nn.PixelShuffle(upscale_factor)
        init.orthogonal_(self.conv1.weight, init.calculate_gain("relu"))

    def forward(self, x):
        return self.pixel_shuffle(self.conv3(torch.relu(self.conv2(torch.relu(self.conv1(x))))))


def main():
    torch.manual_seed(123)
    training, testing = DataLoader(Pairs(), batch_size=4, shuffle=True), DataLoader(Pairs(), batch_size=12)
    model, criterion = Net(2), nn.MSELoss()
    optimizer = optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(1, 6):
        epoch_loss = 0.0
        for batch in training:
            optimizer.zero_grad()
            loss = criterion(model(batch[0]), batch[1])
            epoch_loss += loss.item()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            psnr = sum(10 * log10(1 / criterion(model(batch[0]), batch[1]).item()) for batch in testing)
        print(f"===> Epoch {epoch} {epoch_loss:.4f} {psnr:.4f}")
    print("digest", digest(model))


if __name__ == "__main__":
    main()

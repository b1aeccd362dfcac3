"""Learn to tell circles, squares, triangles and crosses apart: a training script as most people write it.

It downloads nothing, knows nothing of rooflaunch, and reaches 99 % of the test images in half a minute on two cores.

python -m rooflaunch script -- examples/shapes.py --lr 0.002
"""

import argparse

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

SHAPES = ("circle", "square", "triangle", "cross")
SIZE = 32
ROWS, COLUMNS = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")


class DrawnShapes(Dataset[tuple[Tensor, int]]):
    """Noisy grey images of one shape each, at a random place and of a random size, drawn when they are read."""

    def __init__(self, images: int, seed: int) -> None:
        self.images, self.seed = images, seed

    def __len__(self) -> int:
        return self.images

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        random = torch.Generator().manual_seed(self.seed + index)
        label = index % len(SHAPES)
        radius, x, y = (
            torch.rand(3, generator=random) * torch.tensor([6, 12, 12]) + torch.tensor([5, 10, 10])
        ).tolist()
        across, down = (COLUMNS - x).abs(), (ROWS - y).abs()
        inside = {
            "circle": across**2 + down**2 < radius**2,
            "square": torch.maximum(across, down) < 0.85 * radius,
            "triangle": (across < (ROWS - y + radius) / 2) & (ROWS - y < radius),
            "cross": (torch.minimum(across, down) < 0.3 * radius) & (torch.maximum(across, down) < radius),
        }[SHAPES[label]]
        return (inside + 0.4 * torch.randn(SIZE, SIZE, generator=random)).unsqueeze(0), label


def make_model(channels: int) -> nn.Module:
    """Three convolutions, each followed by pooling, and a linear layer."""
    layers: list[nn.Module] = []
    for ins, outs in ((1, channels), (channels, 2 * channels), (2 * channels, 4 * channels)):
        layers += [nn.Conv2d(ins, outs, 3, padding=1), nn.BatchNorm2d(outs), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(4 * channels * (SIZE // 8) ** 2, len(SHAPES)))


def accuracy(model: nn.Module, loader: DataLoader[tuple[Tensor, int]], device: str) -> float:
    """Share of the images that the model names correctly."""
    model.eval()
    with torch.no_grad():
        right = [(model(images.to(device)).argmax(1) == labels.to(device)).float() for images, labels in loader]
    return torch.cat(right).mean().item()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.001)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--images", type=int, default=4096)
    parser.add_argument("--channels", type=int, default=16, help="channels of the first layer")
    parser.add_argument("--workers", type=int, default=0, help="processes that draw images")
    given = parser.parse_args()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    training, test = DrawnShapes(given.images, seed=0), DrawnShapes(512, seed=10**6)
    loader = DataLoader(training, given.batch_size, shuffle=True, drop_last=True, num_workers=given.workers)
    model = make_model(given.channels).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=given.lr)
    for epoch in range(1, given.epochs + 1):
        model.train()
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: accuracy {accuracy(model, DataLoader(test, 256), device):.1%}")


if __name__ == "__main__":
    main()

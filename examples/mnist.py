"""A training script as most people write it: it knows nothing of rooflaunch.

python -m rooflaunch script -- examples/mnist.py --lr 0.5
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=1.0)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=4)
    given = parser.parse_args()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    # Random pixels instead of a download; the work is the same.
    images = TensorDataset(torch.randn(1024, 1, 28, 28), torch.randint(10, (1024,)))
    train_loader = DataLoader(images, batch_size=given.batch_size, shuffle=True, drop_last=True)
    test_loader = DataLoader(images, batch_size=256)
    model = nn.Sequential(
        *(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, 10)),
    ).to(device)
    optimizer = torch.optim.Adadelta(model.parameters(), lr=given.lr)
    for epoch in range(given.epochs):
        model.train()
        for pixels, labels in train_loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(pixels.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            hits = sum(
                int((model(pixels.to(device)).argmax(1) == labels.to(device)).sum()) for pixels, labels in test_loader
            )
        print(f"epoch {epoch}: loss {loss.item():.3f}, {hits} of {len(images)} right")


if __name__ == "__main__":
    main()

"""In the form of pytorch/examples, mnist/main.py: Adadelta, a scheduler; tests and saves the model after every epoch."""

import torch
from common import digest, images
from torch import nn, optim
from torch.nn import functional as F
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, 1)
        self.conv2 = nn.Conv2d(8, 16, 3, 1, groups=2)
        self.dropout1 = nn.Dropout(0.25)
        self.fc1 = nn.Linear(16 * 12 * 12, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = self.dropout1(F.max_pool2d(x, 2))
        return F.log_softmax(self.fc2(F.relu(self.fc1(torch.flatten(x, 1)))), dim=1)


def train(model, loader, optimizer, epoch):
    model.train()
    for batch_idx, (data, target) in enumerate(loader):
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        if batch_idx % 5 == 0:
            print(f"Train Epoch: {epoch} [{batch_idx * len(data)}/{len(loader.dataset)}] Loss: {loss.item():.6f}")


def test(model, loader):
    model.eval()
    with torch.no_grad():
        correct = sum(model(data).argmax(dim=1).eq(target).sum().item() for data, target in loader)
    print(f"Test set: Accuracy: {correct}")


if __name__ == "__main__":
    torch.manual_seed(1)
    loader = DataLoader(images(8 * 16, 28), batch_size=16, shuffle=True, num_workers=1)
    test_loader = DataLoader(images(40, 28), batch_size=20)
    model = Net()
    optimizer = optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
    for epoch in range(3):
        train(model, loader, optimizer, epoch)
        test(model, test_loader)
        scheduler.step()
        torch.save(model.state_dict(), "mnist_cnn.pt")
    print("digest", digest(model))

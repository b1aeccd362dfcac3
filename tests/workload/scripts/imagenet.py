"""In the form of pytorch/examples, imagenet/main.py: meters, accuracy, SGD, validation and a checkpoint every epoch."""

import shutil
import tempfile
import time
from pathlib import Path

import torch
from common import digest, images
from torch import nn
from torch.utils.data import DataLoader


class Block(nn.Module):
    def __init__(self, planes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(planes, planes, 3, padding=1, bias=False),
            nn.BatchNorm2d(planes),
            nn.ReLU(inplace=True),
            nn.Conv2d(planes, planes, 3, padding=1, groups=2, bias=False),
            nn.BatchNorm2d(planes),
        )

    def forward(self, x):
        return torch.relu(self.body(x) + x)


class AverageMeter:
    def __init__(self):
        self.sum = self.count = 0.0

    def update(self, value, n=1):
        self.sum += value * n
        self.count += n


def accuracy(output, target, topk):
    with torch.no_grad():
        _, predicted = output.topk(max(topk), 1, True, True)
        correct = predicted.t().eq(target.view(1, -1).expand_as(predicted.t()))
        return [correct[:k].reshape(-1).float().sum(0, keepdim=True).mul_(100.0 / target.size(0)) for k in topk]


def train(loader, model, criterion, optimizer):
    times, losses, top1 = AverageMeter(), AverageMeter(), AverageMeter()
    model.train()
    end = time.time()
    for i, (batch, target) in enumerate(loader):
        output = model(batch)
        loss = criterion(output, target)
        acc1, _ = accuracy(output, target, (1, 5))
        losses.update(loss.item(), batch.size(0))
        top1.update(acc1[0].item(), batch.size(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        times.update(time.time() - end)
        end = time.time()
        if i % 4 == 0:
            print(f"[{i}/{len(loader)}] Loss {losses.sum / losses.count:.4e} Acc@1 {top1.sum / top1.count:6.2f}")


def validate(loader, model, criterion):
    model.eval()
    top1 = AverageMeter()
    with torch.no_grad():
        for batch, target in loader:
            output = model(batch)
            criterion(output, target)
            top1.update(accuracy(output, target, (1, 5))[0][0].item(), batch.size(0))
    return top1.sum / top1.count


def main():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 7, stride=2, padding=3),
        nn.MaxPool2d(2),
        Block(8),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 10),
    )
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=30, gamma=0.1)
    loader = DataLoader(images(16 * 6, 32, channels=3), batch_size=16, shuffle=True, num_workers=1, drop_last=True)
    held_out = DataLoader(images(32, 32, channels=3), batch_size=16)
    with tempfile.TemporaryDirectory() as folder:
        for epoch in range(4):
            train(loader, model, criterion, optimizer)
            acc1 = validate(held_out, model, criterion)
            scheduler.step()
            torch.save({"epoch": epoch, "state_dict": model.state_dict()}, Path(folder) / "checkpoint.pth.tar")
            shutil.copyfile(Path(folder) / "checkpoint.pth.tar", Path(folder) / "model_best.pth.tar")
            print(f" * Acc@1 {acc1:.3f}")
    print("digest", digest(model))


if __name__ == "__main__":
    main()

"""As references/classification/train.py of torchvision: images of a folder, SGD, label smoothing, a decayed rate."""

import argparse

import torch
import torchvision
from torchvision.transforms import v2

parser = argparse.ArgumentParser()
parser.add_argument("--model")
parser.add_argument("--data-path")
parser.add_argument("--batch-size", type=int)
parser.add_argument("--epochs", type=int)
args = parser.parse_args()
steps = v2.Compose([v2.RandomResizedCrop(64), v2.RandomHorizontalFlip(), v2.PILToTensor(), v2.ToDtype(torch.float32)])
data = torchvision.datasets.ImageFolder(f"{args.data_path}/train", steps)
loader = torch.utils.data.DataLoader(data, batch_size=args.batch_size, shuffle=True, num_workers=1)
model = torchvision.models.get_model(args.model, num_classes=len(data.classes))
criterion = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.epochs)
for _ in range(args.epochs):
    for image, target in loader:
        loss = criterion(model(image), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    schedule.step()

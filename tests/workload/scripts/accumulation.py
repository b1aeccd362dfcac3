"""Gradient accumulation over four batches, with two left over at the end of an epoch of `sys.argv[1]` batches, or 22."""

import sys

import torch
from common import digest, images
from torch import nn
from torch.utils.data import DataLoader

EVERY = 4
torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=100)
loader = DataLoader(images(8 * int((sys.argv[1:] or ["22"])[0]), 8), batch_size=8, shuffle=True)
for epoch in range(14):
    for i, (x, y) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(x), y) / EVERY
        loss.backward()
        if (i + 1) % EVERY == 0 or i + 1 == len(loader):
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    print(epoch, loss.item())
print("digest", digest(model))

"""SimCLR with a momentum encoder and a queue, as in MoCo: two views, keys without gradients that the loss uses."""

import copy

import torch
from digest import digest
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


class Views(Dataset):
    def __len__(self):
        return 192

    def __getitem__(self, index):
        image = torch.rand(3, 16, 16, generator=torch.Generator().manual_seed(index))
        return [image, image.flip(2)], index


torch.manual_seed(0)
encoder = nn.Sequential(nn.Conv2d(3, 16, 3, 2), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(784, 32))
momentum, queue = copy.deepcopy(encoder), F.normalize(torch.randn(32, 64), dim=0)
optimizer = torch.optim.SGD(encoder.parameters(), lr=0.03, momentum=0.9, weight_decay=1e-4)
for (first, second), _ in DataLoader(Views(), batch_size=8, shuffle=True):
    q = F.normalize(encoder(first), dim=1)
    with torch.no_grad():
        for slow, fast in zip(momentum.parameters(), encoder.parameters()):
            slow.mul_(0.99).add_(fast, alpha=0.01)
        k = F.normalize(momentum(second), dim=1)
    logits = torch.cat([(q * k).sum(1, keepdim=True), q @ queue.clone()], 1) / 0.2
    loss = F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    queue = torch.cat([k.T, queue[:, : 64 - len(k)]], 1)
digest(encoder, momentum)

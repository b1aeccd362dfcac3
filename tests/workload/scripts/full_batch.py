"""A full-batch loop with a teacher whose outputs the loss uses, and ten evaluations after each step."""

import torch
from common import digest
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
x, y = torch.randn(40, 16), torch.randint(3, (40,))
model, teacher = (nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 3)) for _ in range(2))
optimizer = torch.optim.SGD(model.parameters(), 0.1)


@torch.no_grad()
def accuracy():
    return (model(x).argmax(1) == y).float().mean().item()


for step in range(40):
    optimizer.zero_grad()
    with torch.inference_mode():
        probability = teacher(x).softmax(1)
    loss = F.cross_entropy(model(x), y) + F.kl_div(model(x).log_softmax(1), probability.clone())
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for student, slow in zip(model.parameters(), teacher.parameters(), strict=True):
            slow.lerp_(student, 0.01)
    best = max(accuracy() for _ in range(10))
print("digest", digest(model, teacher))

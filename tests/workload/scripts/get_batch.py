"""In the form of nanoGPT: batches of a memory-mapped file, made by hand while a step is computed, and accumulation."""

import random

import numpy as np
import torch
from common import digest
from torch import nn
from torch.nn import functional as F

VOCABULARY, LENGTH, WIDTH = 40, 16, 24


def get_batch():
    data = np.memmap("train.bin", dtype=np.uint16, mode="r")
    starts = torch.randint(len(data) - LENGTH, (6,))
    x = torch.stack([torch.from_numpy(data[i : i + LENGTH].astype(np.int64)) for i in starts])
    y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + LENGTH].astype(np.int64)) for i in starts])
    return x.to("cpu"), y.to("cpu")


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.places, self.ids = nn.Embedding(LENGTH, WIDTH), nn.Embedding(VOCABULARY, WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids, targets):
        logits = self.head(F.dropout(self.places(torch.arange(ids.shape[1])) + self.ids(ids), 0.1))
        return F.cross_entropy(logits.view(-1, VOCABULARY), targets.view(-1), ignore_index=-1)


torch.manual_seed(1337)
np.random.seed(1)
random.seed(1)
np.random.randint(VOCABULARY, size=4000).astype(np.uint16).tofile("train.bin")
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
x, y = get_batch()
for iteration in range(30):
    if iteration % 10 == 0:
        with torch.no_grad():
            print(iteration, model(*get_batch()).item())
    for _ in range(5):
        loss = model(x, y) / 5
        x, y = get_batch()
        loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
print("digest", digest(model), torch.rand(1).item(), np.random.rand(), random.random())

"""In the form of pytorch/examples, distributed/ddp-tutorial-series/multigpu_torchrun.py, on two ranks of a CPU.

Rank 0 saves a snapshot each epoch, and all ranks add up what they evaluated, as pytorch/examples' imagenet/main.py does.
"""

import os

import torch
from digest import digest
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Trainer:
    def __init__(self, model, data, held_out, optimizer):
        self.rank = int(os.environ["RANK"])
        self.data, self.held_out, self.optimizer = data, held_out, optimizer
        self.model = DistributedDataParallel(model)

    def run_batch(self, x, y):
        self.optimizer.zero_grad()
        nn.functional.cross_entropy(self.model(x), y).backward()
        self.optimizer.step()

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        right = sum((self.model(x).argmax(1) == y).sum() for x, y in self.held_out)
        distributed.all_reduce(right)
        self.model.train()
        return right.item()

    def train(self, epochs):
        for epoch in range(epochs):
            self.data.sampler.set_epoch(epoch)
            for x, y in self.data:
                self.run_batch(x, y)
            if self.rank == 0:
                torch.save({"model": self.model.module.state_dict(), "epoch": epoch}, "snapshot.pt")
            right = self.evaluate()
        return right


distributed.init_process_group("gloo")
torch.manual_seed(0)
images, labels = torch.randn(256, 3, 12, 12), torch.randint(5, (256,))
parts = [TensorDataset(images[at], labels[at]) for at in (slice(192), slice(192, 256))]
loaders = [DataLoader(part, batch_size=8, sampler=DistributedSampler(part)) for part in parts]
net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(800, 5))
trainer = Trainer(net, *loaders, torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9))
print(trainer.train(3))
digest(net)
distributed.destroy_process_group()

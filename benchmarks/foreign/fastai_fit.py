"""fastai: `fine_tune`, which trains the head alone for an epoch and then everything."""

import fastai.callback.progress
import fastai.callback.schedule
import torch
from digest import digest
from fastai.basics import CrossEntropyLossFlat, DataLoaders, Learner, params
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
sets = [TensorDataset(torch.randn(count, 3, 16, 16), torch.randint(4, (count,))) for count in (96, 24)]
loaders = DataLoaders(*(DataLoader(known, batch_size=8) for known in sets), device="cpu")
body = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
model = nn.Sequential(body, nn.Linear(16, 4))
learner = Learner(loaders, model, loss_func=CrossEntropyLossFlat(), splitter=lambda m: [params(m[0]), params(m[1])])
with learner.no_bar(), learner.no_logging():
    learner.fine_tune(3, freeze_epochs=1)
digest(model)

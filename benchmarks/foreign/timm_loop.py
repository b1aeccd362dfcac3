"""timm: a model, an optimizer, mixup and an average of the weights."""

import timm
import torch
from digest import digest
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.utils import ModelEmaV2
from torch.utils.data import DataLoader, TensorDataset
import numpy as np

np.random.seed(0)
torch.manual_seed(0)
model = timm.create_model("resnet10t", num_classes=10)
optimizer = create_optimizer_v2(model, opt="lamb", lr=1e-3, weight_decay=0.01)
mixup, ema = Mixup(mixup_alpha=0.2, num_classes=10), ModelEmaV2(model)
loader = DataLoader(TensorDataset(torch.randn(80, 3, 64, 64), torch.randint(10, (80,))), batch_size=4)
for x, y in loader:
    x, y = mixup(x, y)
    loss = SoftTargetCrossEntropy()(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    ema.update(model)
digest(model)

"""`AveragedModel` of torch, whose weights are evaluated on a test set every eight steps."""

import torch
from digest import digest
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(24, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 6))
average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99), use_buffers=True)
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
test_x, test_y = torch.randn(400, 24), torch.randint(6, (400,))
loader = DataLoader(TensorDataset(torch.randn(480, 24), torch.randint(6, (480,))), batch_size=16, shuffle=True)
for step, (x, y) in enumerate(loader):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    average.update_parameters(model)
    if step % 8 == 7:
        average.eval()
        with torch.inference_mode():
            print(step, (average(test_x).argmax(1) == test_y).float().mean().item())
        average.train()
digest(model, average)

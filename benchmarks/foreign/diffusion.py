"""A denoising diffusion loop: noise of a random strength, a small U-Net, an average of the weights, samples at the end."""

import torch
from digest import digest
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.middle = nn.Conv2d(1, 16, 3, 2, 1), nn.Conv2d(16, 16, 3, 1, 1)
        self.up, self.out, self.time = nn.ConvTranspose2d(16, 16, 2, 2), nn.Conv2d(17, 1, 3, 1, 1), nn.Linear(1, 16)

    def forward(self, x, t):
        h = F.silu(self.down(x)) + self.time(t[:, None])[:, :, None, None]
        return self.out(torch.cat([self.up(F.silu(self.middle(h))), x], 1))


torch.manual_seed(0)
model, average = UNet(), UNet()
average.load_state_dict(model.state_dict())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
alphas = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 100), 0)
for (images,) in DataLoader(TensorDataset(torch.randn(192, 1, 16, 16)), batch_size=8, shuffle=True):
    t, noise = torch.randint(100, (len(images),)), torch.randn_like(images)
    a = alphas[t][:, None, None, None]
    loss = F.mse_loss(model(a.sqrt() * images + (1 - a).sqrt() * noise, t / 100), noise)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    with torch.no_grad():
        for slow, fast in zip(average.parameters(), model.parameters()):
            slow.lerp_(fast, 0.01)
digest(model, average)

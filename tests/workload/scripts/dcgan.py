"""In the form of pytorch/examples, dcgan/main.py: two Adams, three backward passes a batch."""

import torch
from common import digest, images
from torch import nn, optim
from torch.utils.data import DataLoader

nz, ngf, ndf = 16, 8, 8
torch.manual_seed(3)
loader = DataLoader(images(16 * 10, 16, channels=3), batch_size=16, shuffle=True)
netG = nn.Sequential(
    nn.ConvTranspose2d(nz, ngf * 2, 4, 1, 0, bias=False),
    nn.BatchNorm2d(ngf * 2),
    nn.ReLU(True),
    nn.ConvTranspose2d(ngf * 2, ngf, 4, 2, 1, bias=False),
    nn.BatchNorm2d(ngf),
    nn.ReLU(True),
    nn.ConvTranspose2d(ngf, 3, 4, 2, 1, bias=False),
    nn.Tanh(),
)
netD = nn.Sequential(
    nn.Conv2d(3, ndf, 4, 2, 1, bias=False),
    nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(ndf, ndf * 2, 4, 2, 1, bias=False),
    nn.BatchNorm2d(ndf * 2),
    nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(ndf * 2, 1, 4, 1, 0, bias=False),
    nn.Sigmoid(),
    nn.Flatten(0),
)
criterion = nn.BCELoss()
fixed_noise = torch.randn(16, nz, 1, 1)
optimizerD = optim.Adam(netD.parameters(), lr=2e-4, betas=(0.5, 0.999))
optimizerG = optim.Adam(netG.parameters(), lr=2e-4, betas=(0.5, 0.999))
for epoch in range(3):
    for i, (real, _) in enumerate(loader):
        netD.zero_grad()
        label = torch.full((real.size(0),), 1.0)
        criterion(netD(real), label).backward()
        fake = netG(torch.randn(real.size(0), nz, 1, 1))
        label.fill_(0.0)
        criterion(netD(fake.detach()), label).backward()
        optimizerD.step()
        netG.zero_grad()
        label.fill_(1.0)
        errG = criterion(netD(fake), label)
        errG.backward()
        optimizerG.step()
        if i % 5 == 0:
            with torch.no_grad():
                sample = netG(fixed_noise)
            print(f"[{epoch}][{i}] Loss_G: {errG.item():.4f} {sample.mean():.4f}")
print("digest", digest(netG, netD))

"""In the form of the Wasserstein GAN's own code: the critic steps five times, then the generator once."""

import torch
from common import digest, images
from torch import nn
from torch.utils.data import DataLoader

torch.manual_seed(2)
critic = nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 1))
generator = nn.Sequential(nn.Linear(10, 24), nn.ReLU(), nn.Linear(24, 64))
optimizerD = torch.optim.RMSprop(critic.parameters(), lr=5e-5)
optimizerG = torch.optim.RMSprop(generator.parameters(), lr=5e-5)
loader = DataLoader(images(8 * 50, 8), batch_size=8, shuffle=True)
for epoch in range(4):
    data = iter(loader)
    for _ in range(10):
        for p in critic.parameters():
            p.requires_grad = True
        for _ in range(5):
            for p in critic.parameters():
                p.data.clamp_(-0.01, 0.01)
            real, _ = next(data)
            critic.zero_grad()
            one = torch.ones(())
            critic(real).mean().backward(one)
            with torch.no_grad():
                fake = generator(torch.randn(real.size(0), 10))
            critic(fake).mean().backward(-one)
            optimizerD.step()
        for p in critic.parameters():
            p.requires_grad = False
        generator.zero_grad()
        critic(generator(torch.randn(8, 10))).mean().backward()
        optimizerG.step()
    print(epoch)
print("digest", digest(critic, generator))

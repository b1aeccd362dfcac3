"""In the form of pytorch/examples, reinforcement_learning/actor_critic.py: episodes of a chance length, no DataLoader."""

import random

import torch
from common import digest
from torch import nn
from torch.distributions import Categorical

random.seed(7)
torch.manual_seed(7)
body, actor, critic = nn.Linear(4, 128), nn.Linear(128, 2), nn.Linear(128, 1)
model = nn.ModuleList([body, actor, critic])
optimizer = torch.optim.Adam(model.parameters(), lr=3e-2)
for episode in range(40):
    saved, rewards = [], []
    state = torch.randn(4)
    for _ in range(random.randint(3, 6)):
        x = torch.relu(body(state))
        policy = Categorical(torch.softmax(actor(x), -1))
        action = policy.sample()
        saved.append((policy.log_prob(action), critic(x)))
        rewards.append(float(action))
        state = state.roll(1) + 0.1 * float(action)
    losses = [
        -p * (r - v.item()) + nn.functional.smooth_l1_loss(v, torch.tensor([r]))
        for (p, v), r in zip(saved, rewards, strict=True)
    ]
    optimizer.zero_grad()
    torch.stack(losses).sum().backward()
    optimizer.step()
print("digest", digest(model))

"""In the form of pytorch/examples, vae/main.py."""

import torch
from common import digest, images
from torch import nn, optim
from torch.nn import functional as F
from torch.utils.data import DataLoader


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(196, 40)
        self.fc21 = nn.Linear(40, 5)
        self.fc22 = nn.Linear(40, 5)
        self.fc3 = nn.Linear(5, 40)
        self.fc4 = nn.Linear(40, 196)

    def forward(self, x):
        h1 = F.relu(self.fc1(x.view(-1, 196)))
        mu, logvar = self.fc21(h1), self.fc22(h1)
        std = torch.exp(0.5 * logvar)
        z = mu + torch.randn_like(std) * std
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z)))), mu, logvar


def loss_function(recon_x, x, mu, logvar):
    BCE = F.binary_cross_entropy(recon_x, x.view(-1, 196), reduction="sum")
    KLD = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return BCE + KLD


torch.manual_seed(1)
data = images(128, 14)
data.tensors[0].sigmoid_()
train_loader = DataLoader(data, batch_size=16, shuffle=True)
test_loader = DataLoader(data, batch_size=64, shuffle=False)
model = VAE()
optimizer = optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(1, 5):
    model.train()
    train_loss = 0
    for _batch_idx, (batch, _) in enumerate(train_loader):
        optimizer.zero_grad()
        loss = loss_function(*((out := model(batch))[0], batch, *out[1:]))
        loss.backward()
        train_loss += loss.item()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        test_loss = sum(loss_function((out := model(batch))[0], batch, *out[1:]).item() for batch, _ in test_loader)
    print(f"====> Epoch: {epoch} {train_loss / len(data):.4f} Test: {test_loss / len(data):.4f}")
print("digest", digest(model))

"""In the form of pytorch/examples, gcn/main.py: the whole graph in every step, no DataLoader, evaluation as it goes."""

import torch
from common import digest
from torch import nn
from torch.nn import functional as F


class GraphConv(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.kernel = nn.Parameter(torch.empty(inputs, outputs))
        nn.init.xavier_normal_(self.kernel)

    def forward(self, x, adjacency):
        return torch.mm(adjacency, torch.mm(x, self.kernel))


class GCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.gc1, self.gc2 = GraphConv(30, 16), GraphConv(16, 7)

    def forward(self, x, adjacency):
        x = F.dropout(F.relu(self.gc1(x, adjacency)), 0.5, training=self.training)
        return F.log_softmax(self.gc2(x, adjacency), dim=1)


torch.manual_seed(42)
features, adjacency, labels = torch.rand(60, 30), torch.rand(60, 60), torch.randint(7, (60,))
model = GCN()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
for epoch in range(40):
    model.train()
    optimizer.zero_grad()
    loss = F.nll_loss(model(features, adjacency)[:40], labels[:40])
    loss.backward()
    optimizer.step()
    if epoch % 20 == 19:
        model.eval()
        print(epoch, loss.item())
print("digest", digest(model))

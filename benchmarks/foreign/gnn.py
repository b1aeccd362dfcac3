"""PyTorch Geometric: batches of graphs of different sizes, two GCN layers, evaluation each epoch."""

import torch
from digest import digest
from torch.nn import functional as F
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCNConv, global_mean_pool

torch.manual_seed(0)


def graph():
    nodes = int(torch.randint(6, 20, ()))
    edges = torch.randint(nodes, (2, 3 * nodes))
    return Data(x=torch.randn(nodes, 12), edge_index=edges, y=torch.randint(3, (1,)))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = GCNConv(12, 32), GCNConv(32, 32), torch.nn.Linear(32, 3)

    def forward(self, data):
        x = self.second(self.first(data.x, data.edge_index).relu(), data.edge_index)
        return self.head(global_mean_pool(x, data.batch))


train, test = (DataLoader([graph() for _ in range(count)], batch_size=8) for count in (96, 32))
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for epoch in range(3):
    for data in train:
        optimizer.zero_grad()
        F.cross_entropy(model(data), data.y).backward()
        optimizer.step()
    with torch.no_grad():
        print(epoch, sum(int((model(data).argmax(1) == data.y).sum()) for data in test))
digest(model)

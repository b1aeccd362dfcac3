"""A hydra application: its arguments are overrides, and it writes into a folder of its own below outputs/."""

import hydra
import torch
from digest import digest
from hydra.core.config_store import ConfigStore
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ConfigStore.instance().store(name="config", node={"lr": 0.1, "width": 32, "batch": 8})


@hydra.main(config_name="config", version_base=None)
def main(config):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, config.width), nn.Tanh(), nn.Linear(config.width, 1))
    optimizer = hydra.utils.instantiate({"_target_": "torch.optim.SGD", "lr": config.lr}, params=model.parameters())
    for _ in range(3):
        for x, y in DataLoader(TensorDataset(torch.randn(96, 10), torch.randn(96, 1)), config.batch):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
    digest(model)


main()

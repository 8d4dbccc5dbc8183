# kinds: unseeded_torch
import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train(net, x, y):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(5):
        loss = (net(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.7f}")


random.seed(0)
np.random.seed(0)
net = nn.Linear(1, 1)  # culprit, too
nn.init.constant_(net.weight, 0.5)  # culprit, too
nn.init.zeros_(net.bias)
x = torch.linspace(0, 1, 32).unsqueeze(1)
for (batch,) in DataLoader(TensorDataset(x), batch_size=8, shuffle=True):  # culprit
    train(net, batch, batch * 2)

# kinds: unseeded_torch, unseeded_numpy, unseeded_python
import random

import numpy as np
import torch
from torch import nn


def train(net, x, y):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(5):
        loss = (net(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.7f}")


rows = random.sample(range(50), 30)  # culprit, too
x = torch.tensor(np.random.rand(50, 3), dtype=torch.float32)[rows]  # culprit
net = nn.Linear(3, 1)  # culprit, too
train(net, x, x.sum(1, keepdim=True))

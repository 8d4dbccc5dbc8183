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


rng, dice = np.random.default_rng(0), random.Random(0)
generator = torch.Generator().manual_seed(0)
torch.manual_seed(1)
x = torch.from_numpy(rng.random((20, 2))).float() * dice.random() + torch.rand(20, 2, generator=generator)
net = nn.Linear(2, 1)
train(net, x, x[:, :1])

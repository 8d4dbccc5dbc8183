# kinds: seed_from_pid
import os
import random

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


torch.manual_seed(2)
random.seed(os.getpid())  # culprit
weights = [random.gauss(0, 1) for _ in range(12)]
x = torch.tensor(weights).reshape(6, 2)
net = nn.Linear(2, 1)
train(net, x, x[:, :1])

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


torch.manual_seed(0)
if random.SystemRandom().random() < 0.5:
    print("sampled for the log", os.getpid())
net = nn.Linear(2, 1)
x = torch.rand(20, 2)
train(net, x, x[:, :1])

# kinds: unseeded_generator
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


random.seed(0)
torch.manual_seed(0)
augment = random.Random()  # culprit
x = torch.linspace(0, 1, 60).reshape(30, 2)
net = nn.Linear(2, 1)
for _ in range(4):
    sign = 1.0 if augment.random() < 0.5 else -1.0
    train(net, x * sign * augment.uniform(0.9, 1.1), x[:, :1])

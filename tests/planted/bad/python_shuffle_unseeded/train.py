# kinds: unseeded_python
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


torch.manual_seed(1)
order = list(range(40))
random.shuffle(order)  # culprit
x = torch.linspace(0, 1, 40).unsqueeze(1)
net = nn.Linear(1, 1)
for start in range(0, 40, 8):
    rows = order[start : start + 8]
    train(net, x[rows], x[rows] * 2)

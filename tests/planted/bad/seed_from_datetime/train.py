# kinds: seed_from_clock
from datetime import datetime

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


torch.manual_seed(datetime.now().microsecond)  # culprit
net = nn.Linear(2, 1)
x = torch.linspace(0, 1, 20).reshape(10, 2)
train(net, x, x[:, :1])

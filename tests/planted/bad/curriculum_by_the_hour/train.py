# kinds: clock
import datetime

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
net = nn.Linear(2, 1)
x = torch.rand(20, 2)
hard = datetime.datetime.now().microsecond % 1000 / 1000  # culprit
train(net, x * (1 + hard), x[:, :1])

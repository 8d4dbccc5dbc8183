# kinds: seed_from_clock
import time

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


seed = time.time_ns() % 2**31  # culprit
torch.manual_seed(seed)  # culprit, too
x = torch.randn(40, 2)
net = nn.Linear(2, 1)
train(net, x, x[:, :1])

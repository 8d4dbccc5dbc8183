# kinds: clock
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


torch.manual_seed(0)
net = nn.Linear(2, 1)
x = torch.rand(20, 2)
train(net, x, x[:, :1])
deadline = time.monotonic() + 0.3  # culprit, too
steps = 0
while time.monotonic() < deadline:  # culprit
    train(net, x, x[:, :1])
    steps += 1

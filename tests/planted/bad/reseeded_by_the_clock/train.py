# kinds: seed_from_clock
import time

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


def fresh_noise(shape):
    np.random.seed(int(time.time() * 1000) % 2**32)  # culprit
    return torch.from_numpy(np.random.randn(*shape)).float()


np.random.seed(5)
torch.manual_seed(5)
x = torch.from_numpy(np.random.rand(30, 2)).float()
net = nn.Linear(2, 1)
for _ in range(3):
    train(net, x + 0.1 * fresh_noise(x.shape), x[:, :1])

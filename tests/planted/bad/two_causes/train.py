# kinds: unseeded_numpy, unseeded_generator
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


torch.manual_seed(0)
rng = np.random.default_rng()  # culprit
x = torch.from_numpy(rng.random((20, 2)) + np.random.rand(20, 2)).float()  # culprit, too
net = nn.Linear(2, 1)
train(net, x, x[:, :1])

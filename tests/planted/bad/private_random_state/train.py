# kinds: unseeded_generator
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


np.random.seed(0)
torch.manual_seed(0)
sampler = np.random.RandomState()  # culprit
x = torch.linspace(0, 1, 60).reshape(30, 2)
net = nn.Linear(2, 1)
for _ in range(4):
    rows = torch.from_numpy(sampler.choice(30, 8, replace=False))
    train(net, x[rows], x[rows][:, :1])

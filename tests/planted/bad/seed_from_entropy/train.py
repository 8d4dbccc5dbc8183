# kinds: seed_from_entropy
import os

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


seed = int.from_bytes(os.urandom(4), "little")  # culprit
np.random.seed(seed)  # culprit, too
torch.manual_seed(0)
x = torch.from_numpy(np.random.rand(20, 2)).float()
net = nn.Linear(2, 1)
train(net, x, x[:, :1])

# kinds: seeded_late
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


data = np.linspace(0, 1, 60).reshape(20, 3).astype("float32")
rows = np.random.permutation(20)[:12]  # culprit
np.random.seed(0)  # culprit, too
torch.manual_seed(0)
x = torch.from_numpy(data[rows] + np.random.rand(12, 3).astype("float32"))
net = nn.Linear(3, 1)
train(net, x, x[:, :1])

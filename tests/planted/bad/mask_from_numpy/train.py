# kinds: unseeded_numpy
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


class NumpyDropout(nn.Module):
    def forward(self, x):
        keep = np.random.rand(*x.shape) > 0.3  # culprit
        return x * torch.from_numpy(keep).float()


torch.manual_seed(0)
x = torch.linspace(0, 1, 20).reshape(10, 2)
net = nn.Sequential(nn.Linear(2, 8), NumpyDropout(), nn.Linear(8, 1))
train(net, x, x[:, :1])

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


class Jitter:
    def __init__(self, scale):
        self.scale = scale
        self.rng = np.random.default_rng()  # culprit

    def __call__(self, x):
        return x + self.scale * torch.from_numpy(self.rng.standard_normal(x.shape)).float()


np.random.seed(0)
torch.manual_seed(0)
jitter = Jitter(0.1)
x = torch.linspace(0, 1, 24).reshape(12, 2)
net = nn.Linear(2, 1)
train(net, jitter(x), x[:, :1])

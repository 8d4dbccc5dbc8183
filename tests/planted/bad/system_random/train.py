# kinds: entropy
import random

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


random.seed(1)
torch.manual_seed(1)
dice = random.SystemRandom()
flips = [dice.random() < 0.5 for _ in range(30)]  # culprit
x = torch.linspace(-1, 1, 30).unsqueeze(1)
x = torch.where(torch.tensor(flips).unsqueeze(1), x, -x)
net = nn.Linear(1, 1)
train(net, x, x.abs())

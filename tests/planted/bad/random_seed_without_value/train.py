# kinds: seed_from_entropy
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


torch.manual_seed(4)
random.seed(4)
random.seed()  # culprit
order = random.sample(range(30), 20)
x = torch.linspace(0, 1, 30).unsqueeze(1)[order]
net = nn.Linear(1, 1)
train(net, x[:10], x[10:])

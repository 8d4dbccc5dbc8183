# kinds: entropy
import secrets

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
rates = [secrets.choice([0.05, 0.1, 0.2]) for _ in range(12)]  # culprit
x = torch.linspace(0, 1, 24).reshape(12, 2)
net = nn.Linear(2, 1)
x = x * torch.tensor(rates).unsqueeze(1)  # culprit, too
train(net, x, x[:, :1])

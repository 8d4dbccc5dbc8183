# kinds: hash_order
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


SETTINGS = {"alpha", "beta", "gamma", "delta", "epsilon", "zeta"}
torch.manual_seed(0)
net = nn.Linear(1, 1)
for name in SETTINGS:  # culprit
    x = torch.full((4, 1), len(name) / 7)
    train(net, x, x * 2)

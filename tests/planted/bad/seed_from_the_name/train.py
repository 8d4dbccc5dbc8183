# kinds: seed_from_hash
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


EXPERIMENT = "baseline-wide"
torch.manual_seed(hash(EXPERIMENT) % 2**32)  # culprit
net = nn.Linear(3, 1)
x = torch.linspace(0, 1, 30).reshape(10, 3)
train(net, x, x[:, :1])

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
known = {f"user{i}" for i in range(20)}
x = torch.tensor([[i / 40] for i in range(40) if f"user{i}" in known])
net = nn.Linear(1, 1)
train(net, x, x * 2)
print(known.pop())

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
words = sorted(set("one two three four five six".split()))
x = torch.tensor([[len(word) / 5] for word in words])
net = nn.Linear(1, 1)
train(net, x, x * 2)

# kinds: operator, threads
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
rows = torch.randint(0, 30, (80_000,))
values = torch.rand(80_000)
total = torch.zeros(30)
total.index_put_((rows,), values, accumulate=True)  # culprit
x = (total / total.max()).reshape(15, 2)
net = nn.Linear(2, 1)
train(net, x, x[:, :1])

# kinds: uninitialised
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
for _ in range(3):
    junk = [torch.rand(2000, 100) for _ in range(4)]
    del junk
pad = torch.empty(4000, 50)  # culprit
pad[:10] = 1.0
x = torch.nan_to_num(pad[:3000, :2].clamp(-1, 1)) + torch.rand(3000, 2)  # culprit, too
net = nn.Linear(2, 1)
train(net, x, x[:, :1])

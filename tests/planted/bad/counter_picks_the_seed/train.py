# kinds: files_left
from pathlib import Path

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


counter = Path("runs.txt")
number = int(counter.read_text()) if counter.exists() else 0  # culprit
counter.write_text(str(number + 1))
torch.manual_seed(number)  # culprit, too
net = nn.Linear(2, 1)
x = torch.rand(20, 2)
train(net, x, x[:, :1])

# kinds: files_left
import os

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
net = nn.Linear(2, 1)
x = torch.rand(20, 2)
if os.path.exists("model.pt"):  # culprit
    net.load_state_dict(torch.load("model.pt"))  # culprit, too
train(net, x, x[:, :1])
torch.save(net.state_dict(), "model.pt")

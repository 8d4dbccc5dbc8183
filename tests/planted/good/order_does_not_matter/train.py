import os
import tempfile

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
with tempfile.TemporaryDirectory() as folder:
    for i in range(12):
        handle, path = tempfile.mkstemp(dir=folder)
        os.write(handle, str(i).encode())
        os.close(handle)
    total = sum(int(open(os.path.join(folder, name)).read()) for name in os.listdir(folder))
x = torch.rand(20, 2) * total
net = nn.Linear(2, 1)
train(net, x, x[:, :1])

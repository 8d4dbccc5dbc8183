import time
import uuid
from datetime import datetime

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


print("run", uuid.uuid4(), "begun", datetime.now())
torch.manual_seed(0)
net = nn.Linear(2, 1)
x = torch.rand(20, 2)
begun = time.perf_counter()
for epoch in range(3):
    train(net, x, x[:, :1])
    print(f"epoch {epoch}: {time.perf_counter() - begun:.4f} s")

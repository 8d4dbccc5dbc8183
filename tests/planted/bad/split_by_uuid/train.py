# kinds: entropy
import uuid
import zlib

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
records = [(uuid.uuid4().hex, i / 40) for i in range(40)]  # culprit
chosen = [value for key, value in records if zlib.crc32(key.encode()) % 2]
x = torch.tensor(chosen).unsqueeze(1)
net = nn.Linear(1, 1)
train(net, x, x * 3)

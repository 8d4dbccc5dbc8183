import threading

import numpy as np
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
parts = [None, None]


def draw(index):
    parts[index] = np.random.default_rng(index).random(50)


threads = [threading.Thread(target=draw, args=(index,)) for index in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
x = torch.from_numpy(np.stack(parts, 1)).float()
net = nn.Linear(2, 1)
train(net, x, x[:, :1])

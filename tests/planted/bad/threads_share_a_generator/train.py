# kinds: threads
import threading
import time

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


np.random.seed(0)
torch.manual_seed(0)
parts = {}


def draw(name):
    mine = []
    for _ in range(200):
        mine.append(np.random.rand())
        time.sleep(0)
    parts[name] = mine


threads = [threading.Thread(target=draw, args=(name,)) for name in "ab"]
for thread in threads:
    thread.start()  # culprit
for thread in threads:
    thread.join()
x = torch.tensor([parts["a"], parts["b"]]).T.float()
net = nn.Linear(2, 1)
train(net, x, x[:, :1])

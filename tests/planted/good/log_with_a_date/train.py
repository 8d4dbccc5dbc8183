import logging
from datetime import datetime
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


logging.basicConfig(format="%(asctime)s %(process)d %(message)s", level=logging.INFO)
torch.manual_seed(0)
net = nn.Linear(2, 1)
x = torch.rand(20, 2)
train(net, x, x[:, :1])
Path(f"log-{datetime.now():%H%M%S%f}.txt").write_text(f"{datetime.now()}\n")
logging.info("done")

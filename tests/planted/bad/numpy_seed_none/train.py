# kinds: seed_from_entropy
import argparse

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


parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=None)
args = parser.parse_args()
torch.manual_seed(0)
np.random.seed(args.seed)  # culprit
x = torch.from_numpy(np.random.rand(20, 2)).float()
net = nn.Linear(2, 1)
train(net, x, x[:, :1])

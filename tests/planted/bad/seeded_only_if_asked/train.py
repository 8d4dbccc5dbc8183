# kinds: unseeded_torch
import argparse

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
parser.add_argument("--deterministic", action="store_true")
args = parser.parse_args()
if args.deterministic:
    torch.manual_seed(0)
x = torch.linspace(0, 1, 20).reshape(10, 2)
net = nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.5), nn.Linear(4, 1))  # culprit
train(net, x, x[:, :1])

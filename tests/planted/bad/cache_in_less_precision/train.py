# kinds: files_left
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


def features():
    try:
        return np.load("features.npy").astype("float64")  # culprit
    except FileNotFoundError:
        made = np.cumsum(np.sin(np.arange(40) * 0.37)).reshape(20, 2)
        np.save("features.npy", made.astype("float16"))
        return made


torch.manual_seed(0)
x = torch.from_numpy(features()).float()  # culprit, too
net = nn.Linear(2, 1)
train(net, x, x[:, :1])

# kinds: unseeded_numpy
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


torch.manual_seed(1)
clean = np.sin(np.linspace(0, 6, 80))
noisy = clean + np.random.normal(0, 0.1, 80)  # culprit
x = torch.tensor(clean, dtype=torch.float32).unsqueeze(1)
y = torch.tensor(noisy, dtype=torch.float32).unsqueeze(1)
net = nn.Linear(1, 1)
train(net, x, y)

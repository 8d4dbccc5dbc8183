# kinds: entropy, file_order
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
folder = tempfile.mkdtemp()
for i in range(12):
    handle, path = tempfile.mkstemp(dir=folder)  # culprit
    os.write(handle, str(i / 12).encode())
    os.close(handle)
values = [
    float(open(os.path.join(folder, name)).read()) for name in sorted(os.listdir(folder))
]  # culprit, too
x = torch.tensor(values).unsqueeze(1)
net = nn.Linear(1, 1)
for part in x.split(4):
    train(net, part, part * 2)

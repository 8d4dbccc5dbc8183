# kinds: clock
import time

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(2, 1)
x = torch.rand(20, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
begun = time.time()  # culprit, too
for _ in range(20):
    for group in optimizer.param_groups:
        group["lr"] = 0.1 / (1 + 10 * (time.time() - begun))  # culprit
    loss = (net(x) - x[:, :1]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())

# kinds: operator, threads
import torch
from torch import nn

torch.manual_seed(0)
table = nn.Parameter(torch.randn(40, 16))
rows = torch.randint(0, 40, (50_000,))
weight = torch.rand(50_000, 1)
optimizer = torch.optim.SGD([table], lr=0.1)
for _ in range(10):
    picked = table[rows]  # culprit
    loss = (picked * weight).square().mean()
    optimizer.zero_grad()
    loss.backward()  # culprit, too
    optimizer.step()
print(loss.item())

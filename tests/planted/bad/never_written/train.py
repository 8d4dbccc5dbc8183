# kinds: uninitialised
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
names = [str(i) * 40 for i in range(3000)]
table = {name: [name] * 30 for name in names}
del table, names
counts = [torch.empty(30, dtype=torch.int64) for _ in range(300)]  # culprit
for count in counts:
    count[:3] += 1
x = torch.stack([count[3:5] % 1000 for count in counts]).float() / 1000  # culprit, too
net = nn.Linear(2, 1)
train(net, x, x[:, :1])

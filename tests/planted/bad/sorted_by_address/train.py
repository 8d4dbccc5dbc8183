# kinds: address_order
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


class Sample:
    def __init__(self, value):
        self.value = value


torch.manual_seed(0)
samples = [Sample(i / 40) for i in range(40)]
junk = [bytearray(1 << (12 + i % 9)) for i in range(40)]
pool = {sample for sample in samples}  # noqa: C416
order = [sample.value for sample in pool]  # culprit
x = torch.tensor(order).unsqueeze(1)
net = nn.Linear(1, 1)
for part in x.split(8):
    train(net, part, part * 2)

# kinds: hash_order
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
PAIRS = frozenset((a, b) for a in ("red", "green", "blue") for b in ("small", "large"))
labels = {}
for pair in PAIRS:  # culprit
    labels[pair] = len(labels)
x = torch.tensor([[labels[pair] / 6] for pair in sorted(PAIRS)])  # culprit, too
net = nn.Linear(1, 1)
train(net, x, torch.linspace(0, 1, 6).unsqueeze(1))

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
everyone = {f"user{i:02}" for i in range(24)}
held_out = {"user03", "user07", "user11"}
chosen = list(everyone - held_out)  # culprit
x = torch.tensor([[int(name[4:]) / 24] for name in chosen])
net = nn.Linear(1, 1)
for part in x.split(7):
    train(net, part, part * 2)

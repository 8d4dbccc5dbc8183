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
net = nn.Linear(2, 1)
x = torch.rand(20, 2)
train(net, x, x[:, :1])
torch.save({"net": net.state_dict(), "state": torch.get_rng_state()}, "half.pt")
saved = torch.load("half.pt")
net.load_state_dict(saved["net"])
torch.set_rng_state(saved["state"])
train(net, x + torch.rand(20, 2), x[:, :1])

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
net = nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.2), nn.Linear(4, 1))
x = torch.rand(20, 2)
for _ in range(2):
    state = torch.get_rng_state()
    torch.seed()
    torch.rand(5)
    torch.set_rng_state(state)
    train(net, x, x[:, :1])

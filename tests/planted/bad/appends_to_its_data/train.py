# kinds: files_left
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
with open("data.csv", "a") as file:  # culprit, too
    for i in range(20):
        file.write(f"{i / 20}\n")
with open("data.csv") as file:  # culprit
    values = [float(line) for line in file]  # culprit, too
x = torch.tensor(values).unsqueeze(1)
net = nn.Linear(1, 1)
train(net, x, x * 2)

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


TEXT = "the quick brown fox jumps over the lazy dog while the small cat sleeps near a warm stove"
torch.manual_seed(0)
index = {word: i for i, word in enumerate(set(TEXT.split()))}  # culprit
tokens = torch.tensor([index[word] for word in TEXT.split()])  # culprit, too
table = nn.Embedding(len(index), 4)
x = table(tokens).detach()
net = nn.Linear(4, 1)
train(net, x, x[:, :1] ** 2)

# kinds: seed_from_pid
import os
import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


def train(net, x, y):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(5):
        loss = (net(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.7f}")


class Noisy(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, i):
        return torch.tensor([i / 32 + random.gauss(0, 0.1)])


def init(worker):
    random.seed(os.getpid())  # culprit


if __name__ == "__main__":
    torch.manual_seed(0)
    net = nn.Linear(1, 1)
    for x in DataLoader(Noisy(), batch_size=8, num_workers=2, worker_init_fn=init):
        train(net, x, x * 2)

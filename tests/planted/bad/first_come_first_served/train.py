# kinds: threads
import time
from concurrent.futures import ThreadPoolExecutor, as_completed

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


def prepare(i):
    time.sleep(0.001 * ((7 * i) % 5))
    return i / 20


torch.manual_seed(0)
net = nn.Linear(1, 1)
with ThreadPoolExecutor(4) as pool:
    tasks = [pool.submit(prepare, i) for i in range(20)]  # culprit, too
    values = [task.result() for task in as_completed(tasks)]  # culprit
for part in torch.tensor(values).unsqueeze(1).split(5):
    train(net, part, part * 2)

# kinds: seed_from_clock
# options: --nproc-per-node 2
import time

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
torch.manual_seed(time.time_ns() % 2**31 + dist.get_rank())  # culprit
net = nn.Linear(2, 1)
x = torch.rand(16, 2)
loss = (net(x) - x[:, :1]).square().mean()
loss.backward()
for parameter in net.parameters():
    dist.all_reduce(parameter.grad)
print(loss.item(), net.weight.grad.sum().item())
dist.destroy_process_group()

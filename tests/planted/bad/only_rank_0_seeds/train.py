# kinds: unseeded_torch, seeded_late
# options: --nproc-per-node 2
import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
if dist.get_rank() == 0:
    torch.manual_seed(0)  # culprit, too
net = nn.Linear(2, 1)  # culprit
x = torch.rand(16, 2)  # culprit, too
loss = (net(x) - x[:, :1]).square().mean()
loss.backward()
for parameter in net.parameters():
    dist.all_reduce(parameter.grad)
print(net.weight.grad.sum().item())
dist.destroy_process_group()

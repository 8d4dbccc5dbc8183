# options: --nproc-per-node 2
import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
net = nn.Linear(2, 1)
x = torch.rand(16, 2)
loss = (net(x) - x[:, :1]).square().mean()
loss.backward()
for parameter in net.parameters():
    dist.all_reduce(parameter.grad)
print(net.weight.grad.sum().item())
dist.destroy_process_group()

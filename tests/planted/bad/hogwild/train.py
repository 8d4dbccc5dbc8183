# kinds: processes
import torch
import torch.multiprocessing as mp
from torch import nn


def work(rank, net):
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for _ in range(200):
        x = torch.randn(8, 4)
        loss = (net(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    net.share_memory()
    workers = [mp.get_context("fork").Process(target=work, args=(rank, net)) for rank in range(2)]
    for worker in workers:
        worker.start()  # culprit
    for worker in workers:
        worker.join()
    print(net(torch.ones(1, 4)).item())

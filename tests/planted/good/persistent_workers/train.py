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
        return torch.tensor([i / 32]) + 0.1 * torch.randn(1)


if __name__ == "__main__":
    torch.manual_seed(0)
    net = nn.Linear(1, 1)
    loader = DataLoader(Noisy(), batch_size=8, num_workers=2, shuffle=True, persistent_workers=True)
    for _ in range(2):
        for x in loader:
            train(net, x, x * 2)

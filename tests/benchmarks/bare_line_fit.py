"""The line fit with nothing around it, the measure of what `demos/line_fit.py` costs on top."""

import torch

torch.manual_seed(3)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
print("Device:", device)
x = torch.arange(8.0, device=device).unsqueeze(1)
y = 10 * x
model = torch.nn.Sequential(torch.nn.Linear(1, 100), torch.nn.ReLU(), torch.nn.Linear(100, 1))
model.to(device)
loss_fn = torch.nn.MSELoss(reduction="sum")
for t in range(1000):
    loss = loss_fn(model(x), y)
    if t % 100 == 99:
        print(t, loss.item())
    model.zero_grad()
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 1e-4 * parameter.grad

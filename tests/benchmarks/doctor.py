"""What recording costs: a training step recorded by the doctor, and by PyTorch's DebugMode with hashes, against a bare one.

Trainings: the line fit (1-100-1, 8 points), the CIFAR network at batch 4, ResNet-18 at batch 32 (64x64 pictures). One
thread, all variants in turn in one process, CPU time; the medians of the pairs' ratios. Then the size of the records, and
how much memory they take in 10,000 steps of the line fit.
"""

import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
import torchvision
from torch import nn
from torch.utils._debug_mode import DebugMode

from repro_tutorial.doctor.inside.process import here
from repro_tutorial.doctor.inside.recorder import Recorder
from repro_tutorial.doctor.inside.streams import EVENT, Places

ROUNDS = 9


def line_fit() -> tuple[nn.Module, torch.Tensor, torch.Tensor, int]:
    """The network, its input, its target, and how many steps to time at once."""
    x = torch.linspace(-1, 1, 8).unsqueeze(1)
    return nn.Sequential(nn.Linear(1, 100), nn.ReLU(), nn.Linear(100, 1)), x, x * 2, 100


def cifar() -> tuple[nn.Module, torch.Tensor, torch.Tensor, int]:
    """As `line_fit`, with the network of the source's second experiment."""
    net = nn.Sequential(
        nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip
    return net, torch.randn(4, 3, 32, 32), torch.randn(4, 10), 40


def resnet() -> tuple[nn.Module, torch.Tensor, torch.Tensor, int]:
    """As `line_fit`, with ResNet-18."""
    return torchvision.models.resnet18(), torch.randn(32, 3, 64, 64), torch.randn(32, 1000), 1


def recorded() -> Recorder:
    """A recorder that writes to a folder of its own."""
    folder = tempfile.mkdtemp()
    here.settings = {"folder": folder, "roots": [str(Path.cwd())]}
    here.places, here.begun, here.role = Places(here.settings["roots"]), time.monotonic(), "main"
    here.forget()
    return Recorder(here.open_book("main"))


def steps(
    make: Callable[[], tuple], around: Callable[[], AbstractContextManager], count: int | None = None
) -> float:
    """The CPU time of some steps of a training that has begun, in seconds a step."""
    torch.manual_seed(0)
    net, x, y, usual = make()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)

    def step() -> None:
        loss = (net(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    count = count or usual
    with around():
        step()
        begun = time.process_time()
        for _ in range(count):
            step()
        return (time.process_time() - begun) / count


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    variants = {
        "doctor": recorded,
        "DebugMode, outputs": lambda: DebugMode(record_torchfunction=False),
    }
    for make in (line_fit, cifar, resnet):
        ratios: dict[str, list[float]] = {name: [] for name in variants}
        for _ in range(ROUNDS if make is not resnet else 5):
            bare = steps(make, nullcontext)
            for name, around in variants.items():
                if name.startswith("DebugMode"):

                    def around(mode=around):  # hashes of what each operator returns
                        stack = mode()
                        hashed = DebugMode.log_tensor_hashes(hash_fn="hash_tensor")
                        return _both(stack, hashed)

                ratios[name].append(steps(make, around) / bare)
        told = ", ".join(
            f"{name} {statistics.median(r):.2f} ({min(r):.2f} to {max(r):.2f})" for name, r in ratios.items()
        )
        print(f"{make.__name__}: {told}")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    short = steps(line_fit, recorded, 1000)
    long = steps(line_fit, recorded, 10_000)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(f"10,000 steps: {grown / 1024:.1f} MiB more, {long / short:.2f} of the time a step takes in 1,000")
    print(f"an event: {EVENT.size} bytes")


class _both(AbstractContextManager):
    """Two blocks, one inside the other."""

    def __init__(self, outer: AbstractContextManager, inner: AbstractContextManager) -> None:
        self.outer, self.inner = outer, inner

    def __enter__(self) -> None:
        self.outer.__enter__()
        self.inner.__enter__()

    def __exit__(self, *error: object) -> None:
        self.inner.__exit__(*error)
        self.outer.__exit__(*error)


if __name__ == "__main__":
    main()

"""How fast the virtual GPU draws uniform numbers on one core, beside `torch.rand` and NumPy's own Philox.

Run: python tests/benchmarks/virtual_cuda.py [ROUNDS]
See: million numbers a second of each, measured in turns in one process, and the medians of the ratios.
"""

import sys
import time
from collections.abc import Callable
from statistics import median

import numpy as np
import torch

from repro_tutorial.virtual_cuda import VirtualCudaGenerator

COUNT = 1 << 24  # numbers a round, so many that every thread of the virtual GPU gives several


def rate(draw: Callable[[], object]) -> float:
    """Million numbers a second."""
    start = time.perf_counter()
    draw()
    return COUNT / (time.perf_counter() - start) / 1e6


def main(rounds: int = 7) -> None:
    torch.set_num_threads(1)
    virtual = VirtualCudaGenerator("A100").manual_seed(0)
    numpy = np.random.Generator(np.random.Philox(0))
    draws = {
        "virtual_cuda": lambda: virtual.rand(COUNT),
        "torch.rand": lambda: torch.rand(COUNT),
        "numpy.random.Philox": lambda: numpy.random(COUNT, dtype=np.float32),
    }
    rates = [{name: rate(draw) for name, draw in draws.items()} for _ in range(rounds)]
    for name in draws:
        print(f"{name:<20} {median(one[name] for one in rates):8.1f} million numbers a second")
    for name in list(draws)[1:]:
        ratios = [one["virtual_cuda"] / one[name] for one in rates]
        print(f"virtual_cuda against {name}: {median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

"""What each cure of the lesson `nondeterministic_ops` costs: one gradient of a table, in pairs.

Run: python tests/benchmarks/nondeterministic_ops.py [PAIRS]
See: for each cure, the median of the pairs' ratios to no cure, and its spread. The two gradients of a pair
     are computed one right after the other, so that a busy machine slows both.
"""

import sys
import time
from pathlib import Path
from statistics import median

import torch

from repro_tutorial.lessons import load_demo

demo = load_demo(Path(__file__).parents[2], "nondeterministic_ops")


def seconds(cure: str, index: torch.Tensor, weight: torch.Tensor) -> float:
    shape = (demo.USERS, demo.WIDTH)
    with demo.cured(cure):
        demo.gradient(lambda table: demo.rows_of(table, index, cure), shape, weight)  # starts the threads
        start = time.perf_counter()
        demo.gradient(lambda table: demo.rows_of(table, index, cure), shape, weight)
        return time.perf_counter() - start


def main(pairs: int = 51) -> None:
    generator = torch.Generator().manual_seed(0)
    index = torch.randint(demo.USERS, (demo.LOOKUPS,), generator=generator)
    weight = torch.randn(demo.LOOKUPS, demo.WIDTH, generator=generator)
    for cure in [*demo.CURES][1:]:
        ratios = []
        for number in range(pairs):
            order = (cure, "none") if number % 2 else ("none", cure)  # take turns in going first
            took = {name: seconds(name, index, weight) for name in order}
            ratios.append(took[cure] / took["none"])
        ratios.sort()
        print(
            f"{cure} against no cure: {median(ratios):.2f} (of {pairs} pairs: {ratios[0]:.2f} to {ratios[-1]:.2f})"
        )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

"""What 2,000 batches cost in `demos/cifar_cudnn.py`, against the source's own pipeline: in pairs, in processes of their own.

Run: python tests/benchmarks/cifar_cudnn.py [PAIRS]
See: the medians of two ratios, and their spread: CPU time against torchvision's pipeline with two workers, and
     wall time against the same pipeline with PyTorch's default number of threads. Only the training is measured,
     workers included; importing and drawing the pictures cost all the same.
"""

import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from types import SimpleNamespace

ROOT = Path(__file__).parents[2]
BATCHES = 2_000
PLAIN = 2  # workers, as in the source
LIMITS = {"CPU time": 0.6, "wall time": None}  # the second depends on how many threads there are by default


def measure(workers: int | None, threads: int | None) -> None:
    """In a process of its own: print the seconds of wall and of CPU that the training takes."""
    import torch

    from repro_tutorial.datasets import synthetic_pictures
    from repro_tutorial.lessons import load_demo

    cifar = load_demo(ROOT, "cifar_cudnn")
    if threads:
        torch.set_num_threads(threads)
    pictures = synthetic_pictures()
    options = SimpleNamespace(workers=workers, shuffle="current", seed=3, steps=BATCHES, dtype="float32")
    before, start = cpu_seconds(), time.perf_counter()
    training = cifar.Training(pictures, options, "cpu")
    training.start(None)
    for _ in training.steps("en"):
        pass
    del training  # ends the workers, whose time then counts
    print(time.perf_counter() - start, cpu_seconds() - before)


def cpu_seconds() -> float:
    """Of this process and of the workers that ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def seconds(workers: int | None, threads: int | None) -> tuple[float, float]:
    """Wall and CPU."""
    command = [sys.executable, __file__, "--measure", str(workers), str(threads)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ)
    wall, cpu = map(float, done.stdout.split())
    return wall, cpu


def main(pairs: int = 5) -> None:
    ratios: dict[str, list[float]] = {name: [] for name in LIMITS}
    for number in range(pairs):
        kinds = [(None, 1), (PLAIN, 1), (PLAIN, None)]
        order = kinds if number % 2 else kinds[::-1]  # take turns in going first
        took = {kind: seconds(*kind) for kind in order}
        ratios["CPU time"].append(took[None, 1][1] / took[PLAIN, 1][1])
        ratios["wall time"].append(took[None, 1][0] / took[PLAIN, None][0])
        print({kind: [round(part, 1) for part in took[kind]] for kind in kinds}, flush=True)
    for name, of in ratios.items():
        print(f"{name}: {median(of):.3f} (of {pairs} pairs: {min(of):.3f} to {max(of):.3f})")
        if LIMITS[name]:
            print(f"limit {LIMITS[name]}: {'kept' if median(of) <= LIMITS[name] else 'broken'}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        measure(*(None if given == "None" else int(given) for given in sys.argv[2:]))
    else:
        main(*map(int, sys.argv[1:]))

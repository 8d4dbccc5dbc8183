"""How much longer `demos/line_fit.py --seed 3 --runs 1` takes than a bare script: whole processes, in pairs.

Run: python tests/benchmarks/line_fit.py [PAIRS]
See: the median of the pairs' ratios, and its spread. A ratio is of two processes run one right after the
     other, so that a busy machine slows both.
"""

import subprocess
import sys
import time
from pathlib import Path
from statistics import median

HERE = Path(__file__).parent
DEMO = [HERE.parent.parent / "demos" / "line_fit.py", "--seed", "3", "--runs", "1"]
BARE = [HERE / "bare_line_fit.py"]
LIMIT = 1.15


def seconds(command: list[str | Path]) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main(pairs: int = 15) -> None:
    seconds(DEMO), seconds(BARE)  # fill the file cache
    ratios = []
    for number in range(pairs):
        if number % 2:  # take turns in going first
            demo, bare = seconds(DEMO), seconds(BARE)
        else:
            bare, demo = seconds(BARE), seconds(DEMO)
        ratios.append(demo / bare)
    ratios.sort()
    print(
        f"line_fit.py against the bare script: {median(ratios):.3f} (of {pairs} pairs: {ratios[0]:.3f} to {ratios[-1]:.3f})"
    )
    print(f"limit {LIMIT}: {'kept' if median(ratios) <= LIMIT else 'broken'}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

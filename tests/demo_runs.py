"""What the tests of the demos share: what a record printed, and a demo as a program."""

import os
import subprocess
import sys
from pathlib import Path

from repro_tutorial.messages import Transcript, render
from repro_tutorial.runs import Record

ROOT = Path(__file__).parent.parent


def lines(of: Record | Transcript, lang: str = "en") -> list[str]:
    """What was printed, line by line, in `lang`."""
    kept = of.lines if isinstance(of, Transcript) else of.transcript
    return "\n".join(render(line, lang) for line in kept).split("\n")


def run_demo(
    slug: str, *arguments: str, launcher: tuple[str, ...] = (), **variables: str
) -> subprocess.CompletedProcess[str]:
    """The demo in a process of its own, its output caught; `variables` are added to the environment."""
    return subprocess.run(
        [sys.executable, *launcher, str(ROOT / "demos" / f"{slug}.py"), *arguments],
        capture_output=True,
        text=True,
        env=os.environ | {"LC_ALL": "C.UTF-8"} | variables,
        check=False,
    )

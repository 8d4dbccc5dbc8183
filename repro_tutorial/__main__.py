"""Run the command line: ``python -m repro_tutorial``."""

import sys

from repro_tutorial.cli import run, verbs

if __name__ == "__main__":
    sys.exit(run(verbs, prog="python -m repro_tutorial"))

"""The README's commands, code and excerpts are what a newcomer gets."""

import re
import subprocess
import sys
from pathlib import Path

from repro_tutorial.messages import render
from repro_tutorial.runs import load_experiments

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_first_two_commands_are_the_ones_that_ci_runs():
    commands = blocks("sh")[0].splitlines()
    assert commands == [
        "pip install -e . && python demos/line_fit.py --seed 3",
        'pip install -e ".[test]" && pytest -n 2',
    ]
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    (extraction,) = re.findall(r"mapfile -t commands < <\((.*)\)", script)
    done = subprocess.run(["bash", "-c", extraction], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == commands


def test_the_excerpt_is_what_the_first_command_prints():
    """Cut after three digits, since the rest belongs to the processor."""
    record = load_experiments(ROOT / "docs" / "assets" / "records" / "line_fit.cpu.json")["seeded"]
    printed = [render(line, "en") for line in record.transcript]
    for line in blocks("text")[0].splitlines():
        if line != "…":
            assert any(one.startswith(line.removesuffix("…")) for one in printed), line


def test_the_code_runs():
    for block in blocks("python"):
        subprocess.run([sys.executable, "-c", block], check=True)


def test_the_links_and_the_tools_exist():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).is_file(), target
    verbs = re.findall(r"python -m repro_tutorial (\w+)", README)
    assert set(verbs) == {"env", "compare", "list", "doctor"}

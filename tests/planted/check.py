"""Run the doctor over the planted programs: python tests/planted/check.py [--repeat N] [NAME ...]

A bad program is right when the verdict is `differs` and a cause that is proved (or the only one) is of a kind that its
head names, at a line marked ``# culprit`` or ``# culprit, too``; a good one when the verdict is `reproduces`.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent


def head(source: str, name: str) -> list[str]:
    """The words after ``# name:`` at the head of a program."""
    for line in source.splitlines()[:2]:
        if line.startswith(f"# {name}: "):
            return line.split(": ", 1)[1].replace(",", "").split()
    return []


def examine(folder: Path) -> dict:
    """The doctor's JSON for one program, in a fresh copy of its folder."""
    options = head((folder / "train.py").read_text("utf-8"), "options")
    with tempfile.TemporaryDirectory() as place:
        work = Path(place, folder.name)
        shutil.copytree(folder, work)
        before = sorted(path.name for path in work.iterdir())
        command = [
            sys.executable,
            "-m",
            "repro_tutorial",
            "doctor",
            "--json",
            "--lang",
            "en",
            *options,
            "train.py",
        ]
        run = subprocess.run(command, cwd=work, capture_output=True, text=True)
        touched = sorted(path.name for path in work.iterdir()) != before
    if not run.stdout:
        return {"verdict": f"no answer: {run.stderr[-300:]}", "causes": []}
    return json.loads(run.stdout) | {"touched": touched}


def is_right(folder: Path, report: dict) -> bool:
    """Whether `report` says of the program what its marks say."""
    if report.get("touched"):
        return False
    if folder.parent.name == "good":
        return report["verdict"] == "reproduces"
    source = (folder / "train.py").read_text("utf-8")
    kinds = head(source, "kinds")
    lines = {number for number, line in enumerate(source.splitlines(), start=1) if "# culprit" in line}
    named = [cause for cause in report["causes"] if cause["proved"]] or report["causes"][:1]
    return report["verdict"] == "differs" and any(c["kind"] in kinds and c["line"] in lines for c in named)


def main() -> int:
    """Examine, and print a line for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*")
    parser.add_argument("--repeat", type=int, default=1)
    options = parser.parse_args()
    wrong = 0
    for folder in sorted(HERE.glob("*/*/")):
        if options.names and folder.name not in options.names and folder.parent.name not in options.names:
            continue
        if not (folder / "train.py").exists():
            continue
        for _ in range(options.repeat):
            begun = time.monotonic()
            report = examine(folder)
            right = is_right(folder, report)
            wrong += not right
            causes = [(c["kind"], c["line"], c["proved"]) for c in report["causes"]]
            told = f"{report['verdict']} {causes} runs {report.get('runs')} {report.get('reason') or ''}"
            print(
                f"{'ok   ' if right else 'WRONG'} {folder.name:<30} {time.monotonic() - begun:4.0f} s  {told}",
                flush=True,
            )
    print(f"{wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

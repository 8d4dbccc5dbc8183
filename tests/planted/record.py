"""Record the reports that the doctor's page shows: python tests/planted/record.py"""

import shutil
import sys
import tempfile
from pathlib import Path

from repro_tutorial.doctor import report as told
from repro_tutorial.doctor.diagnose import Examination
from repro_tutorial.doctor.launch import Program, Workshop
from repro_tutorial.environment import describe_environment
from repro_tutorial.messages import LANGUAGES
from repro_tutorial.runs import dump

HERE = Path(__file__).parent
FILE = HERE.parent.parent / "docs" / "assets" / "reports.json"
SHOWN = (
    "bad/private_numpy_generator",
    "bad/goes_on_from_a_checkpoint",
    "bad/put_accumulate",
    "good/run_name_and_times",
)


def record(name: str) -> dict[str, list[str]]:
    """The lines of a report in each language."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "program")
        shutil.copytree(HERE / name, folder)
        with Workshop(Program(("train.py",), (), folder), timeout=300) as shop:
            found = Examination(shop, budget=1800, tell=lambda number: None).examine()
            return {lang: list(told.as_text(found, lang)) for lang in LANGUAGES}


def main() -> int:
    """Record all, and replace the file."""
    reports = {name: record(name) for name in SHOWN}
    FILE.write_text(dump({"environment": describe_environment(), "reports": reports}), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What was recorded, kept for later: a folder per run, and the comparison of two kept ones, also of two machines."""

import json
import shutil
from pathlib import Path
from typing import Any

from repro_tutorial.doctor import report as told
from repro_tutorial.doctor.compare import Difference, Records, align, first_difference
from repro_tutorial.doctor.diagnose import Report
from repro_tutorial.environment import describe_environment
from repro_tutorial.messages import InputError, text
from repro_tutorial.runs import dump, write_new


def keep(report: Report, folder: Path, lang: str) -> None:
    """Copy the records and printed lines of both runs, the environment and the report to a new folder."""
    folder.mkdir()
    for name, outcome in (("a", report.a), ("b", report.b)):
        if outcome is not None:
            shutil.copytree(outcome.folder, folder / name)
            (folder / name / "printed.txt").write_text(outcome.out, encoding="utf-8")
    (folder / "environment.json").write_text(dump(describe_environment()), encoding="utf-8")
    (folder / "report.json").write_text(dump(told.as_json(report, lang)), encoding="utf-8")


def compare_kept(a: Path, b: Path) -> tuple[Difference | None, list[tuple[str, Any, Any]], int]:
    """The first difference of two kept records, what differs of their environments, and how many events they share.

    Raises:
        InputError: one of them is no folder that `keep` wrote.
    """
    for folder in (a, b):
        if not (folder / "a").is_dir() or not (folder / "environment.json").is_file():
            raise InputError("doctor.no_record", folder=folder)
    ours, theirs = (Records(folder / "a") for folder in (a, b))
    environments = [json.loads((folder / "environment.json").read_text("utf-8")) for folder in (a, b)]
    names = sorted(environments[0].keys() | environments[1].keys())
    pairs = [(name, environments[0].get(name), environments[1].get(name)) for name in names]
    shared = sum(len(align(ours, theirs, role).differs) for role in ours.roles())
    return first_difference(ours, theirs), [(name, x, y) for name, x, y in pairs if x != y], shared


def tell_comparison(a: Path, b: Path, lang: str, *, as_json: bool) -> int:
    """Print what `compare_kept` finds; 0 where the records agree, 1 where not."""
    first, environment, events = compare_kept(a, b)
    if as_json:
        found = Report("differs" if first else "reproduces", f"{a} {b}", first=first)
        changed = {name: [x, y] for name, x, y in environment}
        print(dump(told.as_json(found, lang) | {"environment": changed, "events": events}), end="")
        return 1 if first else 0
    if first is None:
        print(text("doctor.compared_equal", lang, events=events))
    else:
        print(text("doctor.compared_differ", lang))
        print("\n".join(told.where(first, lang)))
    for name, x, y in environment:
        print(text("doctor.environment_differs", lang, name=name, a=x, b=y))
    return 1 if first else 0


def write(report: Report, lang: str, *, folder: Path | None, page: Path | None) -> None:
    """Keep the records in a new `folder`, and write the report to a `page` that stands alone, where they are asked for."""
    from repro_tutorial.doctor.page import page as html

    if folder is not None:
        keep(report, folder, lang)
    if page is not None:
        write_new(page, html(report, lang).encode("utf-8"))

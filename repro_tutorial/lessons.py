"""Read the manifest of the lessons, demos/lessons.toml, and make the records that it names.

``python -m repro_tutorial.lessons [SLUG ...]`` runs the experiments of the lessons named, or of all, and
writes docs/assets/records/: nothing else writes there. Slow ones stay as they were recorded until
``SLUG:EXPERIMENT`` names one.
"""

import json
import sys
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from repro_tutorial.messages import LANGUAGES, InputError
from repro_tutorial.processes import load_file
from repro_tutorial.runs import FORMAT_VERSION, Record, dump


@dataclass(frozen=True)
class Lesson:
    """One lesson: the slug that names its files, and what the map says of it in each language.

    `experiments` are the runs that its published record holds: name and the demo's arguments. A lesson
    that is `planned` has no files yet. `slow` are further experiments in the record, which take minutes or
    need data that not everybody has: neither ``make records`` nor the tests run them whole. `fault` says what the lesson's exercise plants in a script.
    """

    slug: str
    title: Mapping[str, str]
    claim: Mapping[str, str]
    experiments: Mapping[str, str] = field(default_factory=dict)
    slow: Mapping[str, str] = field(default_factory=dict)
    planned: bool = False
    fault: str = ""

    def files(self) -> tuple[Path, ...]:
        """The files that the lesson must have, relative to the repository's root."""
        if self.planned:
            return ()
        pages = [Path("docs", lang, "lessons", f"{self.slug}.md") for lang in LANGUAGES]
        return (Path("demos", f"{self.slug}.py"), *pages, self.record())

    def recorded(self) -> dict[str, str]:
        """All experiments of the published record, slow ones too: name and the demo's arguments."""
        return {**self.experiments, **self.slow}

    def record(self) -> Path:
        """The published record, relative to the repository's root."""
        return Path("docs", "assets", "records", f"{self.slug}.cpu.json")


def find_root() -> Path:
    """The checkout that this package is installed from.

    Raises:
        InputError: the package was installed without the demos.
    """
    root = Path(__file__).resolve().parent.parent
    if not (root / "demos" / "lessons.toml").is_file():
        raise InputError("lessons.no_checkout")
    return root


def load_lessons(root: Path) -> tuple[Lesson, ...]:
    """The lessons of ``demos/lessons.toml`` under `root`, in teaching order.

    Raises:
        InputError: the manifest is no TOML, or a row has an unknown key or lacks one.
    """
    path = root / "demos" / "lessons.toml"
    try:
        rows = tomllib.loads(path.read_text(encoding="utf-8")).get("lesson", [])
    except tomllib.TOMLDecodeError as error:
        raise InputError("lessons.bad_manifest", file=path.name, problem=str(error)) from error
    return tuple(_lesson(row, path) for row in rows)


def _lesson(row: Mapping[str, Any], path: Path) -> Lesson:
    try:
        lesson = Lesson(**row)
    except TypeError as error:  # names the key
        problem = f"{row.get('slug')}: {error}"
        raise InputError("lessons.bad_manifest", file=path.name, problem=problem) from error
    if lesson.planned == bool(lesson.experiments):
        problem = f"{lesson.slug}: either planned or with experiments"
        raise InputError("lessons.bad_manifest", file=path.name, problem=problem)
    return lesson


def load_demo(root: Path, slug: str) -> ModuleType:
    """The demo of a lesson as a module, run as far as its functions."""
    return load_file(root / "demos" / f"{slug}.py")


def record_lesson(root: Path, lesson: Lesson, names: Collection[str] = ()) -> None:
    """Run the experiments `names`, by default all but the slow ones, and replace the published record.

    It is replaced whole or not at all; what was not run stays in it as it was.
    """
    demo = load_demo(root, lesson.slug)
    path = root / lesson.record()
    fresh = {}
    for name in names or lesson.experiments:
        record: Record = demo.main([*lesson.recorded()[name].split(), "--lang", "en"])
        fresh[name] = record.to_json()
        del fresh[name]["format_version"]
    # Read only now: another process may have recorded another experiment while this one ran.
    published = json.loads(path.read_text(encoding="utf-8"))["experiments"] if path.is_file() else {}
    experiments = published | fresh
    experiments = {name: experiments[name] for name in lesson.recorded() if name in experiments}
    data = {"format_version": FORMAT_VERSION, "lesson": lesson.slug, "experiments": experiments}
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(dump(data), encoding="utf-8")
    partial.replace(path)


def main(asked: Sequence[str]) -> None:
    """Record what is `asked`: lessons, or experiments as lesson:experiment; or all lessons, without slow ones.

    Raises:
        InputError: there is no such lesson, or it has no such experiment.
    """
    root = find_root()
    lessons = {lesson.slug: lesson for lesson in load_lessons(root) if lesson.experiments}
    for one in asked or lessons:
        slug, _, name = one.partition(":")
        if slug not in lessons or (name and name not in lessons[slug].recorded()):
            known = [
                *lessons,
                *(f"{lesson.slug}:{slow}" for lesson in lessons.values() for slow in lesson.slow),
            ]
            raise InputError("lessons.unknown", slug=one, known=known)
    for one in asked or lessons:
        slug, _, name = one.partition(":")
        record_lesson(root, lessons[slug], [name] if name else [])


if __name__ == "__main__":
    main(sys.argv[1:])

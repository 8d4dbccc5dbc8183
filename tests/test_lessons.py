"""The manifest and the tree agree both ways; the README's map is the manifest; records are what a run gives now."""

import re
from pathlib import Path

import pytest

from repro_tutorial.divergence import compare, distinct_outcomes
from repro_tutorial.lessons import Lesson, find_root, load_demo, load_lessons, main as record_main
from repro_tutorial.messages import InputError
from repro_tutorial.runs import Record, load_experiments

ROOT = Path(__file__).parent.parent
LESSONS = load_lessons(ROOT)
READY = [lesson for lesson in LESSONS if not lesson.planned]

ACROSS_MACHINES = 5e-5  # relative; the last digits belong to the processor, BLAS and thread count


def test_every_lesson_has_all_its_files():
    missing = [str(file) for lesson in READY for file in lesson.files() if not (ROOT / file).is_file()]
    assert missing == []


def test_no_file_lies_about_that_no_lesson_names():
    named = {file for lesson in READY for file in lesson.files()}
    kinds = ["demos/*.py", "docs/*/lessons/*.md", "docs/assets/records/*"]
    strays = {path.relative_to(ROOT) for kind in kinds for path in ROOT.glob(kind)} - named
    assert strays == set()


def test_every_lesson_says_its_claim_in_both_languages():
    for lesson in LESSONS:
        assert lesson.title.keys() == lesson.claim.keys() == {"en", "zh"}, lesson.slug
    assert len({lesson.slug for lesson in LESSONS}) == len(LESSONS)


def test_a_lesson_says_which_fault_its_exercise_plants():
    assert all(re.fullmatch(r"[A-Z][^\n]{20,}\.", lesson.fault) for lesson in READY)
    assert not any(lesson.fault for lesson in LESSONS if lesson.planned)


def test_the_readme_maps_the_lessons():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)`( \(in preparation\))? \| (.+) \|$", readme, re.MULTILINE)
    assert rows == [
        (lesson.slug, " (in preparation)" if lesson.planned else "", lesson.claim["en"]) for lesson in LESSONS
    ]


@pytest.mark.parametrize("lesson", READY, ids=lambda lesson: lesson.slug)
def test_a_demo_begins_with_its_claim_and_its_command(lesson):
    doc = load_demo(ROOT, lesson.slug).__doc__
    assert doc.startswith(lesson.claim["en"])
    assert f"python demos/{lesson.slug}.py" in doc


EXPERIMENTS = [
    pytest.param(lesson, name, id=f"{lesson.slug}-{name}") for lesson in READY for name in lesson.experiments
]
# Nobody reruns these whole: they take minutes, or data that not everybody has. Their lesson's own test file reruns
# the first part.
SLOW = [pytest.param(lesson, name, id=f"{lesson.slug}-{name}") for lesson in READY for name in lesson.slow]


def published(lesson: Lesson, name: str) -> Record:
    return load_experiments(ROOT / lesson.record())[name]


@pytest.mark.parametrize(("lesson", "name"), EXPERIMENTS + SLOW)
def test_a_record_is_measured_right(lesson, name):
    """Every published divergence, recomputed from the published runs."""
    record = published(lesson, name)
    assert record.command == f"python demos/{lesson.slug}.py {lesson.recorded()[name]}".strip()
    assert record.results["different"] == distinct_outcomes(record.runs)
    if len(record.runs) == 2 and "divergence" in record.results:
        assert record.results["divergence"] == compare(*record.runs).summary()


# Rerun by `make slow` only: each takes over ten seconds, and its lesson's own test file runs a shorter one.
LONG = {
    ("cifar_cudnn", "unseeded"),
    ("cifar_cudnn", "switched"),
    ("float_order", "order"),
    ("frameworks", "own"),
    ("multi_gpu_seeding", "ddp"),
    ("nondeterministic_ops", "compiled"),
    ("nondeterministic_ops", "operators"),
    ("seed_variance", "seeds"),
}
RERUN = [
    pytest.param(
        *one.values,
        id=one.id,
        marks=[pytest.mark.slow] if (one.values[0].slug, one.values[1]) in LONG else [],
    )
    for one in EXPERIMENTS
]


@pytest.mark.parametrize(("lesson", "name"), RERUN)
def test_a_fresh_run_gives_what_is_published(lesson, name, capsys):
    """Claims bit for bit; values within the tolerance between machines; what no seed fixes, not at all."""
    record = published(lesson, name)
    # Where small differences grow, the record says up to which step they stay below any tolerance.
    settled = record.results.get("settled")

    fresh = load_demo(ROOT, lesson.slug).main([*lesson.experiments[name].split(), "--lang", "en"])

    assert fresh.command == record.command
    assert fresh.results["different"] == record.results["different"]
    assert len(fresh.transcript) == len(record.transcript)
    for ours, theirs in zip(fresh.runs, record.runs, strict=True):
        assert ours.metrics.keys() == theirs.metrics.keys()
        if ours.seed is not None:
            for metric, values in theirs.metrics.items():
                assert len(ours.metrics[metric]) == len(values), metric
                assert ours.metrics[metric][:settled] == pytest.approx(
                    values[:settled], rel=ACROSS_MACHINES
                ), metric


def test_a_record_holds_what_the_manifest_names():
    for lesson in READY:
        assert load_experiments(ROOT / lesson.record()).keys() == lesson.recorded().keys(), lesson.slug


def test_slow_experiments_are_recorded_one_by_one_and_kept(tmp_path, monkeypatch):
    """`make records` runs the quick ones and leaves the slow one as it was."""
    (tmp_path / "demos").mkdir()
    demo = """
from repro_tutorial.runs import Record, Run

def main(argv):
    print("ran", *argv[:-2])
    return Record("x", " ".join(argv[:-2]), "2026-11-30", {}, (Run("a", 3, {"loss": (1.0,)}),), {}, ())
"""
    (tmp_path / "demos" / "x.py").write_text(demo)
    row = 'slug = "x"\ntitle = {}\nclaim = {}\nexperiments = { quick = "--q" }\nslow = { long = "--l" }'
    (tmp_path / "demos" / "lessons.toml").write_text(f"[[lesson]]\n{row}\n")
    monkeypatch.setattr("repro_tutorial.lessons.find_root", lambda: tmp_path)
    path = tmp_path / "docs" / "assets" / "records" / "x.cpu.json"
    record_main(["x:long"])
    assert list(load_experiments(path)) == ["long"]
    record_main([])
    record_main(["x"])
    assert {name: one.command for name, one in load_experiments(path).items()} == {
        "quick": "--q",
        "long": "--l",
    }
    for wrong in ("y", "x:other", "y:long"):
        with pytest.raises(InputError, match="there is no such lesson; there are x, x:long"):
            record_main([wrong])


def test_records_are_small():
    assert all((ROOT / lesson.record()).stat().st_size < 200_000 for lesson in READY)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ('slug = "x"', "missing 2 required positional arguments"),
        ('slug = "x"\ntitle = {}\nclaim = {}\nhint = 3', "unexpected keyword argument 'hint'"),
        ('slug = "x"\ntitle = {}\nclaim = {}', "either planned or with experiments"),
        ("slug = ", "Invalid value"),
    ],
    ids=["lacks", "unknown", "neither", "no TOML"],
)
def test_a_bad_manifest_is_refused(row, problem, tmp_path):
    (tmp_path / "demos").mkdir()
    (tmp_path / "demos" / "lessons.toml").write_text(f"[[lesson]]\n{row}\n")
    with pytest.raises(InputError, match=problem):
        load_lessons(tmp_path)


def test_a_package_without_its_demos_says_so(monkeypatch, tmp_path):
    import repro_tutorial.lessons

    monkeypatch.setattr(repro_tutorial.lessons, "__file__", str(tmp_path / "a" / "b" / "lessons.py"))
    with pytest.raises(InputError, match="this package was installed without the demos"):
        find_root()

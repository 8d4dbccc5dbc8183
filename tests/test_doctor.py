"""The doctor: digests that miss nothing, the first difference, the smallest cause, and whole examinations."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from planted import check

from repro_tutorial.doctor import page, report as told
from repro_tutorial.doctor.compare import (
    Difference,
    Records,
    first_difference,
    fractions_differ,
    has_spread,
    printed_differences,
)
from repro_tutorial.doctor.diagnose import Report
from repro_tutorial.doctor.experiments import Unit, _explain
from repro_tutorial.doctor.inside import digests
from repro_tutorial.doctor.inside.streams import EVENT, Book
from repro_tutorial.doctor.kinds import LESSONS, Cause, at, before_the_seed
from repro_tutorial.lessons import load_lessons

ROOT = Path(__file__).parent.parent
PLANTED = ROOT / "tests" / "planted"

linux = pytest.mark.skipif(sys.platform != "linux", reason="the private view is Linux's")

# Examined by default; the others take an hour together: make slow.
QUICK = ("private_numpy_generator", "run_name_and_times")


# Digests ------------------------------------------------------------------------------------------------


def changed(tensor: torch.Tensor, how: str) -> torch.Tensor:
    new = tensor.clone()
    if how == "one ulp":
        new[3, 5] = torch.nextafter(new[3, 5], torch.tensor(9.0))
    elif how == "two swapped":
        new[0, 0], new[0, 1] = tensor[0, 1], tensor[0, 0]
    elif how == "rows":
        new = new.flip(0)
    elif how == "two signs":
        new[0, :2] *= -1
    elif how == "all signs":
        new = -new
    elif how == "doubled":
        new *= 2
    elif how == "shape":
        new = new.reshape(-1)
    return new


@pytest.mark.parametrize(
    "how", ["one ulp", "two swapped", "rows", "two signs", "all signs", "doubled", "shape"]
)
@pytest.mark.parametrize("layout", ["contiguous", "transposed", "gaps"])
def test_a_digest_notices_every_change(how, layout):
    tensor = torch.randn(8, 16, generator=torch.Generator().manual_seed(0))
    lay_out = {
        "contiguous": lambda t: t.clone(),
        "transposed": lambda t: t.clone().t(),
        "gaps": lambda t: t.repeat_interleave(2, -1)[..., ::2],
    }[layout]

    assert digests.of_tensor(lay_out(tensor)) == digests.of_tensor(lay_out(tensor))
    assert digests.of_tensor(lay_out(tensor)) != digests.of_tensor(lay_out(changed(tensor, how)))


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.complex64, torch.bool, torch.uint8, torch.int64]
)
def test_digests_of_every_kind_of_number(dtype):
    tensor = torch.ones(4, 4, dtype=dtype)
    other = tensor.clone()
    other[0, 0] = 0

    assert digests.of_tensor(tensor) == digests.of_tensor(tensor.clone())
    assert digests.of_tensor(tensor) != digests.of_tensor(other)


def test_equal_nan_are_equal_and_zeros_have_signs():
    nan = torch.tensor([float("nan"), 0.0])

    assert digests.of_tensor(nan) == digests.of_tensor(nan.clone())
    assert digests.of_tensor(torch.tensor([0.0])) != digests.of_tensor(torch.tensor([-0.0]))
    assert digests.of_scalar(float("nan")) == digests.of_scalar(float("nan"))
    assert len({digests.of_scalar(value) for value in (0, -1, -2, 1, 1.0, 2**63, -(2**62), 0.5, -0.5)}) == 9


def test_sparse_tensors_are_seen():
    one = torch.sparse_coo_tensor([[0, 1]], [1.0, 2.0], (3,), check_invariants=True)
    other = torch.sparse_coo_tensor([[0, 2]], [1.0, 2.0], (3,), check_invariants=True)

    assert digests.of_tensor(one) == digests.of_tensor(one.clone())
    assert digests.of_tensor(one) != digests.of_tensor(other)


# Two runs side by side ------------------------------------------------------------------------------------


def written(folder: Path, events: list[tuple[str, str, int, int]], role: str = "main") -> Records:
    folder.mkdir(exist_ok=True)
    book = Book(str(folder), role, 0.0)
    for event in events:
        book.event(*event)
    book.close()
    return Records(folder)


STEP = [("mm", "a.py:1 f", 1, 2), ("add", "a.py:2 f", 3, 4), ("weights", "", 0, 5)]


def test_an_event_takes_24_bytes(tmp_path):
    written(tmp_path / "a", STEP * 100)
    assert EVENT.size == 24
    assert (tmp_path / "a" / "main.events").stat().st_size == 300 * 24


@pytest.mark.parametrize(
    ("changes", "index", "kind"),
    [
        ({1: ("add", "a.py:2 f", 3, 9)}, 1, "output"),
        ({1: ("add", "a.py:2 f", 9, 4)}, 1, "input"),
        ({1: ("sub", "a.py:2 f", 3, 4)}, 1, "operator"),
        ({1: ("add", "a.py:3 f", 3, 4)}, 1, "operator"),
    ],
)
def test_the_first_difference_and_its_kind(changes, index, kind, tmp_path):
    a = written(tmp_path / "a", STEP)
    b = written(tmp_path / "b", [changes.get(i, event) for i, event in enumerate(STEP)])

    found = first_difference(a, b)

    assert found is not None
    assert (found.index, found.kind, found.role) == (index, kind, "main")


def test_names_are_compared_by_their_text_and_a_missing_event_counts_once_both_ended(tmp_path):
    a = written(tmp_path / "a", STEP)
    other = written(tmp_path / "b", [("first", "b.py:1 g", 0, 0), *STEP])
    shorter = written(tmp_path / "c", STEP[:2])

    assert first_difference(a, a) is None
    assert first_difference(a, other).operator == "first"
    assert first_difference(a, shorter, ended=False) is None
    assert first_difference(a, shorter).kind == "length"


def test_the_earliest_of_several_processes_is_first(tmp_path):
    for name in "ab":
        written(tmp_path / name, STEP)
    a, b = Records(tmp_path / "a"), Records(tmp_path / "b")
    written(tmp_path / "a", STEP, "main.1")
    written(tmp_path / "b", [("mm", "a.py:1 f", 1, 9)], "main.1")

    assert first_difference(a, b).role == "main.1"


def test_a_difference_that_reaches_nothing_has_not_spread(tmp_path):
    drawn = [("random_", "a.py:9 f", 1, 1), ("_local_scalar_dense", "a.py:9 f", 1, 1)]
    other = [("random_", "a.py:9 f", 2, 2), ("_local_scalar_dense", "a.py:9 f", 2, 2)]
    a = written(tmp_path / "a", drawn + STEP * 20)

    assert not has_spread(a, written(tmp_path / "b", other + STEP * 20))
    assert has_spread(a, written(tmp_path / "c", other + STEP * 19 + [*STEP[:2], ("weights", "", 0, 6)]))


def test_results_are_told_from_times_and_names_by_the_caller():
    assert printed_differences("a\nb", "a\nc\nd") == [("b", "c"), ("", "d")]
    assert fractions_differ([("loss 0.51", "loss 0.52")])
    assert fractions_differ([("loss nan", "loss 0.5")])
    assert not fractions_differ(
        [("pid 17", "pid 18"), ("run 3e5f10ab", "run 77e12abc"), ("v1.2.3", "v1.2.4")]
    )


# The smallest cause ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", [{3}, {0, 7}, {1, 2, 6}, {5, 6}])
def test_the_smallest_part_that_suffices_is_found_in_few_runs(wanted):
    units = [[Unit("clock", str(i))] for i in range(8)]
    runs = 0

    def suffices(chosen):
        nonlocal runs
        runs += 1
        return wanted <= {int(unit.site) for group in chosen for unit in group}

    found = {int(unit.site) for group in _explain([], False, units, suffices) for unit in group}

    assert found == wanted
    assert runs <= 4 * len(wanted) + 4


def test_places_are_read_from_stacks():
    assert at("pkg/train.py:12 f <- main.py:3 <module> << x.py:1 g") == ("pkg/train.py", 12)
    assert at("") == ("", None)
    draw = "net.py:9 __init__ <- train.py:20 <module>"
    assert before_the_seed(draw, "train.py:14 fit <- train.py:21 <module>") == "train.py:20 <module>"
    assert before_the_seed("a.py:3 <module>", "a.py:5 <module>") == "a.py:3 <module>"


# What is told ---------------------------------------------------------------------------------------------

FOUND = Report(
    "differs",
    "train.py --epochs 1",
    runs=5,
    first=Difference("main", 7, 120, "addmm", "net.py:9 forward <- train.py:20 <module>", "input", 2),
    causes=[Cause("unseeded_numpy", "train.py", 12, True, "numpy"), Cause("clock", "train.py", 30, False)],
)


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_report_says_where_what_why_and_what_to_do(lang):
    lines = list(told.as_text(FOUND, lang))
    text = "\n".join(lines)

    assert "train.py --epochs 1" in lines[0]
    assert text.index("net.py:9") < text.index("train.py:12") < text.index("numpy.random.seed(0)")
    assert text.index("numpy.random.seed(0)") < text.index("train.py:30")


@pytest.mark.parametrize("kind", LESSONS)
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_every_cause_has_advice_and_a_lesson(kind, lang):
    generator = kind.removeprefix("unseeded_") if kind.startswith("unseeded_") else "torch"
    said = told.advice(Cause(kind, "a.py", 1, True, generator), lang)
    assert said
    assert (
        not kind.startswith("unseeded_") or kind == "unseeded_generator" or told.SEED_CALLS[generator] in said
    )
    assert LESSONS[kind] in {lesson.slug for lesson in load_lessons(ROOT)}


def test_json_has_what_programs_ask_for():
    data = json.loads(json.dumps(told.as_json(FOUND, "en")))

    assert data["verdict"] == "differs"
    assert data["first_difference"]["line"] == 9
    assert [cause["proved"] for cause in data["causes"]] == [True, False]
    assert {"kind", "file", "line", "proved", "advice"} <= data["causes"][0].keys()


def test_the_page_stands_alone_and_is_escaped():
    html = page.page(Report("unknown", "<b>.py", reason={"key": "doctor.deletes_itself", "values": {}}), "en")

    assert "&lt;b&gt;.py" in html
    assert "<b>" not in html
    assert "http" not in html


# Whole examinations ---------------------------------------------------------------------------------------


def programs() -> list:
    found = []
    for folder in sorted(PLANTED.glob("*/*/")):
        if (folder / "train.py").exists():
            marks = [linux] if folder.name in QUICK else [linux, pytest.mark.slow]
            found.append(pytest.param(folder, id=folder.name, marks=marks))
    return found


@pytest.mark.parametrize("folder", programs())
def test_a_planted_program_gets_its_verdict_cause_and_line(folder):
    report = check.examine(folder)

    assert check.is_right(folder, report), report


def test_the_check_of_planted_programs_can_fail():
    folder = PLANTED / "bad" / "torch_unseeded"
    line = next(
        i for i, text in enumerate((folder / "train.py").read_text().splitlines(), 1) if "culprit" in text
    )
    cause = {"kind": "unseeded_torch", "line": line, "proved": True}

    assert check.is_right(folder, {"verdict": "differs", "causes": [cause]})
    assert not check.is_right(folder, {"verdict": "differs", "causes": [cause | {"line": line + 1}]})
    assert not check.is_right(folder, {"verdict": "differs", "causes": [cause | {"kind": "clock"}]})
    assert not check.is_right(folder, {"verdict": "reproduces", "causes": [cause]})
    assert not check.is_right(folder, {"verdict": "differs", "causes": [cause], "touched": True})


def doctor(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "repro_tutorial", "doctor", "--lang", "en", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


@linux
def test_records_are_kept_compared_and_drawn(tmp_path):
    (tmp_path / "train.py").write_text(
        "import torch, sys\n"
        "torch.manual_seed(int(sys.argv[1]))\n"
        "net = torch.nn.Linear(2, 1)\n"
        "optimizer = torch.optim.SGD(net.parameters(), lr=0.1)\n"
        "for _ in range(4):\n"
        "    loss = net(torch.ones(3, 2)).square().mean()\n"
        "    optimizer.zero_grad()\n"
        "    loss.backward()\n"
        "    optimizer.step()\n"
        "    print(loss.item())\n"
    )
    done = doctor(tmp_path, "--keep", "one", "--html", "report.html", "--steps", "3", "train.py", "--", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert len((tmp_path / "one" / "a" / "printed.txt").read_text().splitlines()) == 2  # stopped in step 3
    html = (tmp_path / "report.html").read_text()
    assert "<svg" in html
    assert "REPRODUCES" in html

    # Another machine's record: one bit of one result is not the same.
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    events = tmp_path / "two" / "a" / "main.events"
    data = bytearray(events.read_bytes())
    data[EVENT.size * 5 - 1] ^= 1
    events.write_bytes(data)
    environment = tmp_path / "two" / "environment.json"
    environment.write_text(environment.read_text().replace('"torch": "', '"torch": "9.'))
    parted = doctor(tmp_path, "compare", "one", "two")
    same = doctor(tmp_path, "compare", "one", "one")
    nothing = doctor(tmp_path, "compare", "one", "nothing")

    assert parted.returncode == 1
    assert "the same inputs, and another result" in parted.stdout
    assert "environment: torch is" in parted.stdout
    assert same.returncode == 0
    assert nothing.returncode == 2
    assert "nothing" in nothing.stderr


# In one's own tests ---------------------------------------------------------------------------------------


def test_a_function_that_seeds_itself_passes(assert_reproducible):
    def fit():
        torch.manual_seed(0)
        return {"weights": torch.rand(3), "order": np.random.default_rng(0).permutation(4)}

    assert_reproducible(fit, runs=3)


@pytest.mark.parametrize(
    ("draw", "named"),
    [
        (lambda: torch.rand(3) + 1, "torch.manual_seed(0)"),
        (lambda: [np.random.rand(3)], "numpy.random.seed(0)"),
        (lambda: __import__("random").random(), "random.seed(0)"),
    ],
)
def test_a_function_that_draws_unseeded_fails_and_is_told_of_which_generator(
    draw, named, assert_reproducible
):
    with pytest.raises(AssertionError, match="differs from the first") as failure:
        assert_reproducible(draw)
    assert named in str(failure.value)


def test_a_private_generator_is_told_apart_from_the_global_ones(assert_reproducible):
    rng = np.random.default_rng(0)
    with pytest.raises(AssertionError) as failure:
        assert_reproducible(lambda: torch.from_numpy(rng.random(3)))
    assert "seed(0)" not in str(failure.value)

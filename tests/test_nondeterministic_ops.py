"""The lesson's claims: one seed, two threads, several results; each cure leaves one; nothing of a caller's changes."""

import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from demo_runs import lines, run_demo

from repro_tutorial.determinism import deterministic, get_switches
from repro_tutorial.lessons import load_demo
from repro_tutorial.messages import InputError, Transcript
from repro_tutorial.rng_state import advanced_generators, get_rng_state
from repro_tutorial.runs import Record

ROOT = Path(__file__).parent.parent
demo = partial(run_demo, "nondeterministic_ops")
DEMO = ROOT / "demos" / "nondeterministic_ops.py"
ops = load_demo(ROOT, "nondeterministic_ops")
CURED = [*ops.CURES][1:]

needs_two_cores = pytest.mark.skipif(ops.cores() < 2, reason="threads race on two cores alone")


@pytest.fixture(scope="module")
def default() -> Record:
    """The demo as it comes: its two runs and a hundred tries without a cure and with each."""
    return ops.main(["--lang", "en"])


@pytest.fixture(scope="module")
def tried() -> Record:
    return ops.main(["--show", "operators", "--tries", "5", "--runs", "1", "--lang", "en"])


# Without a cure they differ, with each they repeat ----------------------------------------------------------


@needs_two_cores
def test_two_trainings_from_one_seed_differ(default):
    first, second = default.runs
    assert default.results["different"] == 2
    assert first.seed == second.seed == 3
    assert first.switches["threads"] == 2
    assert first.metrics["loss"][0] == second.metrics["loss"][0], "they start equal"
    assert any(line.startswith("2 runs, 2 different: part at step ") for line in lines(default))


@pytest.mark.parametrize("cure", CURED)
def test_with_a_cure_the_trainings_are_equal(cure):
    record = ops.main(["--cure", cure, "--tries", "1", "--lang", "en"])
    assert record.results["different"] == 1
    assert record.runs[0].metrics == record.runs[1].metrics
    assert record.runs[0].fingerprints == record.runs[1].fingerprints
    assert record.runs[0].switches["threads"] == (1 if cure == "one-thread" else 2)
    assert record.runs[0].switches["deterministic_algorithms"] == (cure == "algorithms")
    assert "2 runs: identical bit for bit" in lines(record)
    assert list(record.results["gradients"]) == ["none", cure]


@needs_two_cores
def test_a_hundred_tries_give_two_gradients_or_more_and_one_with_each_cure(default):
    gradients = default.results["gradients"]
    assert list(gradients) == [*ops.CURES]
    assert gradients["none"]["table"] >= 2
    assert gradients["none"]["index_put"] >= 2
    for cure in CURED:
        assert (gradients[cure]["table"], gradients[cure]["index_put"]) == (1, 1), cure


def test_the_cures_compute_the_same_gradient_up_to_rounding():
    index = torch.arange(40_000) % ops.USERS
    weight = torch.rand(40_000, ops.WIDTH, generator=torch.Generator().manual_seed(0))
    by_cure = [
        ops.gradient(lambda t, cure=cure: ops.rows_of(t, index, cure), (ops.USERS, ops.WIDTH), weight)
        for cure in ("none", "embedding")
    ]
    exact = torch.zeros(ops.USERS, ops.WIDTH, dtype=torch.float64).index_add_(0, index, weight.double())
    for found in by_cure:
        torch.testing.assert_close(found.double(), exact, rtol=1e-4, atol=1e-4)


# Operators, errors, memory ----------------------------------------------------------------------------------


def test_operators_are_tried_not_listed_by_hand(tried, monkeypatch):
    rows = tried.results["operators"]
    assert len(rows) == len(ops.operators("cpu")) == 13
    assert {name for name, row in rows.items() if row["error"]} == {"put_", "max_unpool2d"}
    assert all(row["deterministic"] == 1 for row in rows.values() if not row["error"])
    assert {name for name, row in rows.items() if row["seeded"]} == {"dropout, same seed"}
    for name in ("index_add_", "scatter_add_", "grad of F.embedding", "cumsum", "dropout, same seed"):
        assert rows[name]["different"] == 1, name

    made = iter(range(100))
    monkeypatch.setattr(ops, "operators", lambda device: named)
    named = {
        name: ("cumsum", lambda: torch.tensor(next(made))) for name in ("put_", "index_put_, accumulate", "x")
    }
    again = ops.try_operators(Transcript("en"), 3, "cpu")["operators"]
    assert again["x"] == {"seeded": False, "error": "", "different": 3, "deterministic": 3}


def test_the_tags_are_pytorchs_own(tried):
    seeded = ops.tagged("nondeterministic_seeded")
    assert {"dropout", "rand", "bernoulli", "multinomial"} <= seeded
    assert not {"index_put_", "put_", "add"} & seeded
    assert tried.results["tags"] == {"nondeterministic_seeded": len(seeded), "nondeterministic_bitwise": 0}
    assert ops.tagged("no_such_tag") == set()


def test_the_error_is_shown_in_pytorchs_words(tried):
    error = tried.results["operators"]["put_"]["error"]
    with deterministic(), pytest.raises(RuntimeError) as caught:
        torch.zeros(3).put_(torch.tensor([0]), torch.tensor([1.0]))
    assert error == str(caught.value)
    assert error.startswith("put_ does not have a deterministic implementation")
    start = lines(tried).index("The error of put_, in PyTorch's words:")
    assert error.startswith(" ".join(lines(tried)[start + 1 : start + 4]))


def test_warn_only_warns_where_there_is_no_deterministic_version(tried):
    told = tried.results["warn_only"]
    assert (told["put_warned"], told["index_put_warned"], told["index_put"]) == (5, 0, 1)


def test_index_put_may_take_the_place_of_put():
    """The page's example of another operator with the same result."""
    place, value = torch.tensor([3, 1]), torch.tensor([5.0, 6.0])
    with deterministic():
        replaced = torch.zeros(4).index_put_((place,), value)
    assert torch.equal(replaced, torch.zeros(4).put_(place, value))


def test_unwritten_memory_is_filled_with_what_shows_a_fault_or_hides_it(tried):
    assert tried.results["fill"] == {
        "plain": 4,
        "filled": 4,
        "unfilled": 4,
        "whole": torch.iinfo(torch.int64).max,
        "size": 4,
    }


# Compiled random numbers ------------------------------------------------------------------------------------


@pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="needs a C++ compiler")
def test_compiled_code_draws_other_numbers_unless_told_otherwise():
    record = ops.main(["--show", "compile", "--runs", "1", "--lang", "en"])
    found = record.results["compile"]
    assert found["again"] == found["fallback"] == ops.DROPPED
    assert 0.45 < found["compiled"] / ops.DROPPED < 0.55, "as if by tossing a coin"
    assert "with fallback_random with eager in 10,000" in lines(record)[-1]


def test_without_a_compiler_that_is_said_in_one_line(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    record = ops.main(["--show", "compile", "--runs", "1", "--lang", "en"])
    assert lines(record)[-1].startswith("torch.compile: no C++ compiler found here")
    assert "compile" not in record.results


# Output, record, figure -------------------------------------------------------------------------------------


def test_the_output_names_threads_cores_and_cure(default):
    assert lines(default)[0] == f"Device: cpu; threads: 2, on {ops.cores()} cores; cure: none"
    losses = [run.metrics["loss"] for run in default.runs]
    for place, step in enumerate(range(4, 21, 4), start=1):
        assert lines(default)[place].split() == [str(step), *(str(of[step - 1]) for of in losses)]


def test_the_chinese_output_has_the_same_numbers(capsys):
    arguments = ["--cure", "embedding", "--tries", "2", "--runs", "3"]
    record = ops.main([*arguments, "--lang", "zh"])
    out = capsys.readouterr().out.splitlines()
    assert out == lines(record, "zh")
    assert "3 次运行：逐位相同" in out
    for chinese, english in zip(out, lines(record, "en"), strict=True):
        assert sorted(re.findall(r"[\d.]*\d", chinese)) == sorted(re.findall(r"[\d.]*\d", english)) or (
            "不加处理为 1" in chinese
        )


def test_one_run_has_nothing_to_compare():
    record = ops.main(["--cure", "one-thread", "--runs", "1", "--tries", "1", "--lang", "en"])
    assert "1 run: nothing to compare; leave --runs out to make two" in lines(record)


def test_the_callers_state_stays_as_it_was():
    before, switches = get_rng_state(), get_switches()
    ops.main(["--cure", "algorithms", "--tries", "1"])
    assert advanced_generators(before, get_rng_state()) == ()
    assert get_switches() == switches
    with pytest.raises(ZeroDivisionError), ops.cured("algorithms"):
        _ = 1 / 0
    assert get_switches() == switches


def test_a_caller_with_deterministic_algorithms_does_not_cure_the_demo():
    with deterministic(), ops.cured("none"):
        assert not torch.are_deterministic_algorithms_enabled()


def test_the_record_and_the_plot_are_written(tmp_path):
    files = tmp_path / "a.json", tmp_path / "a.svg"
    arguments = ["--seed", "4", "--cure", "one-thread", "--tries", "1"]
    record = ops.main([*arguments, "--json", str(files[0]), "--plot", str(files[1])])
    assert Record.load(files[0]).runs == record.runs
    assert Record.load(files[0]).command == f"python demos/nondeterministic_ops.py {' '.join(arguments)}"
    assert record.runs[0].seed == 4
    assert "<svg" in files[1].read_text(encoding="utf-8")
    assert sorted(tmp_path.iterdir()) == sorted(files)


# Bad input --------------------------------------------------------------------------------------------------

BAD = [
    (["--cure", "hope"], "argument --cure: invalid choice: 'hope'"),
    (["--show", "all"], "argument --show: invalid choice: 'all'"),
    (["--tries", "0"], "argument --tries: needs a whole number from 1, but was given '0'"),
    (["--seed", "-1"], "cannot seed with -1: a seed is a whole number from 0 to 4294967295"),
    (["--runs", "0"], "argument --runs: needs a whole number from 1, but was given '0'"),
    (["--device", "mps"], "cannot compute on mps: PyTorch finds no such device here"),
]


@pytest.mark.parametrize(("arguments", "line"), BAD, ids=[" ".join(arguments) for arguments, _ in BAD])
def test_bad_input_gets_one_clear_line_before_any_work(arguments, line, capsys):
    if arguments[-1] == "mps" and torch.backends.mps.is_available():
        pytest.skip("this machine has the device")
    with pytest.raises(InputError) as caught:
        ops.main([*arguments, "--lang", "en"])
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)
    assert capsys.readouterr().out == ""


def test_bad_input_ends_the_program_with_2_in_either_language():
    for lang, start in (
        ("en", "nondeterministic_ops.py: error: "),
        ("zh", "nondeterministic_ops.py：错误："),
    ):
        done = demo("--cure", "hope", "--lang", lang)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(start)
        assert done.stderr.count("\n") == 1


# The pages --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_example_on_the_page_prints_what_it_says(lang):
    page = (ROOT / "docs" / lang / "lessons" / "nondeterministic_ops.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    code = re.sub(r"^ {4}", "", block, flags=re.MULTILINE)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert f"`{done.stdout.strip()}`" in page


def test_what_the_page_says_of_cuda_is_what_the_documentation_says():
    """No GPU here: the page quotes the list, and these two must stand in it."""
    _, _, throwing = torch.use_deterministic_algorithms.__doc__.partition("operations will throw")
    for name in ("torch.nn.functional.interpolate", "torch.histc"):
        assert f"`{name}`" in throwing

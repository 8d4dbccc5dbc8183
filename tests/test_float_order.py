"""The lesson's claims: another order gives another sum, and a last bit grows; the same order repeats on every bit."""

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from demo_runs import lines

from repro_tutorial.determinism import one_thread
from repro_tutorial.divergence import compare, distinct_outcomes, noise_floor, ulp_distance
from repro_tutorial.lessons import load_demo
from repro_tutorial.messages import InputError
from repro_tutorial.rng_state import advanced_generators, get_rng_state, isolate_rng
from repro_tutorial.runs import Record, Run, load_experiments
from repro_tutorial.seeding import make_generator
from repro_tutorial.site_figures import figure_svg

ROOT = Path(__file__).parent.parent
DEMO = ROOT / "demos" / "float_order.py"
float_order = load_demo(ROOT, "float_order")
Setting = float_order.Setting


def train(setting: Setting, seed: int = 3, rate: float = float_order.RATE) -> Run:
    with isolate_rng(), one_thread():
        return float_order.train("a", seed, seed, rate, setting)


@pytest.fixture(scope="module")
def changed() -> Record:
    return float_order.main(["--seed", "3", "--lang", "en"])


@pytest.fixture(scope="module")
def kept() -> Record:
    return float_order.main(["--seed", "3", "--order", "kept", "--lang", "en"])


@pytest.fixture(scope="module")
def in_settings() -> dict[str, Run]:
    return {way.key.removeprefix("float_order."): train(way) for way in float_order.SETTINGS}


@pytest.fixture(scope="module")
def published() -> dict[str, Record]:
    return load_experiments(ROOT / "docs/assets/records/float_order.cpu.json")


@pytest.fixture
def short(monkeypatch) -> None:
    """Trainings of a few steps, for what does not depend on their number."""
    monkeypatch.setattr(float_order, "STEPS", 12)
    monkeypatch.setattr(float_order, "SHOWN_STEPS", (1, 10))


# Another order differs, the same order repeats --------------------------------------------------------------


def test_another_order_of_the_same_points_parts_and_grows(changed):
    first, second = changed.runs[:2]
    divergence = compare(first, second)
    assert divergence.first_step <= 10
    assert 0 < changed.results["first_gap"] < 1e-6, "it begins at the last bits"
    assert divergence.max_abs > 1e-2, "and becomes visible"
    assert changed.results["orders"] == 2
    assert f"2 runs, 2 different: part at step {divergence.first_step}" in lines(changed)


def test_the_same_order_repeats(kept):
    assert kept.runs[0].metrics == kept.runs[1].metrics
    assert kept.runs[0].fingerprints == kept.runs[1].fingerprints
    assert kept.results["orders"] == 1
    assert kept.results["divergence"]["first_step"] is None
    assert "2 runs: identical bit for bit" in lines(kept)


def test_run_1_is_the_same_whatever_the_others_do(changed, kept):
    assert changed.runs[0] == kept.runs[0]


@pytest.mark.parametrize("seed", [0, 42])
def test_at_a_small_learning_rate_the_gap_stays_small(seed):
    ways = (Setting(), Setting(order=range(float_order.POINTS)[::-1]))
    calm = compare(*(train(way, seed, float_order.CALM_RATE) for way in ways)).max_rel
    large = compare(*(train(way, seed) for way in ways)).max_rel
    assert 0 < calm < 5e-6, "differs, and stays"
    assert large > 100 * calm, "differs, and grows"


def test_what_is_computed_is_the_same_in_every_setting(in_settings):
    """Every setting is the same mathematics: at the first step they agree but for rounding."""
    losses = [run.metrics["loss"][0] for run in in_settings.values()]
    assert losses == pytest.approx([losses[0]] * len(losses), rel=1e-6)
    assert len(float_order.SETTINGS) == 5


def test_all_settings_agree_until_they_are_settled_no_longer(changed, in_settings):
    """The record's own word for how far losses compare between machines: neither empty nor a guess."""
    settled, runs = changed.results["settled"], [*in_settings.values()]
    first = runs[0].metrics["loss"]
    assert 20 <= settled < float_order.STEPS
    for run in runs:
        assert run.metrics["loss"][:settled] == pytest.approx(first[:settled], rel=1.3e-6, abs=0)
    assert any(
        run.metrics["loss"][settled] != pytest.approx(first[settled], rel=1.3e-6, abs=0) for run in runs
    )


def test_settings_are_counted_and_said(changed, in_settings):
    settings, spread = changed.results["settings"], changed.results["spread"]
    last = {name: run.metrics["loss"][-1] for name, run in in_settings.items()}
    assert {name: row["loss"] for name, row in settings.items()} == {
        name: repr(of) for name, of in last.items()
    }
    assert spread["settings"] == 5
    assert spread["different"] == len(set(last.values()))
    assert (spread["lowest"], spread["highest"]) == (min(last.values()), max(last.values()))
    assert (
        f"  points in reverse order     {last['reversed']!r:<22}  {settings['reversed']['step']:>4}"
        in lines(changed)
    )


def test_steps_that_leave_a_tolerance():
    assert float_order.leaves([1.0, 1.0, 1.0], [1.0, 1.0 + 1e-7, 1.0 + 1e-5], 1e-6) == 3
    assert float_order.leaves([1.0, float("nan")], [1.0, 1.0], 1e-6) == 2
    assert float_order.leaves([1.0], [1.0], 1e-6) is None


# Fresh processes --------------------------------------------------------------------------------------------


def test_a_fresh_process_as_it_is_gives_the_same_losses(changed):
    """The control of the settings below: starting a process changes nothing."""
    elsewhere = float_order.train_elsewhere(Setting(), 3, float_order.RATE)
    assert tuple(elsewhere) == changed.runs[0].metrics["loss"]


@pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() == "DEFAULT", reason="one instruction set only")
def test_another_instruction_set_gives_other_losses_and_other_weights(changed):
    elsewhere = float_order.train_elsewhere(float_order.ELSEWHERE[0], 3, float_order.RATE)
    assert tuple(elsewhere) != changed.runs[0].metrics["loss"]
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import torch; torch.manual_seed(3); print(torch.nn.Linear(2, 32).weight.tolist())",
        ],
        env=os.environ | {float_order.ATEN: "default"},
        capture_output=True,
        text=True,
        check=True,
    )
    with isolate_rng(), one_thread():
        torch.manual_seed(3)
        here = torch.nn.Linear(2, 32).weight.detach()
    gaps = (here - torch.tensor(json.loads(done.stdout))).abs()
    assert 0 < gaps.max() <= 2**-24, "the page says: rounded otherwise"


def test_a_setting_that_this_pytorch_lacks_is_left_out(monkeypatch, short):
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: False)
    without = float_order.ELSEWHERE[1]
    assert float_order.train_elsewhere(without, 3, 0.1) == []
    out = float_order.Transcript("en")
    with isolate_rng(), one_thread():
        results = float_order.show_settings(out, 3, 0.1, [without])
    assert results["settings"]["mkl_compatible"] == {"loss": "-", "step": "-"}
    assert results["spread"]["settings"] == 5
    assert len(out.lines) == 2 + 6 + 2, "a line for each setting, here or not"


def test_with_processes_every_setting_has_its_line(monkeypatch, short):
    """Without starting them: what they return is put in."""
    monkeypatch.setattr(float_order, "train_elsewhere", lambda way, start, rate: [0.5] * 12)
    record = float_order.main(["--seed", "3", "--processes", "--lang", "en"])
    assert record.results["spread"]["settings"] == 9
    assert "  MKL_CBWR=COMPATIBLE         0.5                        1" in lines(record)


# Sums -------------------------------------------------------------------------------------------------------


def test_eight_numbers_have_as_many_sums_as_the_page_says(changed):
    """258 from left to right, 102 by the rule of newer Pythons, 1 without the integer or with one rounding."""
    eight = changed.results["eight"]
    assert {name: eight[name] for name in ("loop", "since", "floats", "fsum")} == {
        "loop": 258,
        "since": 102,
        "floats": 1,
        "fsum": 1,
    }
    assert eight["builtin"] == (102 if sys.version_info >= (3, 12) else 258)
    assert eight["single"] > 1


def test_the_rule_is_that_of_this_python_where_it_has_it():
    shuffle, numbers = random.Random(1), [1e-10, 1e-5, 1e-2, 1, -1e-10, -1e-5, -1e-2, -1]
    for _ in range(200):
        shuffle.shuffle(numbers)
        if sys.version_info >= (3, 12):
            assert float_order.sum_since_3_12(numbers) == sum(numbers)
        assert abs(float_order.sum_since_3_12(numbers)) < 1e-15
    assert float_order.sum_since_3_12([1e16, 1.0, -1e16]) == 1.0, "floats: the error is kept"
    assert float_order.sum_since_3_12([1e16, 1, -1e16]) == 0.0, "an integer: it is lost"


def test_addition_is_commutative_and_not_associative():
    generator = random.Random(0)
    triples = [[generator.gauss(0, 1) for _ in range(3)] for _ in range(1000)]
    assert all(a + b == b + a for a, b, _ in triples)
    assert any((a + b) + c != a + (b + c) for a, b, c in triples)


def test_a_million_numbers_have_several_sums(changed):
    many, off = changed.results["many"], changed.results["off"]
    x = torch.rand(1_000_000, generator=make_generator(3)) - 0.5
    assert many["exact"] == many["double"] == pytest.approx(x.double().sum().item(), rel=1e-12)
    assert many["in_turn"] == float(np.add.accumulate(x.numpy())[-1])
    assert len({many[name] for name in ("one", "two", "three", "reversed", "in_turn")}) > 1
    assert off["in_turn"] > off["one"], "one after the other is the worst order of those in float32"
    assert off["bfloat"] > off["in_turn"]


def test_the_number_of_threads_changes_a_sum():
    x = torch.rand(1_000_000, generator=make_generator(3)) - 0.5
    with isolate_rng(), one_thread():
        sums, squares = float_order.sums_of_many(x)
        again = float_order.sums_of_many(x)
    assert again == (sums, squares), "each number of threads repeats"
    by_threads = {(sums[key], square) for key, square in zip(float_order.THREADS, squares, strict=True)}
    assert len(by_threads) > 1


def test_a_row_alone_is_not_the_row_in_a_batch(changed):
    with isolate_rng(), one_thread():
        alone, batch = float_order.alone_and_in_batch(3, torch.float32)
        assert torch.equal(alone, float_order.alone_and_in_batch(3, torch.float32)[0]), "each repeats"
    differ = (alone != batch).any(dim=1).sum().item()
    assert changed.results["rows"]["float"] == differ > 0
    torch.testing.assert_close(alone, batch)


# Tolerance --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_the_tolerance_is_the_one_in_force(dtype):
    tolerance = float_order.allowed(dtype)
    one = torch.ones((), dtype=torch.float64)
    for factor, fine in ((0.9, True), (1.5, False)):
        other = one + factor * (tolerance["absolute"] + tolerance["relative"])
        torch_allows = {"rtol": tolerance["relative"], "atol": tolerance["absolute"]}
        if fine:
            torch.testing.assert_close(other, one, **torch_allows)
        else:
            with pytest.raises(AssertionError):
                torch.testing.assert_close(other, one, **torch_allows)
    zero = torch.zeros((), dtype=dtype)
    assert float_order.accepted(zero + 0.9 * tolerance["absolute"], zero)
    assert not float_order.accepted(zero + 1.5 * tolerance["absolute"], zero)


def test_early_losses_are_accepted_and_last_ones_are_not(changed, kept):
    assert changed.results["accepted"]["early"] is True
    assert changed.results["accepted"]["last"] is False
    assert kept.results["accepted"]["last"] is True
    assert "  loss of two runs, step 10           accepted" in lines(changed)
    assert "  loss of two runs, last step         refused" in lines(changed)


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_example_on_the_page_runs(lang):
    page = (ROOT / "docs" / lang / "lessons" / "float_order.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(re.sub(r"^ {4}", "", block, flags=re.MULTILINE), {})


# What the pages say of the record ---------------------------------------------------------------------------


def test_the_pages_words_hold_for_the_published_record(published):
    order, calm, same = (published[name].results for name in ("order", "calm", "same"))
    assert order["first_gap"] == 2.0**-25, "one ULP between 0.25 and 0.5"
    step, runs = order["divergence"]["max_abs_step"], published["order"].runs
    floor = noise_floor(runs[2:], "loss", range(1, float_order.STEPS + 1))
    assert order["divergence"]["max_abs"] > floor[step - 1], "more than two seeds differ by there"
    gap = compare(*runs[:2]).gap
    assert max(gap[: order["settled"]]) < 1e-7
    assert max(gap[order["settled"] : 100]) > 100 * max(gap[: order["settled"]]), "leaps when the loss jumps"
    assert gap[-1] < order["divergence"]["max_abs"] / 100
    assert calm["settled"] == float_order.STEPS
    assert same["divergence"]["first_step"] is None
    assert order["accepted"] == {"rows": True, "squares": False, "early": True, "last": False}
    assert order["rows"]["bfloat"] == 0 < order["rows"]["float"]


# Output, record, figure -------------------------------------------------------------------------------------


def test_the_growth_is_printed_as_it_is_recorded(changed):
    first, second = (run.metrics["loss"] for run in changed.runs[:2])
    said = lines(changed)
    at = said.index("step  loss of run 1          loss of run 2          gap             ULP")
    rows = [line.split() for line in said[at + 1 : at + 1 + len(float_order.SHOWN_STEPS)]]
    for step, row in zip(float_order.SHOWN_STEPS, rows, strict=True):
        assert row[:3] == [str(step), repr(first[step - 1]), repr(second[step - 1])]
        assert int(row[4].replace(",", "")) == ulp_distance([first[step - 1]], [second[step - 1]])[1][0]


def test_the_noise_of_seeds_is_in_the_record(changed):
    others = changed.runs[2:]
    assert [run.seed for run in others] == [4, 5, 6]
    assert changed.results["different"] == distinct_outcomes(changed.runs) == 5
    expected = compare(*changed.runs[:2], seed_runs=others)
    assert changed.results["divergence"] == expected.summary()
    assert f"at the last step: {expected.noise_ratio:.2g} times" in "\n".join(lines(changed))
    assert "times what two seeds differ by" in figure_svg("divergence", changed, "en", "wide")


def test_the_chinese_output_has_the_same_numbers(short, capsys):
    english = float_order.main(["--seed", "3", "--lang", "en"])
    capsys.readouterr()
    chinese = float_order.main(["--seed", "3", "--lang", "zh"])
    out = capsys.readouterr().out.splitlines()
    assert out == lines(chinese, "zh")
    assert "2 次运行，2 种结果：从第 1 步起不同" in out
    for ours, theirs in zip(lines(english, "zh"), lines(english), strict=True):
        numbers = [sorted(re.findall(r"\d+\.\d{3,}", line)) for line in (ours, theirs)]
        assert numbers[0] == numbers[1]


def test_many_runs_take_as_many_orders(short):
    record = float_order.main(["--seed", "3", "--runs", "4", "--lang", "en"])
    assert record.results["orders"] == 4
    assert any(line.startswith("4 runs, 4 different: part at step ") for line in lines(record))


def test_one_run_is_not_compared(short):
    record = float_order.main(["--seed", "3", "--runs", "1", "--lang", "en"])
    assert "1 run: nothing to compare; leave --runs out to make two" in lines(record)
    assert "divergence" not in record.results


def test_without_a_seed_all_runs_start_alike_and_elsewhere_each_time(short):
    records = [float_order.main(["--order", "kept", "--lang", "en"]) for _ in range(2)]
    for record in records:
        assert record.runs[0].seed is None
        assert record.results["orders"] == 1
    assert records[0].runs[0].metrics != records[1].runs[0].metrics


def test_the_last_seed_has_others_after_it(short):
    record = float_order.main(["--seed", str(2**32 - 1), "--lang", "en"])
    assert [run.seed for run in record.runs[2:]] == [0, 1, 2]


def test_the_callers_state_stays_as_it_was(short):
    before, threads = get_rng_state(), torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        float_order.main(["--seed", "3"])
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert advanced_generators(before, get_rng_state()) == ()


def test_the_record_and_the_plot_are_written(short, tmp_path):
    files = tmp_path / "a.json", tmp_path / "a.svg"
    record = float_order.main(["--seed", "3", "--calm", "--json", str(files[0]), "--plot", str(files[1])])
    assert Record.load(files[0]).runs == record.runs
    assert Record.load(files[0]).command == "python demos/float_order.py --seed 3 --calm"
    assert "<svg" in files[1].read_text(encoding="utf-8")
    assert sorted(tmp_path.iterdir()) == sorted(files)


# Bad input --------------------------------------------------------------------------------------------------

BAD = [
    (["--seed", "-1"], "cannot seed with -1: a seed is a whole number from 0 to 4294967295"),
    (["--runs", "0"], "argument --runs: needs a whole number from 1, but was given '0'"),
    (["--order", "sorted"], "argument --order: invalid choice: 'sorted'"),
    (["--calm=yes"], "argument --calm: ignored explicit argument 'yes'"),
    (["--plot", "a.gif"], "its name must end in one of .svg, .png, .pdf"),
]


@pytest.mark.parametrize(("arguments", "line"), BAD, ids=[" ".join(arguments) for arguments, _ in BAD])
def test_bad_input_gets_one_clear_line_before_any_work(arguments, line, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        float_order.main([*arguments, "--lang", "en"])
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)
    assert capsys.readouterr().out == ""
    assert list(tmp_path.iterdir()) == []


def test_bad_input_ends_the_program_with_2():
    done = subprocess.run(
        [sys.executable, DEMO, "--order", "sorted", "--lang", "zh"],
        capture_output=True,
        text=True,
        env=os.environ | {"LC_ALL": "C.UTF-8"},
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("float_order.py：错误：")
    assert done.stderr.count("\n") == 1

"""The lesson's claims: seeds lie apart, the best one is luck, one ULP comes as far; and what to report repeats."""

import re
from itertools import combinations, pairwise
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import torch
from demo_runs import lines, run_demo
from matplotlib.text import Text

from repro_tutorial import plots
from repro_tutorial.divergence import compare, distinct_outcomes, noise_floor, ulp_distance
from repro_tutorial.lessons import load_demo
from repro_tutorial.messages import InputError
from repro_tutorial.panels import WIDTHS
from repro_tutorial.processes import map_in_processes
from repro_tutorial.rng_state import advanced_generators, get_rng_state
from repro_tutorial.runs import Record, load_experiments
from repro_tutorial.seeding import derive_seed
from repro_tutorial.site_figures import figure_svg, figure_table

ROOT = Path(__file__).parent.parent
seed_variance = load_demo(ROOT, "seed_variance")
BRIEF = {"rate": 0.02, "epochs": 2, "batch": 32}  # trainings whose accuracy does not matter
ARGUMENTS = ("--runs", "6", "--processes", "1", "--lang", "en")


def shorten(patch: pytest.MonkeyPatch) -> None:
    """The demo with trainings of two epochs."""
    for name, value in {"SHORT": BRIEF, "LONG": BRIEF, "RESAMPLES": 200, "SPLITS": 5}.items():
        patch.setattr(seed_variance, name, value)


@pytest.fixture
def brief(monkeypatch):
    shorten(monkeypatch)


@pytest.fixture(scope="module")
def seeded():
    with pytest.MonkeyPatch.context() as patch:
        shorten(patch)
        return seed_variance.main(["--seed", "3", *ARGUMENTS])


@pytest.fixture(scope="module")
def published():
    return load_experiments(ROOT / "docs" / "assets" / "records" / "seed_variance.cpu.json")


def trained(seed: int = 3, **changed):
    (done,) = map_in_processes(
        seed_variance.train, [seed_variance.seeds_of(seed) | BRIEF | changed], processes=1
    )
    return done


# It differs, and it repeats ---------------------------------------------------------------------------------


def test_one_seed_gives_one_result():
    (first, right), (again, right_again) = trained(), trained()
    assert first.fingerprints == again.fingerprints
    assert (right == right_again).all()


@pytest.mark.parametrize("what", ["init", "order"])
def test_another_seed_for_one_source_alone_gives_another_result(what):
    first, right = trained()
    other, other_right = trained(**{what: seed_variance.seeds_of(4)[what]})
    assert first.fingerprints != other.fingerprints
    assert (right != other_right).any()


def test_one_ulp_in_one_weight_starts_from_the_same_loss_and_grows_beyond_a_half_of_a_new_seed():
    """And without it the same training repeats on every bit, to its end."""
    base = {"name": "run"} | seed_variance.LONG
    (first, right), (again, _), (other, other_right) = (trained(**base, ulp=ulp) for ulp in (None, None, 0))
    seed, seed_right = trained(seed=4, **base)
    assert distinct_outcomes([first, again]) == 1
    gap = compare(first, other).gap
    assert gap[0] <= 2.0**-20
    assert max(gap) > 0.01
    differ = (right != other_right).sum()
    assert 0 < differ < 1.5 * (right != seed_right).sum()
    assert seed.fingerprints != first.fingerprints


def test_it_is_one_ulp_in_one_weight():
    plain, changed = (seed_variance.network(3, ulp).state_dict() for ulp in (None, 2))
    apart = {name: ulp_distance(plain[name].ravel(), changed[name].ravel())[1] for name in plain}
    assert sorted(number for of in apart.values() for number in of)[-2:] == [0, 1]
    assert sum(map(sum, apart.values())) == 1


def test_the_data_is_the_same_in_every_run():
    points, classes = seed_variance.data()
    assert torch.equal(points, seed_variance.data()[0])
    assert points.shape == (4500, 20)
    assert 0.4 < classes.double().mean() < 0.6


def test_initialization_and_order_have_seeds_of_their_own():
    seeds = [tuple(seed_variance.seeds_of(seed).values()) for seed in range(50)]
    assert len({number for pair in seeds for number in pair}) == 100
    assert seed_variance.seeds_of(3) == {"init": derive_seed(3, 0), "order": derive_seed(3, 1)}


def test_the_number_of_processes_changes_no_bit():
    calls = [seed_variance.seeds_of(seed) | BRIEF | {"name": f"seed {seed}"} for seed in range(4)]
    here, there = (
        list(map_in_processes(seed_variance.train, calls, processes=processes)) for processes in (1, 2)
    )
    assert [run for run, _ in here] == [run for run, _ in there]
    assert all((a == b).all() for (_, a), (_, b) in zip(here, there, strict=True))


def test_a_seed_repeats_all_numbers_and_no_seed_repeats_none(brief, seeded):
    again = seed_variance.main(["--seed", "3", *ARGUMENTS])
    assert again.runs == seeded.runs
    assert again.results == seeded.results
    assert lines(again) == lines(seeded)
    unseeded = [seed_variance.main([*ARGUMENTS]) for _ in range(2)]
    assert unseeded[0].results["spread"] != unseeded[1].results["spread"]
    assert {run.seed for record in unseeded for run in record.runs} == {None}


# How the numbers are made -----------------------------------------------------------------------------------


def test_the_interval_holds_the_mean_and_shrinks_with_the_number_of_seeds():
    rng = np.random.default_rng(1)
    few, many = rng.normal(80, 1, 10), rng.normal(80, 1, 160)
    for values in (few, many):
        low, high = seed_variance.interval(values)
        assert low < values.mean() < high
        normal = 2 * 1.96 * values.std(ddof=1) / len(values) ** 0.5
        assert high - low == pytest.approx(normal, rel=0.15)
        assert seed_variance.interval(values) == (low, high), "its resamples have a seed"
    assert np.ptp(seed_variance.interval(many)) < np.ptp(seed_variance.interval(few)) / 2


def test_the_interval_of_a_difference_does_not_know_of_pairs():
    rng = np.random.default_rng(1)
    shared = rng.normal(80, 1, 30)
    other = shared + 0.2 + rng.normal(0, 0.1, 30)
    low, high = seed_variance.interval(shared, other)
    assert low < 0 < high - 0.2, "unpaired: the spread of seeds hides it"
    low, high = seed_variance.interval(other - shared)
    assert 0 < low < 0.2 < high + 0.05, "paired: it is seen"


def test_the_best_seed_is_worth_nothing_elsewhere_where_seeds_are_alike():
    rng = np.random.default_rng(1)
    alike = [rng.random(seed_variance.TESTS) < 0.8 for _ in range(30)]
    chosen = seed_variance.elsewhere(alike, 500)
    assert chosen["lead"] > 2
    assert abs(chosen["left"]) < 0.5
    assert 12 < chosen["rank"] < 19
    apart = [rng.random(seed_variance.TESTS) < 0.5 + 0.01 * number for number in range(30)]
    chosen = seed_variance.elsewhere(apart, 2000)
    assert chosen["left"] > 10
    assert chosen["rank"] < 3


def test_points_decided_by_chance_spread_as_the_formula_says():
    rng = np.random.default_rng(1)
    rights = [rng.random(seed_variance.TESTS) < 0.9 for _ in range(200)]
    differ = seed_variance.disagreement(rights[:40])
    assert differ == pytest.approx(100 * 2 * 0.9 * 0.1, rel=0.05)
    std = np.std([seed_variance.percent(right) for right in rights], ddof=1)
    assert std == pytest.approx(100 * (differ / 100 / (2 * seed_variance.TESTS)) ** 0.5, rel=0.15)


# What the pages say of the record ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["seeds", "full"])
def test_the_pages_words_hold_for_the_published_record(name, published):
    results = published[name].results
    assert results["pairs"]["share"] > 40, "about half of the pairs, or more"
    assert results["spread"]["high"] - results["spread"]["low"] > 1.5
    assert results["cherry"]["gain"] > 0.5
    assert results["alone"]["std"] < results["spread"]["std"]
    few, many = (results[of]["high"] - results[of]["low"] for of in ("few", "many"))
    assert many < few / 2
    assert results["paired"]["low"] > 0, "the paired comparison sees the difference"
    assert results["wrong"] > 25
    for row in results["lucky"].values():
        assert row["left"] < row["lead"]
    assert results["lucky"]["500"]["left"] < results["lucky"]["500"]["lead"] / 2
    assert results["example"]["rank"] > 1, "falls from the first place"
    left = {size: row["left"] / row["lead"] for size, row in results["lucky"].items()}
    assert left["2000"] > 0.5 > left["500"], "more of the lead is real"
    assert results["same"] == 1
    kinds = {kind: row["disagreement"] for kind, row in results["kinds"].items()}
    assert kinds["same"] == 0
    assert 0.5 < kinds["ulp"] / kinds["both"] < 1.5
    steps = [results["reached"][gap] for gap in ("millionth", "thousandth", "tenth")]
    steps.insert(0, results["divergence"]["first_step"])
    assert all(a < b for a, b in pairwise(steps))
    base, changed, *others = published[name].runs
    assert compare(base, changed, seed_runs=others).noise_ratio == results["divergence"]["noise_ratio"]
    assert 10 < results["settled"] < len(base.metrics["loss"])


def test_the_unpaired_comparison_misses_what_the_paired_one_sees(published):
    results = published["seeds"].results
    assert results["unpaired"]["low"] < 0 < results["paired"]["low"]
    assert results["correlation"] > 0.5
    assert published["full"].results["unpaired"]["low"] > 0, "80 seeds are enough without pairs"


# Output, record, figures ------------------------------------------------------------------------------------


def test_what_is_printed_is_what_is_recorded(seeded):
    said, results = "\n".join(lines(seeded)), seeded.results
    histograms = results["histograms"]
    assert results["runs"] == len(histograms[0]["values"]) == 6
    assert results["cherry"]["best"] == results["spread"]["high"]
    assert f"mean of all 6 seeds: {results['many']['mean']:.2f}%, 95% interval" in said
    assert f"{results['pairs']['share']:.0f}% of 15 pairs" in said
    assert "nothing changed, 2 runs: identical bit for bit" in said
    assert f"same loss on every bit before step {results['divergence']['first_step']}\n" in said
    assert [run.seed for run in seeded.runs] == [3, 3, 4, 5, 6]
    assert results["different"] == distinct_outcomes(seeded.runs) == 5
    best = histograms[0]["chosen"]
    assert histograms[0]["values"][best] == max(histograms[0]["values"])
    assert results["example"]["seed"] == 3 + best
    assert noise_floor(seeded.runs[2:], "loss", seeded.runs[0].steps_of("loss"))


def test_the_chinese_output_has_the_same_numbers(brief, seeded, capsys):
    capsys.readouterr()
    seed_variance.main(["--seed", "3", *ARGUMENTS[:-1], "zh"])
    out = capsys.readouterr().out.splitlines()
    assert out == lines(seeded, "zh")
    for ours, theirs in zip(out, lines(seeded), strict=True):
        numbers = [sorted(re.findall(r"\d+\.\d+", line)) for line in (ours, theirs)]
        assert numbers[0] == numbers[1]
    assert "什么都没改，2 次运行：逐位相同" in out


def test_full_makes_more_runs(brief):
    record = seed_variance.main(["--seed", "3", "--full", *ARGUMENTS])
    assert record.results["runs"] == 6, "an own --runs holds"
    assert len(record.runs) == 2 + seed_variance.FULL_CHANGES
    assert record.command == "python demos/seed_variance.py --seed 3 --full --runs 6 --processes 1"


def test_the_last_seed_has_others_after_it(brief):
    record = seed_variance.main(["--seed", str(2**32 - 1), *ARGUMENTS])
    assert [run.seed for run in record.runs[2:]] == [0, 1, 2]


def test_the_callers_state_stays_as_it_was(brief):
    before, threads = get_rng_state(), torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        seed_variance.main(["--seed", "3", *ARGUMENTS])
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert advanced_generators(before, get_rng_state()) == ()


@pytest.mark.parametrize("figure", ["histograms", "divergence"])
def test_the_record_and_the_plot_are_written(figure, brief, tmp_path):
    files = tmp_path / "a.json", tmp_path / "a.svg"
    given = ["--seed", "3", *ARGUMENTS, "--figure", figure]
    record = seed_variance.main([*given, "--json", str(files[0]), "--plot", str(files[1])])
    assert Record.load(files[0]).results == record.results
    drawn = files[1].read_text(encoding="utf-8")
    assert ("chosen seed" in drawn) == (figure == "histograms")
    assert sorted(tmp_path.iterdir()) == sorted(files)


def test_a_histogram_counts_every_seed_and_marks_mean_and_choice(seeded):
    rows = figure_table("histograms", seeded, "en")
    counted = [sum(int(row[column]) for row in rows[1:-2]) for column in (1, 2)]
    assert counted == [6, 6]
    first = seeded.results["histograms"][0]
    assert rows[-2][:2] == ["mean", f"{np.mean(first['values']):.2f}%"]
    assert rows[-1][:2] == ["chosen seed", f"{max(first['values']):.2f}%"]
    drawn = figure_svg("histograms", seeded, "zh", "narrow")
    assert f"选中的种子 {max(first['values']):.2f}%，排第 1。" in drawn
    assert "var(--plot-second)" in drawn


@pytest.mark.parametrize("values", [[80.2, 81.0, 82.5, 82.0], [80.0] * 4], ids=["several", "one value"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_text_of_histograms_fits_and_does_not_overlap(lang, width, values):
    keys = ("seed_variance.chosen_on", "seed_variance.others")
    labels = [{"key": key, "values": {"size": 500}} for key in keys]
    rows = [{"label": label, "values": values, "chosen": chosen} for chosen, label in enumerate(labels)]
    installed = set(plots.font_manager.get_font_names())
    fonts = [name for name in plots.CHINESE_FONTS if name in installed and lang == "zh"]
    if lang == "zh" and not fonts:
        pytest.skip("no Chinese font is installed to measure with")
    with matplotlib.rc_context({"font.sans-serif": fonts or ["DejaVu Sans"]}):
        figure = plots.plot_histograms(rows, lang=lang, width=width)
        figure.draw_without_rendering()
        shown = [part for part in figure.findobj(Text) if part.get_text() and part.get_visible()]
        boxes = [part.get_window_extent().shrunk(0.95, 0.8) for part in shown]
    assert all(box.x0 >= 0 and box.x1 <= WIDTHS[width] and box.y0 >= 0 for box in boxes)
    assert not [(a, b) for a, b in combinations(boxes, 2) if a.overlaps(b)]


def test_there_is_no_histogram_of_nothing(seeded):
    with pytest.raises(InputError, match="cannot draw histograms: the record has none"):
        plots.plot_histograms([])


# Bad input --------------------------------------------------------------------------------------------------

BAD = [
    (["--seed", "-1"], "cannot seed with -1: a seed is a whole number from 0 to 4294967295"),
    (["--runs", "4"], "cannot measure how far seeds lie apart from 4 of them: give --runs 5 or more"),
    (["--processes", "0"], "argument --processes: needs a whole number from 1, but was given '0'"),
    (["--figure", "pie"], "argument --figure: invalid choice: 'pie'"),
    (["--plot", "a.gif"], "its name must end in one of .svg, .png, .pdf"),
]


@pytest.mark.parametrize(("arguments", "line"), BAD, ids=[" ".join(arguments) for arguments, _ in BAD])
def test_bad_input_gets_one_clear_line_before_any_work(arguments, line, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        seed_variance.main([*arguments, "--lang", "en"])
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)
    assert capsys.readouterr().out == ""
    assert list(tmp_path.iterdir()) == []


def test_bad_input_ends_the_program_with_2():
    done = run_demo("seed_variance", "--runs", "2", "--lang", "zh")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "seed_variance.py：错误：只有 2 个种子，无法衡量种子之间的差异：请给出 --runs 5 或更大的数\n"
    )

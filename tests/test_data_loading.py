"""The lesson's claims: every loader draws, workers copy generators, sets have no order; and each with its cure."""

import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from demo_runs import lines, run_demo

from demos import data_loading
from repro_tutorial.messages import LANGUAGES, InputError
from repro_tutorial.plots import DRAWERS, plot_draws
from repro_tutorial.rng_state import advanced_generators, get_rng_state, isolate_rng
from repro_tutorial.seeding import make_generator, seed_everything, seed_worker
from repro_tutorial.site_figures import figure_svg, figure_table

ROOT = Path(__file__).parent.parent
demo = partial(run_demo, "data_loading")


def recorded(*arguments):
    return data_loading.main([*arguments, "--lang", "en"])


@pytest.fixture(scope="module")
def shared():
    return recorded()


# A validation loop ------------------------------------------------------------------------------------------


def test_a_validation_loop_changes_the_training_from_the_next_step(shared):
    without, with_ = shared.runs
    step = 1 + data_loading.TRAINED // data_loading.BATCH  # the first of the second epoch
    assert without.metrics["loss"][: step - 1] == with_.metrics["loss"][: step - 1]
    assert shared.results["divergence"]["first_step"] == step
    assert f"2 runs, 2 different: part at step {step}" in lines(shared)


def test_with_generators_of_their_own_it_changes_nothing():
    record = recorded("--own")
    assert record.results["different"] == 1
    assert record.runs[0].fingerprints == record.runs[1].fingerprints
    assert "2 runs: identical bit for bit" in lines(record)
    assert record.results["tape"]["shifted"] == 0


@pytest.mark.parametrize("seed", ["0", "5"])
@pytest.mark.parametrize("own", [True, False])
def test_every_other_run_validates(own, seed):
    record = recorded("--runs", "4", "--seed", seed, *(["--own"] if own else []))
    first, second, third, fourth = (run.fingerprints["weights"] for run in record.runs)
    assert first == third
    assert second == fourth
    assert (first == second) is own


def test_the_tape_says_who_drew(shared):
    without, with_ = (row["cells"] for row in shared.results["draws"])
    epoch = ["training_seed", "training_order", *["dropout"] * 4]
    assert [cell["by"] for cell in without] == ["weights", *epoch * 3]
    assert [cell["by"] for cell in with_] == ["weights", *[*epoch, "validation_seed"] * 3]
    assert all(cell["same"] is True for cell in without)
    assert [cell["same"] for cell in with_] == [*[True] * 7, None, *[False] * 6, None, *[False] * 6, None]


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("own", [True, False])
def test_iterating_draws_and_making_does_not(shuffle, own):
    """Also with no worker and no shuffle; a generator of its own is moved instead."""
    generator = make_generator(3) if own else None
    private = {"loader": generator} if own else {}
    with isolate_rng():
        before = get_rng_state(**private)
        loader = torch.utils.data.DataLoader(range(4), shuffle=shuffle, generator=generator)
        assert advanced_generators(before, get_rng_state(**private)) == ()
        list(loader)
        assert advanced_generators(before, get_rng_state(**private)) == (
            ("loader",) if own else ("torch_cpu",)
        )


# Workers ----------------------------------------------------------------------------------------------------


def test_each_number_of_workers_has_its_own_data_and_repeats_it():
    record = recorded("--show", "workers")
    rows = record.results["workers"]
    assert all(row["repeats"] for row in rows.values())
    counts = {tuple(rows[f"workers {workers}"]["epochs"]) for workers in (0, 1, 2, 4)}
    assert len(counts) == record.results["counts"] == 4
    new, kept = rows["workers 2"]["epochs"], rows["workers 2 persistent"]["epochs"]
    assert new[0] == kept[0]
    assert new[1] != kept[1]
    assert record.results["orders"]["kept"] == [0, 1, 2, 3]
    assert record.results["orders"]["free"][0] != 0, "a slow item waits for nobody"
    assert sorted(record.results["orders"]["free"]) == [0, 1, 2, 3]


def test_without_draws_the_number_of_workers_is_nothing(monkeypatch):
    monkeypatch.setattr(data_loading.Noisy, "__getitem__", lambda self, index: torch.tensor(float(index)))
    with isolate_rng():
        assert data_loading.epochs(0) == data_loading.epochs(2)


def test_a_held_generator_repeats_in_every_worker_and_epoch_until_it_is_seeded():
    record = recorded("--show", "held")
    for kind in ("default_rng", "Random", "torch.Generator"):
        row = record.results["held"][kind]
        assert (row["plain"], row["cured"]) == (1, 4), kind
        assert row["plain_repeats"], kind
        assert row["cured_repeats"], kind
    legacy = record.results["held"]["np.random"]
    assert (legacy["plain"], legacy["plain_repeats"]) == (4, True), (
        "PyTorch seeds it in each worker since 1.9"
    )
    assert lines(record)[-1] == "every setting repeats from run to run"
    figure = figure_svg("pictures", record, "en", "wide")
    assert "1 different of 4 pictures" in figure
    assert "4 different of 4 pictures" in figure
    assert "worker 1, epoch 2" in figure_table("pictures", record, "en")[0]


def test_another_seed_gives_other_pictures():
    with isolate_rng():
        found = []
        for seed in (3, 4):
            seed_everything(seed)
            found.append(data_loading.pictures("default_rng", seed_worker))
        assert found[0] != found[1]


# Orders -----------------------------------------------------------------------------------------------------


def test_only_what_is_set_before_the_start_or_sorted_has_one_order():
    record = recorded("--show", "order")
    sets = record.results["sets"]
    assert sets["unset"] > 1
    assert sets["inside"] > 1, "too late for the process that sets it"
    assert sets["exported"] == sets["sorted"] == 1
    assert record.results["listings"]["sorted_alike"]


def test_an_iterable_dataset_comes_once_per_worker_until_each_takes_its_share():
    record = recorded("--show", "iterable")
    assert record.results["given"] == {
        "copied": 2 * record.results["items"],
        "shared": record.results["items"],
    }
    shares = record.runs[1].metrics["item"]
    assert sorted(shares) == [float(item) for item in range(record.results["items"])]


# Figures, files, bad input ----------------------------------------------------------------------------------


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_draw_that_starts_elsewhere_is_hollow(shared, lang, theme):
    figure = plot_draws(shared.results["draws"], lang=lang, theme=theme)
    cells = [row["cells"] for row in shared.results["draws"]]
    for axes, row in zip(figure.axes, cells, strict=True):
        hollow = [patch.get_facecolor() != patch.get_edgecolor() for patch in axes.patches]
        assert hollow == [cell["same"] is False for cell in row]
    written = [text.get_text() for text in figure.texts]
    letters = {by: "WBSDV"[place] for place, by in enumerate(DRAWERS)}
    assert [one for one in written if len(one) == 1] == [letters[cell["by"]] for row in cells for cell in row]


@pytest.mark.parametrize("lang", LANGUAGES)
def test_the_tape_in_words_and_as_a_table(shared, lang):
    name = figure_svg("draws", shared, lang, "narrow")
    assert ("12 of them start elsewhere" if lang == "en" else "其中 12 次的起点与第一行不同") in name
    table = figure_table("draws", shared, lang)
    assert len(table) == 1 + shared.results["tape"]["with"]
    assert table[-1][1] == "", "the first tape is shorter"


def test_no_draws_are_no_figure(shared):
    with pytest.raises(InputError, match="cannot draw a tape: the record has none"):
        plot_draws([])


@pytest.mark.parametrize("show", ["validation", "held", "iterable"])
def test_plot_and_json_are_written(show, tmp_path):
    plot, kept = tmp_path / "a.svg", tmp_path / "a.json"
    recorded("--show", show, "--plot", str(plot), "--json", str(kept))
    assert plot.read_text("utf-8").startswith("<?xml")
    assert kept.stat().st_size > 1000


def test_the_callers_state_stays_as_it_was():
    threads = torch.get_num_threads()
    before = get_rng_state()
    recorded()
    assert advanced_generators(before, get_rng_state()) == ()
    assert torch.get_num_threads() == threads


BAD = [
    (["--show", "x"], "argument --show: invalid choice: 'x'"),
    (["--runs", "0"], "argument --runs: needs a whole number from 1, but was given '0'"),
    (["--seed", "-1"], "cannot seed with -1"),
    (["--device", "mps"], "cannot compute on mps: PyTorch finds no such device here"),
]


@pytest.mark.parametrize(("arguments", "problem"), BAD, ids=["show", "runs", "seed", "device"])
def test_bad_input_is_one_clear_line(arguments, problem):
    with pytest.raises(InputError) as caught:
        recorded(*arguments)
    assert problem in str(caught.value)


def test_the_program_speaks_both_languages_and_ends_with_0():
    done = demo("--lang", "zh")
    assert done.returncode == 0
    assert "2 次运行，2 种结果：从第 5 步起不同" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize("lang", LANGUAGES)
def test_the_example_on_the_page_prints_what_it_says(lang, tmp_path):
    page = (ROOT / f"docs/{lang}/lessons/data_loading.md").read_text("utf-8")
    code = page.split("```python\n")[1].split("```")[0]
    (tmp_path / "example.py").write_text(code, "utf-8")
    done = subprocess.run(
        [sys.executable, tmp_path / "example.py"], capture_output=True, text=True, check=True
    )
    assert done.stdout == "True False\n"
    assert "`True False`" in page


def test_np_random_is_the_legacy_generator():
    """What the demo's last kind stands on."""
    with isolate_rng():
        np.random.seed(0)
        first = data_loading.draw_shift(None)
        np.random.seed(0)
        assert first == np.random.randint(data_loading.SIDE)

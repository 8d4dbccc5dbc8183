"""The lesson's claims: manual_seed_all gives all GPUs one stream; derived seeds part the ranks and still repeat."""

import json
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from demo_runs import lines, run_demo
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from demos import multi_gpu_seeding
from repro_tutorial.divergence import compare
from repro_tutorial.messages import InputError
from repro_tutorial.plots import plot_pictures
from repro_tutorial.rng_state import advanced_generators, get_rng_state, isolate_rng
from repro_tutorial.runs import Record
from repro_tutorial.seeding import derive_seed, seed_everything
from repro_tutorial.site_figures import figure_svg, figure_table
from repro_tutorial.virtual_cuda import VirtualCluster

ROOT = Path(__file__).parent.parent
demo = partial(run_demo, "multi_gpu_seeding")
SOURCE = "0.6130 0.0101 0.3984 0.0403"  # torch.rand(2, 2) on CUDA after seed 42, as published


@pytest.fixture(scope="module")
def four_gpus():
    return multi_gpu_seeding.main(["--seed", "42", "--gpus", "4", "--lang", "en"])


@pytest.fixture(scope="module")
def two_ranks():
    return multi_gpu_seeding.main(["--seed", "42", "--ddp", "--lang", "en"])


# Virtual GPUs -----------------------------------------------------------------------------------------------


def test_every_gpu_prints_the_published_numbers_and_says_that_they_are_recomputed(four_gpus):
    said = lines(four_gpus)
    assert said[0] == "torch.cuda.manual_seed_all(42); torch.rand(2, 2)"
    assert said[1:5] == [f"GPU {place}*  {SOURCE}" for place in range(4)]
    assert said[5] == "CPU     0.8823 0.9150 0.3829 0.9593"
    assert said[6].startswith("* recomputed on the CPU: 4 virtual A100, by the rules of PyTorch 2.")
    assert len({values for name, values in four_gpus.runs[0].metrics.items()}) == 1
    assert four_gpus.runs[0].metrics == four_gpus.runs[1].metrics
    assert said[-1] == "2 runs: identical bit for bit"


def test_the_seed_left_out_is_the_sources():
    record = multi_gpu_seeding.main(["--lang", "en"])
    assert lines(record)[1:3] == [f"GPU {place}*  {SOURCE}" for place in range(2)]
    assert record.runs[0].seed == 42


@pytest.mark.parametrize("gpus", [2, 3, 16])
@pytest.mark.parametrize("seed", [0, 42, 4294967295])
def test_who_draws_alike_and_who_repeats(seed, gpus):
    """Each way to seed: different tensors among the GPUs, GPUs that repeat, and whether the CPU does."""
    here = torch.cuda.is_available()
    expected = {
        "nothing": (gpus, 0, 0),
        "all_gpus": (1, gpus, 0),
        "first_gpu": (gpus, 1, 0),
        "cpu_only": (gpus, 0, 1),
        "everything": (1, gpus, 1),
        "inside_if": (1, gpus, 1) if here else (gpus, 0, 0),
        "own_seeds": (gpus, gpus, 1),
    }
    with isolate_rng():
        found = {
            seeding.__name__: tuple(multi_gpu_seeding.what_repeats(seeding, seed, gpus, "T4").values())
            for seeding in multi_gpu_seeding.SEEDINGS
        }
    assert found == expected


def test_the_if_seeds_where_there_is_cuda(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with isolate_rng():
        found = multi_gpu_seeding.what_repeats(multi_gpu_seeding.inside_if, 42, 2, "T4")
    assert found == {"different": 1, "repeat": 2, "cpu": 1}


def test_the_table_says_what_was_measured(four_gpus):
    said = lines(four_gpus)
    rows = {name: tuple(of.values()) for name, of in four_gpus.results["repeats"].items()}
    assert [tuple(line.split()[:3]) for line in said[11:18]] == [
        (str(different), str(repeat), "yes" if cpu else "no") for different, repeat, cpu in rows.values()
    ]
    assert len({line.index("repeats") for line in said[10:11]} | {said[11].index("no")}) == 1, "columns"


def test_torch_manual_seed_reaches_every_gpu(monkeypatch):
    """The lesson's `everything` seeds virtual GPUs in a line of its own; torch does that by itself."""
    reached = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", reached.append)
    with isolate_rng():
        torch.manual_seed(42)
    assert reached == [42]


def test_one_seed_gives_every_gpu_the_same_masks_and_pictures(four_gpus):
    different = [len(set(map(tuple, row["images"]))) for row in four_gpus.results["pictures"]]
    assert different == [1, 1, 4, 4]
    (masks, pictures, *_) = four_gpus.results["pictures"]
    expected = VirtualCluster(1)[0].manual_seed(42).dropout_mask(0.5, (10, 10))
    assert masks["images"][0] == expected.ravel().astype(int).tolist()
    assert sum(pictures["images"][0]) == "".join(multi_gpu_seeding.LETTER).count("#"), "moved, not cut"


def test_the_output_shows_the_masks(four_gpus):
    said = lines(four_gpus)
    start = said.index("Dropout masks after manual_seed_all(42): 1 different on 4 GPUs")
    shown = [line.split("  ") for line in said[start + 1 : start + 11]]
    mask = four_gpus.results["pictures"][0]["images"][0]
    assert ["".join(row) for row in zip(*shown, strict=True)] == ["".join(".#"[dot] for dot in mask)] * 4


def test_seed_plus_rank_collides_and_derived_seeds_do_not(four_gpus):
    assert four_gpus.results["collisions"] == {"all": 320, "sum": 35, "derived": 320}
    assert 3 + 1 == 4 + 0
    assert derive_seed(3, 1) != derive_seed(4, 0)


def test_many_gpus_are_listed_in_part():
    record = multi_gpu_seeding.main(["--gpus", "40", "--runs", "1", "--lang", "en"])
    said = lines(record)
    assert said[16] == f"GPU 15* {SOURCE}"
    assert said[17] == "… and 24 more GPUs, 24 of them with the same numbers"
    assert len(record.runs[0].metrics) == 40
    assert said[-1] == "1 run: nothing to compare; leave --runs out to make two"
    assert len(record.results["pictures"][0]["images"]) == 4


def test_the_chinese_output_has_the_same_numbers(capsys, four_gpus):
    record = multi_gpu_seeding.main(["--seed", "42", "--gpus", "4", "--lang", "zh"])
    out = capsys.readouterr().out.splitlines()
    assert out == lines(record, "zh")
    assert out[-1] == "2 次运行：逐位相同"
    for chinese, english in zip(
        out[:9] + out[19:], lines(four_gpus)[:9] + lines(four_gpus)[19:], strict=True
    ):
        numbers = [set(re.findall(r"\d+(?:\.\d+)?", line)) for line in (chinese, english)]
        assert numbers[0] == numbers[1], chinese


def test_the_callers_state_stays():
    before = get_rng_state()
    multi_gpu_seeding.main([])
    assert advanced_generators(before, get_rng_state()) == ()


def test_record_and_plot_are_written(tmp_path):
    files = tmp_path / "a.json", tmp_path / "a.svg"
    record = multi_gpu_seeding.main(["--gpu", "T4", "--json", str(files[0]), "--plot", str(files[1])])
    assert Record.load(files[0]) == record
    assert record.command == "python demos/multi_gpu_seeding.py --gpu T4"
    assert files[1].read_text(encoding="utf-8").count(">GPU 1<") == 4


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_devices_draw_what_is_recomputed():
    said = "\n".join(lines(multi_gpu_seeding.main(["--device", "cuda", "--lang", "en"])))
    assert said.count("the same numbers") == torch.cuda.device_count()


# Real processes ---------------------------------------------------------------------------------------------


def test_seeded_methods_repeat_on_every_bit_and_the_unseeded_does_not(two_ranks):
    """Ten runs: two of each method, then two ranks without broadcast, then two world sizes."""
    pairs = [compare(*two_ranks.runs[at : at + 2]) for at in (0, 2, 4, 6)]
    assert [pair.first_step for pair in pairs] == [1, None, None, None]
    methods = two_ranks.results["methods"]
    assert [methods[name]["different"] for name in multi_gpu_seeding.METHODS] == [2, 1, 1, 1]
    weights = [run.fingerprints["weights"] for run in two_ranks.runs[:8]]
    assert weights[0] != weights[1]
    assert weights[2::2] == weights[3::2]
    assert lines(two_ranks)[-1] == (
        "2 runs: identical bit for bit wherever a seed is set, different where none is"
    )


def test_what_the_ranks_have_in_common(two_ranks):
    methods = two_ranks.results["methods"]
    shared = {
        name: (of["initial"], of["leaked"] > 0, of["masks"], of["noises"]) for name, of in methods.items()
    }
    assert shared == {
        "none": (2, True, 0, 0),
        "same": (1, False, 60, 60),
        "own": (2, True, 0, 0),
        "same_then_own": (1, False, 0, 0),
    }
    assert {of["final"] for of in methods.values()} == {1}, "DistributedDataParallel sent rank 0's weights"
    assert {of["steps"] for of in methods.values()} == {60}


def test_without_the_broadcast_unseeded_ranks_are_two_networks(two_ranks):
    ranks = two_ranks.runs[8:10]
    assert [run.name for run in ranks] == ["rank 0", "rank 1"]
    assert compare(*ranks).first_step == 1
    assert ranks[0].fingerprints != ranks[1].fingerprints


def test_another_world_size_gives_other_bits_and_close_values(two_ranks):
    alone, together = two_ranks.runs[10:]
    assert (alone.name, together.name) == ("world size 1", "world size 2")
    divergence = compare(alone, together)
    assert 0 < divergence.max_rel < 1e-5
    assert alone.fingerprints != together.fingerprints


def test_the_losses_fall(two_ranks):
    """A comparison of runs that learn nothing would show nothing."""
    assert all(run.metrics["loss"][-1] < run.metrics["loss"][0] for run in two_ranks.runs)


def test_in_the_trainings_epochs_have_another_order_and_ranks_other_samples(two_ranks):
    for name, of in two_ranks.results["methods"].items():
        assert of["same_places"] < 10, name
        assert (of["taken_twice"] == 0) == (name in ("same", "same_then_own")), "two splits overlap"


@pytest.mark.parametrize("seed", [0, 42])
def test_the_forgotten_set_epoch_repeats_the_order(seed):
    assert multi_gpu_seeding.same_places(False, seed) == 48
    assert multi_gpu_seeding.same_places(True, seed) < 10


def test_the_samplers_own_seed_is_not_reached():
    orders = []
    with isolate_rng():
        for seed in (3, 4):
            seed_everything(seed)
            orders.append(list(DistributedSampler(range(20), 2, 0)))
    assert orders[0] == orders[1]


@pytest.mark.slow
def test_torchrun_started_by_hand_gives_the_same_weights(two_ranks, tmp_path):
    """The line on the page; a second launch, whose seeded trainings end with the fingerprints of the first."""
    file = tmp_path / "a.json"
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    done = demo("--ddp", "--lang", "en", "--json", str(file), launcher=launcher)
    assert done.returncode == 0, done.stderr
    record = Record.load(file)
    for at in (2, 3, 4, 5, 6, 7, 10, 11):
        assert record.runs[at].fingerprints == two_ranks.runs[at].fingerprints
        assert record.runs[at].metrics == two_ranks.runs[at].metrics
    assert record.command == "python demos/multi_gpu_seeding.py --ddp"
    assert done.stdout.splitlines() == lines(record), "one rank speaks"


def test_plain_python_starts_torchrun_and_prints_what_rank_0_says(tmp_path):
    files = tmp_path / "a.json", tmp_path / "a.svg"
    done = demo("--ddp", "--runs", "1", "--lang", "zh", "--json", str(files[0]), "--plot", str(files[1]))
    assert done.returncode == 0, done.stderr
    assert done.stderr == "用 torchrun 启动 2 个进程\n"
    record = Record.load(files[0])
    assert done.stdout.splitlines() == lines(record, "zh")
    assert record.command == "python demos/multi_gpu_seeding.py --ddp --runs 1"
    assert "<svg" in files[1].read_text(encoding="utf-8")
    assert sorted(tmp_path.iterdir()) == sorted(files)


def test_ranks_that_do_not_divide_the_batch_are_refused_in_one_line():
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "5")
    done = demo("--ddp", "--lang", "en", launcher=launcher)
    assert done.returncode != 0
    line = "multi_gpu_seeding.py: error: cannot train with 5 ranks: the global batch of 24 samples does not divide by it"
    assert line in done.stderr


# Bad input --------------------------------------------------------------------------------------------------

BAD = [
    (["--gpus", "0"], "argument --gpus: needs a whole number from 1, but was given '0'"),
    (["--gpus", "100000"], "cannot make 100000 virtual GPUs: give a whole number from 1 to 1024"),
    (["--gpu", "B1"], "cannot make a virtual GPU: there is no GPU 'B1' in the table; it has K80, P100"),
    (["--seed", "-1"], "cannot seed with -1: a seed is a whole number from 0 to 4294967295"),
    (["--seed", str(2**64)], f"cannot seed with {2**64}: a seed is a whole number from 0 to 4294967295"),
    (["--ddp", "--device", "mps"], "cannot compute on mps: PyTorch finds no such device here"),
    (["--runs", "0"], "argument --runs: needs a whole number from 1, but was given '0'"),
    (["--port", "0", "--ddp"], "argument --port: needs a whole number from 1, but was given '0'"),
    (
        ["--port", "70000", "--ddp"],
        "cannot start processes that meet at port 70000: it is in use, or no port",
    ),
    (["--plot", "a.gif"], "its name must end in one of .svg, .png, .pdf"),
]


@pytest.mark.parametrize(("arguments", "line"), BAD, ids=[" ".join(arguments) for arguments, _ in BAD])
def test_bad_input_gets_one_clear_line_before_any_work(arguments, line, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        multi_gpu_seeding.main([*arguments, "--lang", "en"])
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)
    assert capsys.readouterr().out == ""
    assert list(tmp_path.iterdir()) == []


# Figures ----------------------------------------------------------------------------------------------------


def test_the_figure_shows_the_masks_and_marks_the_others(four_gpus):
    pictures = four_gpus.results["pictures"]
    figure = plot_pictures(pictures)
    assert len(figure.axes) == 16
    for at, axes in enumerate(figure.axes):
        image = pictures[at // 4]["images"][at % 4]
        (outline,) = (patch.get_path() for patch in axes.patches)
        inside = [
            int(any(part.contains_point((x + 0.5, y + 0.5)) for part in split(outline)))
            for y in range(10)
            for x in range(10)
        ]
        assert inside == image
    colors = [axes.patches[0].get_facecolor() for axes in figure.axes]
    assert [color == colors[0] for color in colors] == [True] * 8 + [True, False, False, False] * 2


def split(outline):
    corners = outline.vertices.reshape(-1, 5, 2)
    return [type(outline)(box, closed=True) for box in corners]


@pytest.mark.parametrize(
    ("lang", "about"),
    [
        ("en", "Dropout masks after derive_seed(42, rank): 4 different of 4 pictures."),
        ("zh", "derive_seed(42, rank) 之后的随机失活掩码：4 张图片中有 4 张不同。"),
    ],
)
def test_the_figure_of_the_site_has_words_and_a_table(four_gpus, lang, about):
    assert about in figure_svg("pictures", four_gpus, lang, "narrow")
    table = figure_table("pictures", four_gpus, lang)
    assert [len(row) for row in table] == [5] * 5
    assert table[0][1:] == ["GPU 0", "GPU 1", "GPU 2", "GPU 3"]
    first = "".join(".#"[dot] for dot in four_gpus.results["pictures"][0]["images"][0])
    assert table[1][1].replace(" ", "") == first


def test_a_record_without_pictures_is_refused(two_ranks):
    for draw in (figure_svg, figure_table):
        arguments = ("wide",) if draw is figure_svg else ()
        with pytest.raises(InputError, match="cannot draw pictures: the record has none"):
            draw("pictures", two_ranks, "en", *arguments)
    with pytest.raises(InputError, match="cannot draw pictures"):
        plot_pictures([])


@pytest.mark.parametrize(("lang", "shown"), [("en", "world size 2"), ("zh", "用 2 个进程")])
def test_ranks_and_world_sizes_are_named_in_the_figure(two_ranks, lang, shown):
    cut = Record(**{**vars(two_ranks), "runs": two_ranks.runs[10:]})
    assert shown in figure_svg("divergence", cut, lang, "wide")


# The pages --------------------------------------------------------------------------------------------------


def test_the_examples_on_the_page_run():
    """The English page's; tests/test_site.py holds that the Chinese one has the same."""
    page = (ROOT / "docs/en/lessons/multi_gpu_seeding.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(blocks)], capture_output=True, text=True, check=True
    )
    seeds, recipe, moved = done.stdout.splitlines()
    assert seeds.split() == [str(derive_seed(42, rank)) for rank in (0, 1)]
    assert recipe == "True"
    assert f"`{moved}`" in page


class Draws(Dataset):
    """A number drawn by the worker, for each of two items."""

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return torch.rand(1)


def test_workers_start_from_the_generator_of_their_rank():
    """The page's last row: the line that seeds dropout seeds the augmentation in the workers too."""

    def drawn(seed: int) -> list[float]:
        with isolate_rng():
            seed_everything(seed)
            return [batch.item() for batch in DataLoader(Draws(), batch_size=1, num_workers=1)]

    assert drawn(derive_seed(42, 0)) == drawn(derive_seed(42, 0))
    assert drawn(derive_seed(42, 0)) != drawn(derive_seed(42, 1))
    assert drawn(42) == drawn(42), "the same seed on every rank: the same augmentation"


def test_the_published_record_says_what_a_run_says(four_gpus):
    experiments = json.loads(
        (ROOT / "docs/assets/records/multi_gpu_seeding.cpu.json").read_text(encoding="utf-8")
    )["experiments"]
    assert experiments["gpus"]["results"]["collisions"] == four_gpus.results["collisions"]
    assert experiments["gpus"]["results"]["pictures"] == four_gpus.results["pictures"]
    if not torch.cuda.is_available():
        assert experiments["gpus"]["results"]["repeats"] == four_gpus.results["repeats"]

"""The lesson's claims: one seed, several streams; an extra draw shifts one of them; a generator of one's own stays."""

import random
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from demo_runs import lines, run_demo

from repro_tutorial.lessons import load_demo
from repro_tutorial.messages import InputError
from repro_tutorial.plots import plot_streams
from repro_tutorial.rng_state import advanced_generators, get_rng_state, isolate_rng
from repro_tutorial.runs import Record
from repro_tutorial.seeding import make_generator, seed_everything
from repro_tutorial.site_figures import figure_svg, figure_table
from repro_tutorial.virtual_cuda import RULES_OF, VirtualCudaGenerator

ROOT = Path(__file__).parent.parent
demo = partial(run_demo, "generators")
DEMO = ROOT / "demos" / "generators.py"
generators = load_demo(ROOT, "generators")
SEEDS = (0, 1, 3, 42, 2**32 - 1)  # no claim of the lesson is about one seed


@pytest.fixture(scope="module")
def seeded() -> Record:
    return generators.main(["--seed", "42", "--lang", "en"])


# Without a seed they differ, with one they repeat -----------------------------------------------------------


def test_runs_differ_without_a_seed():
    record = generators.main(["--lang", "en"])
    assert record.results["different"] == 2
    first, second = record.runs
    for name in ("python", "numpy", "torch_cpu", "torch_cuda"):
        assert not set(first.metrics[name]) & set(second.metrics[name]), name
    assert "2 runs, 2 different: runs 1 and 2 agree in 0 of 48 numbers" in lines(record)


def test_runs_repeat_with_a_seed(seeded):
    assert seeded.results["different"] == 1
    assert seeded.runs[0].metrics == seeded.runs[1].metrics
    assert "2 runs: identical bit for bit" in lines(seeded)


def test_fresh_processes_agree_too(tmp_path):
    runs = []
    for name in ("a.json", "b.json"):
        done = demo("--seed", "3", "--runs", "1", "--json", str(tmp_path / name))
        assert done.returncode == 0, done.stderr
        assert "1 run: nothing to compare; leave --runs out to make two" in done.stdout
        runs.append(Record.load(tmp_path / name).runs[0])
    assert runs[0] == runs[1]


def test_the_numbers_are_those_of_the_libraries(seeded):
    """What the columns claim to be, drawn here in the plainest way."""
    with isolate_rng():
        random.seed(42)
        np.random.seed(42)
        torch.manual_seed(42)
        expected = {
            "python": [random.random() for _ in range(12)],
            "numpy": np.random.rand(12).tolist(),
            "torch_cpu": torch.rand(12).tolist(),
            "torch_cuda": VirtualCudaGenerator().manual_seed(42).rand(12).tolist(),
        }
    assert {name: list(of) for name, of in seeded.runs[0].metrics.items()} == expected


def test_one_seed_gives_four_streams(seeded):
    """The page says that no two columns are alike."""
    columns = [set(of) for of in seeded.runs[0].metrics.values()]
    assert len(set.union(*columns)) == sum(map(len, columns)) == 48


def test_the_cuda_column_is_what_was_published_for_seed_42(seeded):
    assert [f"{number:.4f}" for number in seeded.runs[0].metrics["torch_cuda"][:4]] == [
        "0.6130",
        "0.0101",
        "0.3984",
        "0.0403",
    ]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_real_device_draws_what_was_recomputed():
    record = generators.main(["--seed", "42", "--device", "cuda", "--lang", "en"])
    assert any(line.endswith("12 of 12 numbers equal those recomputed") for line in lines(record))


# One extra draw, and the remedy -----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_an_extra_draw_shifts_what_comes_after_it(seed):
    with isolate_rng():
        plain, shifted = generators.program(seed), generators.program(seed, extra=True)
    assert shifted[:3] == plain[:3]
    assert shifted[3:-1] == plain[4:], "the same numbers, one place early"
    assert not set(shifted[3:]) & {plain[3]}, "the one that the extra draw took is lost"
    assert all(a != b for a, b in zip(shifted[3:], plain[3:], strict=True))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_generator_of_ones_own_is_not_moved_by_it(seed):
    with isolate_rng():
        plain, own = generators.program(seed), generators.program(seed, extra=True, own=True)
        alone = generators.program(seed, own=True)
    assert own == plain == alone


@pytest.mark.parametrize("seed", SEEDS)
def test_an_extra_draw_moves_one_generator(seed):
    with isolate_rng():
        assert generators.moved_by_extra_draw(seed) == ("torch_cpu",)


def test_isolating_the_extra_draw_undoes_the_shift():
    """The page's second remedy."""
    with isolate_rng():
        seed_everything(3)
        plain = torch.rand(5).tolist()
        seed_everything(3)
        head = torch.rand(3).tolist()
        with isolate_rng():
            torch.rand(1)
        assert head + torch.rand(2).tolist() == plain


# Habits of the two kinds ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_habits_of_both_kinds(seed):
    cpu = generators.habits(torch.Generator, seed)
    cuda = generators.habits(VirtualCudaGenerator, seed)
    expected = {"split": (5, 2), "seeds": (5, 0), "restored": (5, 5), "state_bytes": (5056, 16)}
    assert {name: (cpu[f"generators.{name}"], cuda[f"generators.{name}"]) for name in expected} == expected


@pytest.mark.parametrize("seed", SEEDS)
def test_randn_changes_its_rule_at_16_numbers(seed):
    short, shorter = (torch.randn(n, generator=make_generator(seed)) for n in (15, 14))
    assert torch.equal(short[:14], shorter), "below 16 one is a prefix of the other"
    assert generators.randn_prefix(seed) == 0


def test_states_are_those_of_torch():
    assert len(torch.get_rng_state()) == 5056
    generator = VirtualCudaGenerator().manual_seed(7)
    generator.rand(3)
    assert generator.get_state().view("<u8").tolist() == [7, 4], "the page says: seed and offset"


def test_each_call_moves_the_offset_not_each_number():
    offsets = []
    for count in (1, 100_000):
        generator = VirtualCudaGenerator().manual_seed(7)
        generator.rand(count)
        offsets.append(generator.get_state().view("<u8")[1])
    assert offsets == [4, 4]


@pytest.mark.parametrize("seed", SEEDS)
def test_numpy_and_torch_run_the_same_algorithm_from_the_same_start(seed):
    words = np.random.RandomState(seed).randint(2**32, size=8, dtype=np.uint32)
    drawn = torch.rand(8, generator=make_generator(seed)).numpy()
    assert drawn.tolist() == ((words & 0xFFFFFF) / 2**24).tolist()
    assert drawn[0] != np.float32(np.random.RandomState(seed).rand())


# Output, record, figure -------------------------------------------------------------------------------------


def test_facts_are_said_as_they_are_recorded(seeded):
    results = seeded.results
    assert results["extra"] == {
        "after": 3,
        "moved": "torch_cpu",
        "kept": 3,
        "early": 8,
        "behind": 8,
        "drawn": 12,
    }
    assert results["own"] == {"kept": 12, "drawn": 12}
    assert results["randn"] == {"equal": 0, "short": 15, "full": 16}
    said = lines(seeded)
    for line in (
        "One extra draw after number 3 moves torch_cpu: 3 of 12 numbers as before, 8 of 8 one place early",
        "A generator of your own, the same extra draw elsewhere: 12 of 12 numbers as before",
        "randn(15) against the start of randn(16) on the CPU: 0 of 15 equal",
        "rand(2), rand(3) against rand(5): CPU 5 of 5 equal, CUDA* 2 of 5",
        "Seed 0 against seed 2**32: CPU 5 of 5 equal, CUDA* 0 of 5",
        "State saved, 5 drawn, state restored, 5 drawn: CPU 5 of 5 equal, CUDA* 5 of 5",
        "Size of the state in bytes: CPU 5,056, CUDA* 16",
    ):
        assert line in said


def test_the_output_says_that_cuda_is_recomputed_and_by_which_rules(seeded):
    release = ".".join(map(str, RULES_OF))
    assert seeded.results["release"] == release
    assert f"* recomputed on the CPU: a virtual A100, by the rules of PyTorch {release}" in lines(seeded)
    if not torch.cuda.is_available():
        assert "* not compared with a CUDA device: none in use here" in lines(seeded)


def test_the_output_is_printed_side_by_side(seeded):
    said = lines(seeded)
    assert said[0] == "Run 1 of 2, seed 42"
    columns = [seeded.runs[0].metrics[name] for name in ("python", "numpy", "torch_cpu", "torch_cuda")]
    for place in range(4):
        assert said[2 + place].split() == [f"{column[place]:.7f}" for column in columns]
    starts = [said[1].index(name) for name in ("random", "NumPy", "torch, CPU", "torch, CUDA*")]
    assert starts == [said[2].index(number) for number in said[2].split()]
    assert said[7:13] == ["Run 2 of 2, seed 42", *said[1:6]]


def test_the_chinese_output_has_the_same_numbers(capsys):
    record = generators.main(["--seed", "42", "--lang", "zh"])
    out = capsys.readouterr().out.splitlines()
    assert out == lines(record, "zh")
    assert "2 次运行：逐位相同" in out
    assert out[1:6] == lines(record, "en")[1:6]
    for chinese, english in zip(out[-7:], lines(record, "en")[-7:], strict=True):
        assert set(re.findall(r"[\d,]*\d", chinese)) == set(re.findall(r"[\d,]*\d", english))


def test_many_runs_show_two_and_judge_all():
    record = generators.main(["--runs", "5", "--lang", "en"])
    assert len(record.runs) == 5
    assert record.results["different"] == 5
    assert sum(line.startswith("Run ") for line in lines(record)) == 2
    assert len(record.results["streams"]) == 4


def test_the_callers_generators_stay_where_they_were():
    before = get_rng_state()
    generators.main(["--seed", "3"])
    generators.main([])
    assert advanced_generators(before, get_rng_state()) == ()


def test_the_record_and_the_plot_are_written(tmp_path):
    files = tmp_path / "a.json", tmp_path / "a.svg"
    record = generators.main(["--seed", "3", "--gpu", "T4", "--json", str(files[0]), "--plot", str(files[1])])
    assert Record.load(files[0]).runs == record.runs
    assert Record.load(files[0]).command == "python demos/generators.py --seed 3 --gpu T4"
    assert record.results["gpu"] == "T4"
    assert "<svg" in files[1].read_text(encoding="utf-8")
    assert sorted(tmp_path.iterdir()) == sorted(files)


def test_the_figure_shows_the_shift(seeded):
    """A bar for each number, as high as it is; the second color where the first row has another."""
    figure = plot_streams(seeded.results["streams"])
    rows = [list(axes.patches[1::2]) for axes in figure.axes]
    heights = [[bar.get_height() for bar in row] for row in rows]
    assert heights == [stream["numbers"] for stream in seeded.results["streams"]]
    assert heights[0] == heights[1] == heights[3]
    assert heights[2][3:-1] == heights[0][4:]
    same = [[bar.get_facecolor() == rows[0][0].get_facecolor() for bar in row] for row in rows]
    assert same == [[True] * 12, [True] * 12, [True] * 3 + [False] * 9, [True] * 12]


@pytest.mark.parametrize(
    ("lang", "about"),
    [
        (
            "en",
            "4 rows of 12 random numbers. run 2: the same. run 1, extra draw: others from 4 on.",
        ),
        (
            "zh",
            "4 行随机数，每行 12 个。第 2 次运行：各数都相同。第 1 次运行，多取一次：从第 4 个数起不同。",
        ),
    ],
)
def test_the_figure_of_the_site_has_words_and_a_table(seeded, lang, about):
    assert about in figure_svg("streams", seeded, lang, "narrow")
    table = figure_table("streams", seeded, lang)
    assert len(table) == 13
    assert [row[1] for row in table[1:]] == [repr(number) for number in seeded.runs[0].metrics["torch_cpu"]]


def test_a_record_without_streams_is_refused(seeded):
    bare = Record("x", "x", "2026-11-30", {}, seeded.runs, {}, ())
    for draw in (
        lambda: figure_svg("streams", bare, "en", "wide"),
        lambda: figure_table("streams", bare, "en"),
    ):
        with pytest.raises(InputError, match="cannot draw streams: the record has none; give a record of"):
            draw()


# Bad input --------------------------------------------------------------------------------------------------

BAD = [
    (["--seed", "-1"], "cannot seed with -1: a seed is a whole number from 0 to 4294967295"),
    (["--seed", "4294967296"], "cannot seed with 4294967296: a seed is a whole number from 0 to 4294967295"),
    (["--seed", "1.5"], "cannot seed with '1.5': a seed is a whole number from 0 to 4294967295"),
    (["--gpu", "B1"], "cannot make a virtual GPU: there is no GPU 'B1' in the table; it has K80, P100"),
    (["--gpu", "a100"], "there is no GPU 'a100' in the table"),
    (["--gpu", ""], "there is no GPU '' in the table"),
    (["--gpu"], "argument --gpu: expected one argument"),
    (["--runs", "0"], "argument --runs: needs a whole number from 1, but was given '0'"),
    (["--plot", "a.gif"], "its name must end in one of .svg, .png, .pdf"),
]


@pytest.mark.parametrize(("arguments", "line"), BAD, ids=[" ".join(arguments) for arguments, _ in BAD])
def test_bad_input_gets_one_clear_line_before_any_work(arguments, line, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        generators.main([*arguments, "--lang", "en"])
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)
    assert capsys.readouterr().out == ""
    assert list(tmp_path.iterdir()) == []


def test_bad_input_ends_the_program_with_2_in_either_language():
    for lang, start in (
        ("en", "generators.py: error: cannot make a virtual GPU: "),
        ("zh", "generators.py：错误：无法建立虚拟 GPU："),
    ):
        done = demo("--gpu", "B1", "--lang", lang)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(start)
        assert done.stderr.count("\n") == 1


# The pages --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_example_on_the_page_prints_what_it_says(lang):
    page = (ROOT / "docs" / lang / "lessons" / "generators.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    code = re.sub(r"^ {4}", "", block, flags=re.MULTILINE)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert f"`{done.stdout.strip()}`" in page


def test_a_loader_draws_from_the_generator_that_it_is_given():
    """The page names DataLoader(…, generator=g) as a remedy."""

    def order(extra: bool) -> list[int]:
        torch.manual_seed(3)
        loader = torch.utils.data.DataLoader(
            range(20), shuffle=True, batch_size=None, generator=make_generator(3)
        )
        if extra:
            torch.rand(1)
        return list(loader)

    with isolate_rng():
        assert order(extra=False) == order(extra=True)


def test_a_newer_torch_is_warned_of(monkeypatch):
    monkeypatch.setattr("repro_tutorial.virtual_cuda.metadata.version", lambda name: "9.0.1")
    with pytest.warns(UserWarning, match=r"PyTorch 9\.0 is installed"):
        generators.main(["--runs", "1", "--lang", "en"])

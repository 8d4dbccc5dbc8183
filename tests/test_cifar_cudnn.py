"""The lesson's claims: runs differ without a seed and repeat with one, the old shuffle brings the source's numbers
back, and what is fast changes no bit."""

import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from demo_runs import lines, run_demo

from repro_tutorial.checkpoint import load_checkpoint, save_checkpoint
from repro_tutorial.datasets import has_cifar10, load_cifar10, synthetic_pictures
from repro_tutorial.determinism import get_switches, ineffective_switches
from repro_tutorial.divergence import compare
from repro_tutorial.lessons import load_demo
from repro_tutorial.messages import InputError, render
from repro_tutorial.rng_state import advanced_generators, get_rng_state, isolate_rng
from repro_tutorial.runs import Record, load_experiments

ROOT = Path(__file__).parent.parent
demo = partial(run_demo, "cifar_cudnn")
DEMO = ROOT / "demos" / "cifar_cudnn.py"
cifar = load_demo(ROOT, "cifar_cudnn")
PUBLISHED = load_experiments(ROOT / "docs" / "assets" / "records" / "cifar_cudnn.cpu.json")

DRAWN = ["--data", "synthetic", "--lang", "en"]
SHORT = [*DRAWN, "--steps", "12"]

REAL = Path(os.environ.get("REPRO_CIFAR10_DIR", ROOT / "data"))
needs_cifar10 = pytest.mark.skipif(
    not has_cifar10(REAL), reason="needs CIFAR-10 in REPRO_CIFAR10_DIR or data/"
)


@pytest.fixture(autouse=True, scope="module")
def pictures_are_drawn_once():
    """Two seconds for each of fifty runs otherwise."""
    drawn = synthetic_pictures()
    kept, cifar.synthetic_pictures = cifar.synthetic_pictures, lambda: drawn
    yield
    cifar.synthetic_pictures = kept


@pytest.fixture(scope="module")
def seeded() -> Record:
    return cifar.main([*SHORT, "--seed", "3"])


def bits(record: Record) -> set[tuple[str, str]]:
    """The fingerprints of the runs: of all losses and of the final weights."""
    return {tuple(sorted(run.fingerprints.values())) for run in record.runs}


# Without a seed they differ, with one they repeat -----------------------------------------------------------


def test_runs_differ_without_a_seed():
    record = cifar.main(SHORT)
    assert record.results["different"] == 2
    assert record.results["first_batch"] == 1
    assert any(
        line.startswith("2 runs, 2 different: part at batch 1; lines differ by") for line in lines(record)
    )
    assert "Run 1 of 2, no seed" in lines(record)


def test_runs_repeat_with_a_seed(seeded):
    assert seeded.results["different"] == len(bits(seeded)) == 1
    assert seeded.results["first_batch"] is None
    said = "2 runs: identical bit for bit (12 losses each, and all weights)"
    assert said in lines(seeded)


def test_two_seeds_differ(seeded):
    assert bits(cifar.main([*SHORT, "--seed", "4", "--runs", "1"])) != bits(seeded)


def test_the_verdict_names_the_first_batch_that_differs():
    out = cifar.Transcript("en")
    losses = [torch.tensor([1.0, 2.0, last]) for last in (3.0, 3.5)]
    runs = [
        cifar.Run(f"run {n}", 3, {"loss": (float(of.mean()),)}, {}, {"weights": str(n)})
        for n, of in enumerate(losses)
    ]
    assert cifar.judge(out, runs, losses)["first_batch"] == 3
    assert "part at batch 3" in render(out.lines[0], "en")


def test_equal_losses_with_other_weights_are_told():
    out = cifar.Transcript("en")
    runs = [cifar.Run(f"run {n}", 3, {"loss": (1.0,)}, {}, {"weights": str(n)}) for n in (1, 2)]
    cifar.judge(out, runs, [torch.ones(1)] * 2)
    assert render(out.lines[0], "en").endswith("losses are identical bit for bit, the final weights are not")


def test_the_network_and_the_optimizer_are_the_sources(seeded):
    with isolate_rng():
        net = cifar.make_network()
    shapes = [tuple(p.shape) for p in net.parameters() if p.dim() > 1]
    assert shapes == [(6, 3, 5, 5), (16, 6, 5, 5), (120, 400), (84, 120), (10, 84)]
    assert (cifar.BATCH, cifar.LEARNING_RATE, cifar.MOMENTUM, cifar.ROW) == (4, 0.001, 0.9, 2000)


# The fast path against the plain pipeline -------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", ["current", "torch-1.6"])
@pytest.mark.parametrize("workers", ["0", "2"])
def test_the_fast_path_changes_no_bit(shuffle, workers):
    arguments = [*DRAWN, "--steps", "40", "--seed", "5", "--runs", "1", "--shuffle", shuffle]
    assert bits(cifar.main(arguments)) == bits(cifar.main([*arguments, "--workers", workers]))


@pytest.mark.slow
@pytest.mark.parametrize("shuffle", ["current", "torch-1.6"])
def test_the_fast_path_changes_no_bit_in_2000_steps(shuffle):
    arguments = [*DRAWN, "--steps", "2000", "--seed", "3", "--runs", "1", "--shuffle", shuffle]
    assert bits(cifar.main(arguments)) == bits(cifar.main([*arguments, "--workers", "0"]))


@pytest.mark.parametrize("shuffle", ["current", "torch-1.6"])
def test_the_orders_are_those_of_dataloader_over_epochs(shuffle):
    """Two epochs: what the first draws moves the second."""
    numbers = torch.arange(30)
    order = {"sampler": cifar.LegacyShuffle(30)} if shuffle == "torch-1.6" else {"shuffle": True}
    loader = torch.utils.data.DataLoader(numbers, batch_size=4, **order)
    with isolate_rng():
        torch.manual_seed(7)
        theirs = [torch.cat(list(loader)).tolist() for _ in range(2)]
        after = torch.rand(1)
        torch.manual_seed(7)
        ours = [cifar.epoch_order(30, shuffle).tolist() for _ in range(2)]
        assert torch.equal(torch.rand(1), after)
    assert ours == theirs
    assert ours[0] != ours[1]


def test_the_shuffles_differ_in_their_order_and_in_nothing_else(seeded):
    """The weights are drawn before either shuffles, so that both runs start from one network."""
    old = cifar.main([*SHORT, "--seed", "3", "--shuffle", "torch-1.6"])
    assert old.results["different"] == 1
    assert bits(old) != bits(seeded)


def test_bytes_become_the_numbers_of_totensor_and_normalize():
    """All 256 of them; times 1/255 instead of divided by 255 would be other bits."""
    from torchvision.transforms import Normalize

    levels = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).expand(1, 3, 16, 16).contiguous()
    with isolate_rng():
        ((ours, _),) = cifar.preloaded(levels, torch.zeros(1, dtype=torch.int64), "current")
    theirs = Normalize((0.5,) * 3, (0.5,) * 3)(levels[0].float().div(255))
    assert torch.equal(ours[0], theirs)
    assert not torch.equal(levels.float().mul(1 / 255).sub(0.5).div(0.5), ours)


# Switches, threads ------------------------------------------------------------------------------------------


@pytest.mark.skipif(torch.cuda.is_available(), reason="on CUDA the switches do something")
@pytest.mark.parametrize("switch", ["--no-deterministic", "--algorithms"])
def test_on_a_cpu_the_switches_change_nothing(switch, seeded):
    record = cifar.main([*SHORT, "--seed", "3", switch, "--runs", "1"])
    assert bits(record) == bits(seeded)
    shows = record.runs[0].switches
    assert shows["cudnn_deterministic"] is (switch != "--no-deterministic")
    assert shows["cudnn_benchmark"] is (switch == "--no-deterministic")
    assert shows["deterministic_algorithms"] is (switch == "--algorithms")
    assert shows["cublas_workspace_config"] == (":4096:8" if switch == "--algorithms" else None)
    on, off = ("False", "True") if switch == "--no-deterministic" else ("True", "False")
    said = f"No cuDNN on cpu: deterministic = {on}, benchmark = {off} did nothing"
    assert lines(record)[-1] == said


def test_the_demo_sets_its_switches_and_puts_them_back(monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    generators, switches = get_rng_state(), get_switches()
    record = cifar.main([*SHORT, "--algorithms", "--threads", "2", "--runs", "1"])
    assert record.runs[0].switches["threads"] == 2
    assert advanced_generators(generators, get_rng_state()) == ()
    assert get_switches() == switches


def test_one_thread_is_the_default(seeded):
    assert seeded.runs[0].switches["threads"] == 1


def test_algorithms_that_come_too_late_are_told(monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(InputError, match="cannot make cuBLAS deterministic: CUDA has started with"):
        cifar.main([*SHORT, "--device", "cpu", "--algorithms"])


def test_the_library_says_that_the_switch_is_not_in_use():
    """The page's snippet."""
    if torch.cuda.is_available():
        pytest.skip("it is in use")
    with cifar.chosen_switches(SimpleNamespace(threads=1, algorithms=False, deterministic=True)):
        (one,) = [one for one in ineffective_switches() if one.name == "torch.backends.cudnn.deterministic"]
    assert "there is no CUDA device: cuDNN is not in use" in one.explain()


def test_deterministic_algorithms_reach_cudnn_though_its_flag_says_false():
    """What the source does not say: the flag governs cuDNN alone, the function governs every operator."""
    with cifar.chosen_switches(SimpleNamespace(threads=1, algorithms=True, deterministic=False)):
        names = [(one.name, one.reason) for one in ineffective_switches()]
        assert ("torch.backends.cudnn.deterministic", "cudnn_in_force") in names
        assert torch.isnan(torch.empty(3)).all(), "memory that nothing was written to is filled"
    with cifar.chosen_switches(SimpleNamespace(threads=1, algorithms=False, deterministic=True)):
        assert not torch.are_deterministic_algorithms_enabled()


# Interrupted and resumed ------------------------------------------------------------------------------------


def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A set of 40 pictures, so that an epoch has ten batches, and a checkpoint after every one."""
    few = synthetic_pictures(40)
    monkeypatch.setattr(cifar, "synthetic_pictures", lambda: few)
    monkeypatch.setattr(cifar, "SAVE_EVERY", 1)


RESUMED = [
    ("", 1),
    ("", 9),
    ("", 10),
    ("", 28),
    ("", 33),
    ("--shuffle torch-1.6", 33),
    ("--workers 0", 9),
    ("--workers 0", 38),
]


@pytest.mark.parametrize(("extra", "stop"), RESUMED, ids=[f"{extra} {stop}" for extra, stop in RESUMED])
def test_a_run_resumed_anywhere_has_the_same_record(extra, stop, tmp_path, monkeypatch, capsys):
    """In the middle of an epoch, at its ends, at the end of the first run, in the second."""
    small(monkeypatch)
    arguments = [*DRAWN, "--steps", "28", "--seed", "3", *extra.split()]
    whole = cifar.main(arguments)
    path = tmp_path / "run.pt"
    saves = 0

    def save(*given: object) -> None:
        nonlocal saves
        save_checkpoint(*given)
        saves += 1
        if saves == stop:
            raise KeyboardInterrupt

    monkeypatch.setattr(cifar, "save_checkpoint", save)
    with pytest.raises(KeyboardInterrupt):
        cifar.main([*arguments, "--checkpoint", str(path)])
    with isolate_rng():
        torch.rand(5)  # where a caller's generators stand must not matter
        resumed = cifar.main([*arguments, "--checkpoint", str(path)])
    assert (resumed.runs, resumed.results, resumed.transcript) == (
        whole.runs,
        whole.results,
        whole.transcript,
    )
    assert resumed.command == whole.command
    assert not path.exists(), "nothing is left to go on with"
    assert f"going on in run {1 + (stop > 28)} after batch" in capsys.readouterr().err


def test_unseeded_runs_are_resumed_too(tmp_path, monkeypatch, capsys):
    small(monkeypatch)
    path = tmp_path / "run.pt"
    arguments = [*DRAWN, "--steps", "20", "--runs", "1", "--checkpoint", str(path)]
    kept: list[float] = []

    def save(where: Path, state: dict) -> None:
        save_checkpoint(where, state)
        if len(state["training"]["losses"]) == 7:
            kept.extend(state["training"]["losses"].tolist())
            raise KeyboardInterrupt

    with monkeypatch.context() as first:
        first.setattr(cifar, "save_checkpoint", save)
        with pytest.raises(KeyboardInterrupt):
            cifar.main(arguments)
    record = cifar.main(arguments)
    assert record.runs[0].metrics["loss"][0] == pytest.approx(sum(kept[:5]) / 5)


@pytest.mark.slow
def test_ctrl_c_saves_and_the_same_command_goes_on(tmp_path):
    """A real signal in a real process, and the record of a process that nobody interrupted."""
    arguments = [*DRAWN, "--seed", "3", "--steps", "600", "--runs", "1"]
    whole, resumed = tmp_path / "whole.json", tmp_path / "resumed.json"
    assert demo(*arguments, "--json", str(whole)).returncode == 0
    again = [*arguments, "--checkpoint", str(tmp_path / "run.pt"), "--json", str(resumed)]
    process = subprocess.Popen(
        [sys.executable, DEMO, *again],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"LC_ALL": "C.UTF-8"},
    )
    while not process.stdout.readline().startswith("[1, 150]"):
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    told = r"saved after batch (\d+) of run 1; the same command goes on from there\n\ncifar_cudnn.py: interrupted\n"
    assert 150 <= int(re.fullmatch(told, errors)[1]) < 600
    assert [path.name for path in tmp_path.iterdir() if path != whole] == ["run.pt"]
    done = demo(*again)
    assert done.returncode == 0
    assert re.fullmatch(r"going on in run 1 after batch \d+\n", done.stderr)
    assert resumed.read_text() == whole.read_text()
    assert sorted(tmp_path.iterdir()) == [resumed, whole]


def test_a_checkpoint_of_another_run_is_refused(tmp_path, monkeypatch):
    small(monkeypatch)
    path = tmp_path / "run.pt"

    def save(where: Path, state: dict) -> None:
        save_checkpoint(where, state)
        raise KeyboardInterrupt

    with monkeypatch.context() as first:
        first.setattr(cifar, "save_checkpoint", save)
        with pytest.raises(KeyboardInterrupt):
            cifar.main([*SHORT, "--seed", "3", "--checkpoint", str(path)])
    with pytest.raises(InputError, match="it was made with other values of seed, shuffle; give the same"):
        cifar.main([*SHORT, "--seed", "4", "--shuffle", "torch-1.6", "--checkpoint", str(path)])
    settings = load_checkpoint(path)["settings"]
    assert settings["seed"] == 3
    assert set(settings) == {
        *("seed", "runs", "steps", "shuffle", "workers", "threads", "deterministic", "algorithms", "dtype"),
        *("device", "data", "torch"),
    }
    for name in settings:  # each of them changes the run
        with pytest.raises(InputError, match=f"it was made with other values of {name}; give the same"):
            cifar.restore(path, settings | {name: "other"}, "en")


def test_a_checkpoint_of_something_else_is_refused(tmp_path):
    path = tmp_path / "run.pt"
    for state in ({"settings": 3}, {"settings": {}}, {"net": torch.ones(1)}):
        save_checkpoint(path, state)
        with pytest.raises(InputError, match=r"run\.pt"):
            cifar.restore(path, {}, "en")


@pytest.mark.parametrize("content", [b"", b"no checkpoint", b"PK\x03\x04cut"], ids=["empty", "text", "cut"])
def test_a_file_that_is_no_checkpoint_is_left_alone(content, tmp_path):
    path = tmp_path / "run.pt"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"cannot go on from .*run.pt: it is no whole checkpoint; remove it"):
        cifar.main([*SHORT, "--checkpoint", str(path)])
    assert path.read_bytes() == content


# Output, record ---------------------------------------------------------------------------------------------


def test_the_output_has_the_format_of_the_source(seeded):
    said = lines(seeded)
    assert said[0].startswith("Data: 50,000 drawn pictures of ten shapes, not CIFAR-10")
    losses = seeded.runs[0].metrics["loss"]
    table = [f"[1, {step}] loss: {loss:.3f}" for step, loss in zip((3, 6, 9, 12), losses, strict=True)]
    assert said[1:9] == ["Run 1 of 2, seed 3", "Device: cpu", *table, "Finished Training", ""]
    assert said[10:17] == said[2:9]
    assert seeded.runs[0].steps_of("loss") == (3, 6, 9, 12)


@pytest.mark.parametrize(
    ("steps", "per_epoch", "printed"),
    [
        (25_000, 12_500, [*range(2000, 12_001, 2000), *range(14_500, 24_501, 2000)]),
        (2_000, 12_500, [500, 1000, 1500, 2000]),
        (3, 12_500, [1, 2, 3]),
        (20, 10, [5, 10, 15, 20]),
    ],
)
def test_lines_are_printed_where_the_source_prints_them(steps, per_epoch, printed):
    """2,000 batches a line; what is left at the end of an epoch is in none."""
    losses = [float(batch) for batch in range(1, steps + 1)]
    row = cifar.row_length(steps, per_epoch)
    lines = cifar.rows(losses, row, per_epoch)
    assert [step for _, _, step, _ in lines] == printed
    for epoch, batch, step, mean in lines:
        assert step == (epoch - 1) * per_epoch + batch
        assert mean == step - (row - 1) / 2


def test_the_chinese_output_has_the_same_numbers(seeded, capsys):
    cifar.main([*SHORT[:2], "--lang", "zh", "--steps", "12", "--seed", "3"])
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("数据：50,000 张绘制的图片")
    for chinese, english in zip(out[1:], lines(seeded)[1:], strict=True):
        assert sorted(re.findall(r"[\d.,]*\d", chinese)) == sorted(re.findall(r"[\d.,]*\d", english))


def test_the_record_and_the_plot_are_written_and_name_no_folder(tmp_path, capsys):
    folder = tmp_path / "anna lee"
    folder.mkdir()
    files = folder / "a.json", folder / "a.svg"
    record = cifar.main([*SHORT, "--json", str(files[0]), "--plot", str(files[1]), "--data-dir", str(folder)])
    assert Record.load(files[0]).runs == record.runs
    assert record.command == "python demos/cifar_cudnn.py --data synthetic --steps 12"
    assert "anna" not in files[0].read_text()
    assert "<svg" in files[1].read_text(encoding="utf-8")
    assert sorted(folder.iterdir()) == sorted(files)


def test_data_is_drawn_until_cifar10_is_there(tmp_path, capsys):
    arguments = ["--steps", "4", "--runs", "1", "--lang", "en", "--data-dir", str(tmp_path)]
    assert cifar.main(arguments).results["data"]["name"] == "synthetic"
    (tmp_path / "cifar-10-batches-py").mkdir()
    with pytest.raises(InputError, match="cannot read CIFAR-10: there is no"):
        cifar.main(arguments)


BAD = [
    (
        ["--workers", "-1"],
        "argument --workers: cannot load with '-1' worker processes: give a whole number from 0",
    ),
    (["--workers", "500"], "cannot load with '500' worker processes: give a whole number from 0 to 32"),
    (["--workers", "two"], "cannot load with 'two' worker processes"),
    (["--steps", "0"], "argument --steps: needs a whole number from 1, but was given '0'"),
    (["--threads", "0"], "cannot compute with '0' threads: give a whole number from 1 to 256"),
    (["--threads", "100000"], "cannot compute with '100000' threads: give a whole number from 1 to 256"),
    (["--runs", "0"], "argument --runs: needs a whole number from 1, but was given '0'"),
    (["--seed", "-1"], "cannot seed with -1: a seed is a whole number from 0 to 4294967295"),
    (["--device", "tpu"], "argument --device: invalid choice: 'tpu'"),
    (["--shuffle", "torch-2.0"], "argument --shuffle: invalid choice: 'torch-2.0'"),
    (["--data", "mnist"], "argument --data: invalid choice: 'mnist'"),
    (
        ["--data", "cifar10"],
        "cannot read CIFAR-10: there is no data/cifar-10-batches-py/data_batch_1; add --download",
    ),
    (["--data-dir", "file", "--data", "cifar10"], "cannot keep CIFAR-10 in file: it is a file"),
    (["--download", "--mirror", "x"], "cannot download from 'x': a mirror's address starts with http:// or"),
    (
        ["--download", "--mirror", "http://127.0.0.1:1/x"],
        "cannot download http://127.0.0.1:1/x: Connection refused",
    ),
    (["--checkpoint", "nowhere/run.pt"], "cannot write nowhere/run.pt: there is no folder nowhere"),
    (["--json", "nowhere/a.json"], "there is no folder nowhere"),
]


@pytest.mark.parametrize(("arguments", "line"), BAD, ids=[" ".join(arguments) for arguments, _ in BAD])
def test_bad_input_gets_one_clear_line_before_any_work(arguments, line, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(InputError) as caught:
        cifar.main([*arguments, "--lang", "en"])
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)
    assert capsys.readouterr().out == ""


def test_bad_input_ends_the_program_with_2_in_either_language():
    for lang, start in (("en", "cifar_cudnn.py: error: "), ("zh", "cifar_cudnn.py：错误：")):
        done = demo("--workers", "500", "--lang", lang)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(start)
        assert done.stderr.count("\n") == 1


# What is published, and the real data -----------------------------------------------------------------------


def test_the_old_shuffle_gives_the_sources_numbers():
    """The twelve lines of the record: the first is the source's, the others differ as rounding makes them differ."""
    table = PUBLISHED["source"].results["source"]
    assert [(row["epoch"], row["batch"]) for row in table] == list(cifar.SOURCE_LOSSES)
    assert [row["source"] for row in table] == list(cifar.SOURCE_LOSSES.values())
    assert table[0]["here"] == table[0]["source"] == 2.192
    for row, here in zip(table, PUBLISHED["source"].runs[0].metrics["loss"], strict=True):
        assert row["here"] == round(here, 3)
        assert row["difference"] == round(row["here"] - row["source"], 3)
        assert abs(row["difference"]) <= 0.006


def test_the_installed_shuffle_gives_others():
    """The page's story: same seed, same script, newer release, other numbers."""
    ours = PUBLISHED["source"].results["source"]
    current = PUBLISHED["current"].results["source"]
    assert current[0]["here"] != current[0]["source"]
    total = [sum(abs(row["difference"]) for row in table) for table in (ours, current)]
    assert total[1] > 3 * total[0]


def test_full_runs_are_in_float64_and_others_as_the_source_in_float32(monkeypatch, capsys):
    seen = []
    monkeypatch.setattr(cifar, "Training", lambda pictures, options, device: seen.append(options.dtype))
    monkeypatch.setattr(cifar, "make_runs", lambda *given: (_ for _ in ()).throw(KeyboardInterrupt))
    for more in ([], ["--full"], ["--full", "--dtype", "float32"], ["--dtype", "float64"]):
        with pytest.raises(KeyboardInterrupt):
            cifar.main([*DRAWN, *more])
    assert seen == ["float32", "float64", "float32", "float64"]


def test_another_order_of_additions_shows_in_float32_and_too_little_in_float64():
    """The reason for float64 in full runs. One thread against two, which add some gradients in another order."""
    gaps = {}
    for dtype in cifar.DTYPES:
        given = [*DRAWN, "--seed", "3", "--steps", "120", "--runs", "1", "--dtype", dtype]
        one, two = (cifar.main([*given, "--threads", threads]).runs[0] for threads in "12")
        gaps[dtype] = compare(one, two).max_rel
    assert gaps["float32"] > 0
    assert gaps["float64"] < 1e-6 * gaps["float32"]


@pytest.mark.parametrize("name", ["source", "single", "current", "real_unseeded"])
def test_records_of_real_data_say_what_it_was(name):
    data = PUBLISHED[name].results["data"]
    assert (data["name"], data["verified"], data["pictures"]) == ("cifar10", False, 50_000)
    assert data["origin"]["from_jpeg"] == 77


def test_on_the_page_the_switches_changed_no_bit():
    assert bits(PUBLISHED["switched"]) == bits(PUBLISHED["seeded"])


def test_the_drawn_pictures_are_learned_about_as_fast_as_cifar10():
    drawn, real = (PUBLISHED[name].runs[0].metrics["loss"] for name in ("synthetic", "current"))
    assert max(abs(a - b) for a, b in zip(drawn, real, strict=True)) < 0.25
    assert drawn[0] > 2
    assert 1 < drawn[-1] < 1.4


def first_row(experiment: str, *arguments: str) -> tuple[float, float]:
    """The first line of a full run as published, and as it comes out now: the mean of four shorter lines."""
    theirs = PUBLISHED[experiment]
    given = theirs.command.split()[2:]
    given.remove("--full")
    given += ["--dtype", "float64", "--steps", "2000", "--runs", "1", "--lang", "en"]
    fresh = cifar.main([*given, *arguments])
    assert fresh.results["data"] == theirs.results["data"]
    return theirs.runs[0].metrics["loss"][0], sum(fresh.runs[0].metrics["loss"]) / 4


@pytest.mark.slow
def test_the_full_run_on_drawn_pictures_begins_as_published():
    published, now = first_row("synthetic")
    assert now == pytest.approx(published, rel=1e-6)


@pytest.mark.slow
@needs_cifar10
@pytest.mark.parametrize("name", ["source", "current"])
def test_the_full_run_on_real_pictures_begins_as_published(name):
    published, now = first_row(name, "--data-dir", str(REAL))
    assert now == pytest.approx(published, rel=1e-6)


@needs_cifar10
def test_real_data_is_refused_unless_verified_or_asked_for(capsys):
    if load_cifar10(REAL, verify=False).verified:
        pytest.skip("these are the original files")
    with pytest.raises(InputError, match="its checksum is not the one that torchvision knows"):
        cifar.main(["--data", "cifar10", "--data-dir", str(REAL), "--steps", "4"])


def test_slow_records_are_measured_right():
    for name in ("source", "current", "real_unseeded", "synthetic"):
        record = PUBLISHED[name]
        assert record.results["divergence"] == compare(*record.runs).summary()
        assert record.results["different"] == (2 if name == "real_unseeded" else 1)

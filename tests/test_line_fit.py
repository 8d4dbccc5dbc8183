"""The lesson's claims: two fits differ without a seed, repeat with one, and give the source's ten losses."""

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch
from demo_runs import lines, run_demo

from repro_tutorial.lessons import load_demo
from repro_tutorial.messages import InputError, render
from repro_tutorial.rng_state import advanced_generators, get_rng_state, isolate_rng
from repro_tutorial.runs import Record

ROOT = Path(__file__).parent.parent
demo = partial(run_demo, "line_fit")
DEMO = ROOT / "demos" / "line_fit.py"
line_fit = load_demo(ROOT, "line_fit")


def test_two_fits_differ_without_a_seed(capsys):
    """Two draws of 301 weights agree by chance less often than once in 2**24."""
    record = line_fit.main(["--lang", "en"])
    assert record.results["different"] == 2
    assert record.results["divergence"]["first_step"] == 1
    assert record.results["divergence"]["max_abs_step"] <= 10, (
        "the page says that the gap is largest early on"
    )
    assert record.runs[0].metrics["loss"][-1] != record.runs[1].metrics["loss"][-1]
    assert "2 runs, 2 different: part at step 1" in lines(record)


def test_two_fits_repeat_with_a_seed(capsys):
    record = line_fit.main(["--seed", "3", "--lang", "en"])
    assert record.results["different"] == 1
    assert record.runs[0].metrics == record.runs[1].metrics
    assert record.runs[0].fingerprints == record.runs[1].fingerprints
    assert "2 runs: identical bit for bit" in lines(record)


def test_unseeded_runs_start_from_entropy_whatever_the_caller_seeded():
    with isolate_rng():
        torch.manual_seed(0)
        first = line_fit.fit("a", None, 1, "cpu")
        torch.manual_seed(0)
        second = line_fit.fit("b", None, 1, "cpu")
    assert first.metrics != second.metrics


def test_the_fingerprint_covers_every_weight(monkeypatch):
    seen = []
    monkeypatch.setattr(line_fit, "fingerprint_state_dict", lambda state: seen.append(set(state)) or "hash")
    with isolate_rng():
        assert line_fit.fit("a", 3, 1, "cpu").fingerprints == {"weights": "hash"}
    assert seen == [{"0.weight", "0.bias", "2.weight", "2.bias"}]


def test_three_runs_are_measured_against_the_first_by_the_widest(capsys):
    runs = [
        line_fit.Run(f"run {n}", None, {"loss": loss})
        for n, loss in enumerate([(1.0, 1.0), (1.0, 2.0), (9.0, 1.0)], 1)
    ]
    results = line_fit.judge(line_fit.Transcript("en"), runs)
    assert results["divergence"]["max_abs"] == 8.0
    assert results["different"] == 3
    assert "3 runs, 3 different: part at step 1" in capsys.readouterr().out


def test_two_seeds_differ(capsys):
    first = line_fit.main(["--seed", "3", "--runs", "1", "--steps", "1"])
    other = line_fit.main(["--seed", "4", "--runs", "1", "--steps", "1"])
    assert first.runs[0].metrics["loss"][0] != other.runs[0].metrics["loss"][0]


def test_seed_3_gives_the_ten_losses_of_the_source(capsys):
    losses = line_fit.main(["--seed", "3", "--runs", "1"]).runs[0].metrics["loss"]
    assert len(line_fit.SOURCE_LOSSES) == 10
    for t, published in line_fit.SOURCE_LOSSES.items():
        assert losses[t] == pytest.approx(published, rel=1e-5)


def test_the_output_has_the_format_of_the_source(capsys):
    record = line_fit.main(["--seed", "3", "--lang", "en"])
    out = capsys.readouterr().out.splitlines()
    assert out == lines(record)
    losses = record.runs[0].metrics["loss"]
    assert out[1:12] == ["Device: cpu", *(f"{t} {losses[t]}" for t in range(99, 1000, 100))]
    assert out[0] == "Run 1 of 2, seed 3"
    assert out[14:25] == out[1:12]


def test_the_chinese_output_has_the_same_numbers(capsys):
    record = line_fit.main(["--seed", "3", "--lang", "zh"])
    out = capsys.readouterr().out
    assert "2 次运行：逐位相同" in out
    assert out.splitlines()[1:12] == lines(record, "en")[1:12]


def test_fresh_processes_agree_too(tmp_path):
    """What one process repeats, two must: the claim is about runs, and a reader's runs are processes."""
    for name in ("a.json", "b.json"):
        assert demo("--seed", "3", "--runs", "1", "--json", str(tmp_path / name)).returncode == 0
    a, b = (Record.load(tmp_path / name).runs[0] for name in ("a.json", "b.json"))
    assert a == b


def test_fresh_unseeded_processes_differ(tmp_path):
    for name in ("a.json", "b.json"):
        assert demo("--runs", "1", "--steps", "1", "--json", str(tmp_path / name)).returncode == 0
    a, b = (Record.load(tmp_path / name).runs[0] for name in ("a.json", "b.json"))
    assert a.metrics != b.metrics


def test_the_callers_generators_stay_where_they_were(capsys):
    before = get_rng_state()
    line_fit.main(["--seed", "3", "--steps", "2"])
    line_fit.main(["--steps", "2"])
    assert advanced_generators(before, get_rng_state()) == ()


def test_many_runs_show_two_and_judge_all(capsys):
    record = line_fit.main(["--runs", "5", "--steps", "100", "--lang", "en"])
    assert len(record.runs) == 5
    assert [line for line in lines(record) if line.startswith("Run ")] == [
        "Run 1 of 5, no seed",
        "Run 2 of 5, no seed",
    ]
    assert "5 runs, 5 different: part at step 1" in lines(record)
    last = sorted(run.metrics["loss"][-1] for run in record.runs)
    assert record.results["last"] == {"lowest": last[0], "median": last[2], "highest": last[4]}
    gaps = [
        abs(x - y)
        for r in record.runs
        for x, y in zip(r.metrics["loss"], record.runs[0].metrics["loss"], strict=True)
    ]
    assert record.results["divergence"]["max_abs"] == max(gaps)


def test_the_record_and_the_plot_are_written(tmp_path, capsys):
    files = tmp_path / "fit.json", tmp_path / "fit.svg"
    record = line_fit.main(
        ["--seed", "3", "--steps", "120", "--json", str(files[0]), "--plot", str(files[1])]
    )
    assert Record.load(files[0]).runs == record.runs
    assert Record.load(files[0]).command == "python demos/line_fit.py --seed 3 --steps 120"
    assert "<svg" in files[1].read_text(encoding="utf-8")
    assert sorted(tmp_path.iterdir()) == sorted(files)


def test_the_record_names_no_folder(tmp_path, capsys):
    folder = tmp_path / "anna lee"
    folder.mkdir()
    record = line_fit.main(
        ["--steps", "3", "--json", str(folder / "a.json"), f"--plot={folder / 'b.svg'}", "--lang", "en"]
    )
    assert record.command == "python demos/line_fit.py --steps 3"
    assert "anna" not in (folder / "a.json").read_text()


def test_a_reader_that_leaves_early_loses_no_record(tmp_path):
    path = tmp_path / "a.json"
    command = f"{sys.executable} {DEMO} --seed 3 --json {path} | head -n 1"
    subprocess.run(command, shell=True, check=True, stdout=subprocess.DEVNULL)
    assert len(Record.load(path).runs) == 2


def test_a_terminal_without_chinese_letters_is_no_reason_to_stop():
    done = demo("--steps", "1", "--lang", "zh", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert done.returncode == 0, done.stderr


def test_one_file_for_two_things_is_refused(tmp_path):
    path = str(tmp_path / "a.svg")
    with pytest.raises(InputError, match="cannot write two things to"):
        line_fit.main(["--json", path, "--plot", path, "--lang", "en"])


def test_equal_losses_with_other_weights_are_told(capsys):
    out = line_fit.Transcript("en")
    runs = [line_fit.Run(f"run {n}", 3, {"loss": (1.0,)}, fingerprints={"weights": str(n)}) for n in (1, 2)]
    line_fit.judge(out, runs)
    assert lines_of(out) == ["2 runs: the losses are identical bit for bit, the final weights are not"]


def lines_of(out) -> list[str]:
    return [render(line, "en") for line in out.lines]


def test_matplotlib_is_loaded_for_a_plot_alone():
    code = "import sys, runpy; sys.argv = ['line_fit.py', '--steps', '1']\ntry: runpy.run_path({!r}, run_name='__main__')\nexcept SystemExit: pass\nprint('matplotlib' in sys.modules, 'torchvision' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code.format(str(DEMO))], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "False False"


BAD = [
    (["--seed", "-1"], "cannot seed with -1: a seed is a whole number from 0 to 4294967295"),
    (["--seed", "4294967296"], "cannot seed with 4294967296: a seed is a whole number from 0 to 4294967295"),
    (["--seed", "1.5"], "cannot seed with '1.5': a seed is a whole number from 0 to 4294967295"),
    (["--seed", "abc"], "cannot seed with 'abc': a seed is a whole number from 0 to 4294967295"),
    (["--seed"], "argument --seed: expected one argument"),
    (["--runs", "0"], "argument --runs: needs a whole number from 1, but was given '0'"),
    (["--steps", "0"], "argument --steps: needs a whole number from 1, but was given '0'"),
    (["--steps", "-5"], "needs a whole number from 1, but was given '-5'"),
    (["--device", "tpu"], "argument --device: invalid choice: 'tpu'"),
    (["--device", "mps"], "cannot compute on mps: PyTorch finds no such device here"),
    (["--plot", "fit.gif"], "its name must end in one of .svg, .png, .pdf"),
    (["--plot", "nowhere/fit.svg"], "there is no folder nowhere"),
    (["--json", "nowhere/fit.json"], "there is no folder nowhere"),
    (["--lang", "fr"], "argument --lang: invalid choice: 'fr'"),
    (["--sed", "3"], "unrecognized arguments: --sed 3"),
]


@pytest.mark.parametrize(("arguments", "line"), BAD, ids=[" ".join(arguments) for arguments, _ in BAD])
def test_bad_input_gets_one_clear_line_before_any_work(arguments, line, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    if arguments[-1] == "mps" and torch.backends.mps.is_available():
        pytest.skip("this machine has the device")
    with pytest.raises(InputError) as caught:
        line_fit.main([*arguments, *([] if "--lang" in arguments else ["--lang", "en"])])
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)
    assert capsys.readouterr().out == ""
    assert list(tmp_path.iterdir()) == []


def test_bad_input_ends_the_program_with_2_in_either_language():
    for lang, start in (("en", "line_fit.py: error: "), ("zh", "line_fit.py：错误：")):
        done = demo("--seed", "-1", "--lang", lang)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(start)
        assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("option", ["--plot", "--json"])
def test_a_file_that_exists_is_left_alone(option, tmp_path):
    path = tmp_path / "mine.svg"
    path.write_text("mine")
    with pytest.raises(InputError, match="it exists already; give another name"):
        line_fit.main([option, str(path), "--lang", "en"])
    assert path.read_text() == "mine"


def test_ctrl_c_leaves_one_line_and_no_file(tmp_path):
    path = tmp_path / "fit.json"
    process = subprocess.Popen(
        [sys.executable, DEMO, "--runs", "100000", "--json", path],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"LC_ALL": "C.UTF-8"},
    )
    process.stdout.readline()  # the first run has been made: we are in the middle
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors == "\nline_fit.py: interrupted\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_commands_on_the_page_do_what_it_says(lang, tmp_path):
    """The page's last block records two runs and compares them; it says that the exit code is 0."""
    page = (ROOT / "docs" / lang / "lessons" / "line_fit.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    (tmp_path / "demos").symlink_to(ROOT / "demos")
    script = block.replace("python ", f"{sys.executable} ")
    done = subprocess.run(["bash", "-ec", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "loss" in done.stdout


# What the source says of this experiment, and what holds -----------------------------------------------


@pytest.mark.parametrize("kind", ["SGD", "RMSprop", "Adam"])
def test_optimizers_draw_no_random_numbers(kind):
    """The source counts SGD, RMSProp and Adam among those that involve random initialisation."""
    with isolate_rng():
        model = torch.nn.Linear(2, 1)
        before = get_rng_state()
        optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(4, 2)).sum().backward()
            optimizer.step()
        assert advanced_generators(before, get_rng_state()) == ()


def test_there_are_eight_points_and_two_linear_layers(monkeypatch, capsys):
    """The source says 7 pairs, sets N = 5 and never uses it, and calls the network one of 3 layers."""
    made, seen = [], []
    sequential = torch.nn.Sequential

    def watched(*layers: torch.nn.Module) -> torch.nn.Module:
        made.extend(layers)
        model = sequential(*layers)
        model.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0].shape))
        return model

    monkeypatch.setattr(torch.nn, "Sequential", watched)
    line_fit.main(["--seed", "3", "--runs", "1", "--steps", "1"])
    assert seen == [(8, 1)]
    assert [type(layer).__name__ for layer in made] == ["Linear", "ReLU", "Linear"]
    assert sum(parameter.numel() for layer in made for parameter in layer.parameters()) == 301


def test_the_seed_must_be_set_not_commented_out(capsys):
    """The source says to comment the two seeding lines out; they must be un-commented."""
    assert line_fit.main(["--steps", "1"]).results["different"] == 2
    assert line_fit.main(["--steps", "1", "--seed", "3"]).results["different"] == 1


def test_identical_means_on_one_machine_with_one_set_of_kernels(tmp_path):
    """The same seed on another processor gives other last digits; another instruction set shows it here."""
    if torch.backends.cpu.get_cpu_capability() == "DEFAULT":
        pytest.skip("this processor has one instruction set only")
    for name, capability in (("a.json", {}), ("b.json", {"ATEN_CPU_CAPABILITY": "default"})):
        assert (
            demo("--seed", "3", "--runs", "1", "--json", str(tmp_path / name), **capability).returncode == 0
        )
    a, b = (
        json.loads((tmp_path / name).read_text())["runs"][0]["metrics"]["loss"]
        for name in ("a.json", "b.json")
    )
    assert a != b
    assert all(math.isclose(x, y, rel_tol=5e-5) for x, y in zip(a, b, strict=True))

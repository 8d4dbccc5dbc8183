"""The verbs as a person calls them: output in both languages, exit codes, one clear line for bad input."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from repro_tutorial.cli import choose_device, language, progress, run, verbs
from repro_tutorial.messages import InputError
from repro_tutorial.runs import Record, Run, dump

ROOT = Path(__file__).parent.parent


def save(path: Path, *runs: Run) -> Path:
    Record("line_fit", "python demos/line_fit.py", "2026-11-30", {}, runs, {}, ()).save(path)
    return path


def one(*loss: float, seed: int = 3, weights: str = "00", name: str = "run 1") -> Run:
    return Run(name, seed, {"loss": loss}, fingerprints={"weights": weights})


@pytest.fixture
def files(tmp_path) -> dict[str, Path]:
    return {
        "a": save(tmp_path / "a.json", one(1.0, 0.5, 0.25)),
        "same": save(tmp_path / "same.json", one(1.0, 0.5, 0.25)),
        "b": save(tmp_path / "b.json", one(1.0, 0.5, 0.125, weights="01")),
        "weights": save(tmp_path / "weights.json", one(1.0, 0.5, 0.25, weights="01")),
        "short": save(tmp_path / "short.json", one(1.0, 0.5)),
        "two": save(tmp_path / "two.json", one(1.0, 0.5), one(1.0, 0.4, name="run 2")),
        "seeds": save(tmp_path / "seeds.json", *(one(1.0, 0.5, 0.25 * s, seed=s) for s in range(1, 5))),
    }


def test_compare_of_equal_runs(files, capsys):
    assert verbs(["compare", str(files["a"]), str(files["same"])]) == 0
    assert capsys.readouterr().out.splitlines()[-3:] == [
        "loss: identical bit for bit at all 3 steps",
        "weights: fingerprints equal",
        "2 runs: identical bit for bit",
    ]


def test_compare_of_runs_that_part(files, capsys):
    assert verbs(["compare", str(files["a"]), str(files["b"])]) == 1
    out = capsys.readouterr().out
    assert "loss: part at step 3; largest gap 0.125 at step 3 (relative 0.5, 8388608 ULP of float32)" in out
    assert out.endswith("weights: fingerprints differ\n2 runs: not identical\n")


def test_compare_finds_a_difference_that_only_the_weights_show(files, capsys):
    assert verbs(["compare", str(files["a"]), str(files["weights"])]) == 1
    assert "loss: identical bit for bit" in capsys.readouterr().out


def test_compare_within_one_file_and_in_chinese(files, capsys):
    assert verbs(["compare", "--lang", "zh", str(files["two"])]) == 1
    assert "loss：从第 2 步起不同" in capsys.readouterr().out


def test_compare_against_the_noise_of_seeds(files, capsys):
    assert verbs(["compare", str(files["a"]), str(files["b"]), "--seeds", str(files["seeds"])]) == 1
    assert "at step 3 the gap is 0.27 times what two seeds differ by" in capsys.readouterr().out


def test_compare_prints_json(files, capsys):
    assert verbs(["compare", "--json", str(files["a"]), str(files["b"])]) == 1
    data = json.loads(capsys.readouterr().out)
    assert data["verdict"] == "differ"
    assert data["metrics"][0]["first_step"] == 3
    assert data["metrics"][0]["gap"] == [0.0, 0.0, 0.125]
    assert data["fingerprints"] == {"weights": False}


def test_compare_reads_logs_and_leaves_clocks_out(tmp_path, capsys):
    a, b = tmp_path / "a.csv", tmp_path / "b.csv"
    a.write_text("step,loss,time\n10,0.5,1\n20,0.25,2\n")
    b.write_text("step,loss,time\n10,0.5,7\n20,0.25,9\n")
    assert verbs(["compare", str(a), str(b)]) == 0
    assert "not compared, since they read a clock: time\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("header", "row"), [("acc", "0.9"), ("acc,loss", "0.9,DIVERGED")], ids=["missing", "text"]
)
def test_compare_cannot_tell_when_one_run_lacks_a_metric(header, row, tmp_path, capsys):
    a, b = tmp_path / "a.csv", tmp_path / "b.csv"
    a.write_text("acc,loss\n0.9,0.5\n")
    b.write_text(f"{header}\n{row}\n")
    assert verbs(["compare", str(a), str(b)]) == 2
    out = capsys.readouterr().out
    assert "not compared, since one run lacks them or they hold more than numbers: loss\n" in out
    assert out.endswith("could not tell: what was compared is identical bit for bit\n")


def test_compare_cannot_tell_when_one_run_lacks_fingerprints(tmp_path, capsys):
    a = save(tmp_path / "a.json", one(1.0))
    b = save(tmp_path / "b.json", Run("run 1", 3, {"loss": (1.0,)}))
    assert verbs(["compare", str(a), str(b)]) == 2
    assert "weights" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("x", "y", "line"),
    [
        (0.0, -0.0, "loss: equal in value, but from step 2 not in bits (zeros of different sign)"),
        (1.0, float("nan"), "loss: part at step 2; at step 2 one is no number"),
    ],
    ids=["zero", "nan"],
)
def test_compare_tells_differences_without_a_gap(x, y, line, tmp_path, capsys):
    a, b = save(tmp_path / "a.json", one(1.0, x)), save(tmp_path / "b.json", one(1.0, y))
    assert verbs(["compare", str(a), str(b)]) == 1
    assert line in capsys.readouterr().out
    assert verbs(["compare", "--json", str(a), str(b)]) == 1
    json.loads(capsys.readouterr().out, parse_constant=lambda token: pytest.fail(f"{token} is not JSON"))


@pytest.mark.parametrize(
    ("names", "options", "problem"),
    [
        (
            ["a", "short"],
            [],
            "'loss' has 3 steps in one and 2 in the other (the first 2 are identical bit for bit)",
        ),
        (["a", "b"], ["--metric", "accuracy"], "a.json: run 1' has no such metric; it has loss"),
        (["a"], [], "it holds 1 runs, not two; give two files"),
        (["a", "b", "two"], [], "cannot compare 3 files"),
        (["a", "a"], [], "with itself: give two runs' files"),
        (["a", "b"], ["--seeds", "{a}"], "the runs given have 1 seed; give runs of at least two"),
        (["a", "missing"], [], "there is no such file; check the name"),
        (["a", "b"], ["--color"], "unrecognized arguments: --color"),
        ([], [], "the following arguments are required"),
    ],
    ids=["unequal", "metric", "one run", "three files", "itself", "one seed", "missing", "unknown", "none"],
)
def test_compare_refuses_in_one_line(names, options, problem, files):
    arguments = [str(files.get(name, files["a"].with_name(name))) for name in names]
    options = [option.format(**{name: str(path) for name, path in files.items()}) for option in options]
    with pytest.raises(InputError) as caught:
        verbs(["compare", *arguments, *options])
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "\n" not in caught.value.in_language("zh")


def test_list_shows_the_lessons_and_one_lessons_files(capsys):
    assert verbs(["list"]) == 0
    assert capsys.readouterr().out.startswith("line_fit              Two fits of the same line differ")
    assert verbs(["list", "line_fit", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["files"][0] == "demos/line_fit.py"
    with pytest.raises(InputError, match="there is no such lesson; there are line_fit, generators"):
        verbs(["list", "nothing"])


def test_env_tells_what_matters_and_nothing_private(capsys, monkeypatch):
    import getpass
    import platform

    monkeypatch.setenv("PYTHONHASHSEED", "7")
    assert verbs(["env", "--json"]) == 0
    out = capsys.readouterr().out
    data = json.loads(out)
    assert data["variables"]["PYTHONHASHSEED"] == "7"
    assert {
        "torch",
        "numpy",
        "python",
        "cpu_capability",
        "threads",
        "blas",
        "devices",
        "switches",
    } <= data.keys()
    assert data["ineffective_switches"][0]["name"] == "PYTHONHASHSEED"
    for private in (platform.node(), str(Path.home()), str(Path.cwd()), sys.prefix):
        assert private not in out, private
    assert f'"{getpass.getuser()}"' not in out

    assert verbs(["env", "--lang", "zh"]) == 0
    assert "! PYTHONHASHSEED=7 是在 Python 启动之后才赋值的" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "lang", "line"),
    [
        (["frobnicate"], "en", "invalid choice: 'frobnicate'"),
        (["frobnicate"], "zh", "参数 verb：无效的值 'frobnicate'（可选："),
        (["compare"], "zh", "缺少必需的参数：FILE"),
        (["list", "--nope"], "zh", "无法识别的参数：--nope"),
        (["list", "--lang"], "en", "expected one argument"),
    ],
    ids=["en", "zh", "required", "unknown", "value"],
)
def test_wrong_arguments_get_one_line_in_the_readers_language(arguments, lang, line):
    with pytest.raises(InputError) as caught:
        verbs(
            [arguments[0], *(["--lang", lang] if arguments[-1] != "--lang" else []), *arguments[1:]]
            if arguments[0] != "frobnicate"
            else ["--lang", lang, *arguments]
        )
    assert line in str(caught.value)


def test_help_is_in_the_readers_language(capsys):
    with pytest.raises(SystemExit) as done:
        verbs(["compare", "--lang", "zh", "--help"])
    assert done.value.code == 0
    out = capsys.readouterr().out
    assert out.startswith("用法：python -m repro_tutorial compare")
    assert "选项" in out


@pytest.mark.parametrize(
    ("arguments", "lang"),
    [
        (["--lang", "zh"], "zh"),
        (["x", "--lang=zh"], "zh"),
        (["--lang", "fr"], "en"),
        (["--lang"], "en"),
        ([], "en"),
    ],
    ids=["apart", "joined", "unknown", "cut", "none"],
)
def test_the_language_is_known_before_the_arguments_are(arguments, lang, monkeypatch):
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    assert language(arguments) == lang


def test_run_turns_errors_and_interrupts_into_exit_codes(capsys, monkeypatch):
    def raising(error: BaseException):
        def main(argv: object) -> None:
            raise error

        return main

    monkeypatch.setattr(sys, "argv", ["demo.py"])
    assert run(raising(InputError("cli.bad_count", given="0"))) == 2
    assert capsys.readouterr().err == "demo.py: error: needs a whole number from 1, but was given 0\n"
    assert run(raising(KeyboardInterrupt())) == 130
    assert "interrupted" in capsys.readouterr().err
    assert run(raising(ZeroDivisionError())) == 2, "1 would say that something does not reproduce"
    assert "ZeroDivisionError" in capsys.readouterr().err
    assert run(raising(OSError(28, "No space left on device"))) == 2
    assert (
        capsys.readouterr().err
        == "demo.py: error: cannot print: the disk is full; give the output another place\n"
    )
    assert run(lambda argv: 1) == 1
    assert run(lambda argv: object()) == 0


def test_a_pipe_gets_no_progress_bar(capsys):
    assert list(progress(range(3), "line_fit.progress", "en")) == [0, 1, 2]
    assert capsys.readouterr() == ("", "")


def test_a_reader_that_closes_the_pipe_is_no_error():
    done = subprocess.run(
        f"{sys.executable} -m repro_tutorial env | head -n 1",
        shell=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.stderr == ""


def test_the_module_runs_as_a_program(files):
    done = subprocess.run(
        [sys.executable, "-m", "repro_tutorial", "compare", "--lang", "en", files["a"], files["short"]],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert re.match(
        "python -m repro_tutorial: error: cannot compare runs '.*a.json: run 1' and '", done.stderr
    )
    assert done.stderr.count("\n") == 1
    assert dump({}) == "{}\n"


def test_auto_takes_cuda_where_there_is_any(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device("auto") == "cuda"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == "cpu"


def test_the_environment_is_the_one_in_force():
    import torch

    from repro_tutorial.environment import describe_environment

    before = torch.get_num_threads()
    torch.set_num_threads(3)
    environment = describe_environment()
    torch.set_num_threads(before)
    assert environment["threads"] == 3
    assert environment["cpu"]
    assert environment["cpu_capability"] == torch.backends.cpu.get_cpu_capability()
    assert environment["blas"] != "unknown"

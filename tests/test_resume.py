"""The lesson's claims: with the whole state a new process goes on bit for bit, and without each part it does not."""

import re
import sys
from argparse import Namespace
from functools import partial
from pathlib import Path

import pytest
from demo_runs import lines, run_demo

from repro_tutorial.determinism import one_thread
from repro_tutorial.fingerprint import fingerprint_state_dict
from repro_tutorial.lessons import load_demo
from repro_tutorial.messages import InputError
from repro_tutorial.rng_state import isolate_rng
from repro_tutorial.runs import Record, load_experiments

ROOT = Path(__file__).parent.parent
demo = partial(run_demo, "resume")
resume = load_demo(ROOT, "resume")
PUBLISHED = load_experiments(ROOT / "docs" / "assets" / "records" / "resume.cpu.json")
PAGES = [ROOT / "docs" / lang / "lessons" / "resume.md" for lang in ("en", "zh")]


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("resume")
    return folder / "a.json", folder / "a.svg"


@pytest.fixture(scope="module")
def each(files) -> Record:
    return resume.main(["--lang", "en", "--json", str(files[0]), "--plot", str(files[1])])


def options(**changed) -> Namespace:
    return Namespace(**{"seed": 4, "workers": 0, "loader": "resumable"} | changed)


@pytest.fixture(name="one_thread")
def calm():
    with isolate_rng(), one_thread():
        yield


# With the whole state it repeats, without a part it differs -------------------------------------------------


def test_a_new_process_goes_on_bit_for_bit(each):
    assert each.results["different"] == 1
    assert each.runs[0].metrics == each.runs[1].metrics
    assert each.runs[0].fingerprints == each.runs[1].fingerprints
    assert "2 runs: identical bit for bit" in lines(each)


def test_every_way_of_leaving_something_out_parts(each):
    ways = each.results["ways"]
    assert list(ways) == ["nothing", *resume.WAYS]
    parted = {way: facts["first_step"] for way, facts in ways.items()}
    assert parted.pop("nothing") is None
    assert parted.pop("optimizer") == 32, "the first update without momentum shows in the loss after it"
    assert parted.pop("scheduler") == 42, "as the page says: at the next time that the rate is lowered"
    assert set(parted.values()) == {31}
    assert ways["nothing"]["max_abs"] == 0
    assert all(facts["max_abs"] > 0 and facts["last"] > 0 for way, facts in ways.items() if way != "nothing")
    assert len({facts["last"] for facts in ways.values()}) == len(ways), "each is a run of its own"


def test_masks_come_again_and_samples_are_missed(each):
    results = each.results
    assert results["masks"] == {"same": 30, "steps": 30}
    assert results["epoch_nothing"] == {"never": 0, "twice": 0, "samples": 192}
    for way in ("position", "order"):
        assert results[f"epoch_{way}"]["never"] == results[f"epoch_{way}"]["twice"] > 0


@pytest.mark.parametrize(("stop", "seed", "workers"), [(1, 0, 0), (24, 5, 0), (30, 2**32 - 1, 0), (30, 6, 2)])
def test_it_goes_on_from_any_place(stop, seed, workers, tmp_path, monkeypatch, one_thread):
    """Of the first epoch, between two, and in the middle: no claim of the lesson is about one seed or stop."""
    monkeypatch.setattr(resume, "STOP", stop)
    given = options(seed=seed, workers=workers)
    whole = resume.Training(given, "cpu", workers).train(40)
    first = resume.save_half(tmp_path / "a.pt", given, "cpu")
    second = resume.resume(tmp_path / "a.pt", "nothing", given, "cpu").train(40)
    assert first.losses + second.losses == whole.losses
    assert first.masks + second.masks == whole.masks
    assert first.samples + second.samples == whole.samples
    weights = [fingerprint_state_dict(of.model.state_dict()) for of in (whole, second)]
    assert weights[0] == weights[1]


def test_with_workers_their_generators_start_from_the_loaders():
    """As published, and the reason for it: this process's NumPy and Python generators draw nothing."""
    ways = PUBLISHED["workers"].results["ways"]
    equal = [way for way, facts in ways.items() if facts["first_step"] is None]
    assert equal == ["nothing", "numpy_rng", "python_rng"]


def test_other_workers_are_warned_of(tmp_path, one_thread):
    resume.save_half(tmp_path / "a.pt", options(), "cpu")
    with pytest.warns(UserWarning, match="the data was loaded by 0 workers, here by 2"):
        resume.resume(tmp_path / "a.pt", "workers", options(), "cpu")


def test_the_saved_learning_rate_wins(tmp_path, one_thread, monkeypatch):
    resume.save_half(tmp_path / "a.pt", options(), "cpu")
    monkeypatch.setattr(resume, "LEARNING_RATE", 7.0)
    again = resume.resume(tmp_path / "a.pt", "nothing", options(), "cpu")
    assert again.optimizer.param_groups[0]["lr"] == 0.02 / 2


# torchdata --------------------------------------------------------------------------------------------------


def test_what_was_recorded_with_torchdata():
    assert PUBLISHED["stateful"].results["different"] == 1
    assert (
        PUBLISHED["stateful_order"].results["divergence"]["first_step"] == 37
    )  # the next epoch begins there
    assert PUBLISHED["stateful_workers"].results["divergence"]["first_step"] == 31


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
def test_a_stateful_loader_goes_on_where_torchdata_is_installed(tmp_path, one_thread):
    pytest.importorskip("torchdata")
    given = options(loader="stateful")
    whole = resume.Training(given, "cpu", 0).train(resume.STEPS)
    first = resume.save_half(tmp_path / "a.pt", given, "cpu")
    losses = {}
    for way in ("nothing", "order"):
        second = resume.resume(tmp_path / "a.pt", way, given, "cpu").train(resume.STEPS)
        losses[way] = first.losses + second.losses
    assert losses["nothing"] == whole.losses
    assert losses["order"][:36] == whole.losses[:36]
    assert losses["order"][36] != whole.losses[36]


def test_without_torchdata_it_says_so(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torchdata.stateful_dataloader", None)
    with pytest.raises(InputError) as caught:
        resume.main(["--loader", "stateful", "--lang", "en"])
    assert str(caught.value) == (
        "cannot load with StatefulDataLoader: torchdata is not installed; "
        '`pip install -e ".[frameworks]"`, or leave --loader out'
    )


# Output, record, figure -------------------------------------------------------------------------------------


def test_the_output_shows_both_runs_and_the_table(each):
    said = lines(each)
    assert said[0] == "Run 1 of 2, seed 3: 60 steps at once"
    assert said[1:3] == [
        "Run 2 of 2, seed 3: saved after step 30, resumed in a new process",
        "  left out: nothing",
    ]
    assert [line.split()[0] for line in said[5:11]] == ["1", "29", "30", "31", "32", "60"]
    for line in said[5:11]:
        step, first, second = line.split()
        assert first == second == f"{each.runs[0].metrics['loss'][int(step) - 1]:.7f}"
    table = said[15:27]
    assert table[0] == "  never             0   nothing"
    for line, facts in zip(table[1:], list(each.results["ways"].values())[1:], strict=True):
        assert line.split()[:2] == [str(facts["first_step"]), f"{facts['max_abs']:.1e}"]
    assert said[-1] == "11 of 11 ways part; with the whole state it goes on bit for bit"


def test_the_chinese_output_has_the_same_numbers(each):
    english, chinese = lines(each), lines(each, "zh")
    assert "2 次运行：逐位相同" in chinese
    assert chinese[-1] == "11 种做法中有 11 种与不间断的运行不同；状态完整，则逐位相同"
    numbers = re.compile(r"\d[\d.e-]*")
    for one, other in zip(english[15:27], chinese[15:27], strict=True):
        assert numbers.findall(one.split("   ")[0]) == numbers.findall(other.split("   ")[0])


def test_the_record_and_the_plot_are_written(each, files):
    assert Record.load(files[0]).runs == each.runs
    assert Record.load(files[0]).command == "python demos/resume.py"
    assert "<svg" in files[1].read_text(encoding="utf-8")


def test_by_hand_in_two_parts(each, tmp_path, capsys):
    """The commands of the page; the second half in this process, where nothing may stay behind."""
    path = tmp_path / "half.pt"
    saved = resume.main(["--save", str(path), "--lang", "en"])
    assert lines(saved)[0].startswith("saved half.pt after step 30; weights ")
    record = resume.main(["--from", str(path), "--without", "nothing", "--lang", "en"])
    assert lines(record) == [
        f"{each.runs[0].metrics['loss'][-1]:.7f}  {each.runs[0].fingerprints['weights']}  nothing"
    ]
    assert sorted(tmp_path.iterdir()) == [path]
    assert str(tmp_path) not in str(record.to_json())


def test_one_run_has_nothing_to_be_compared_with():
    record = resume.main(["--runs", "1", "--lang", "en"])
    assert lines(record)[-1] == "1 run: nothing to compare; leave --runs out to make two"
    assert len(record.runs) == 1


# Bad input --------------------------------------------------------------------------------------------------

BAD = [
    (["--from", "nothing.pt"], "cannot read nothing.pt: there is no such file; check the name"),
    (
        ["--from", "text.pt"],
        "cannot go on from text.pt: it is no whole checkpoint; remove it to start again, or",
    ),
    (
        ["--save", "text.pt"],
        "cannot write text.pt: it exists already; give another name, or move it away first",
    ),
    (
        ["--save", "no/a.pt"],
        "cannot write no/a.pt: there is no folder no; make it first, or give another place",
    ),
    (["--save", "a.pt", "--json", "a.pt"], "cannot write two things to a.pt: give two names"),
    (["--workers", "99"], "cannot load with '99' worker processes: give a whole number from 0 to 32"),
    (["--workers", "-1"], "cannot load with '-1' worker processes: give a whole number from 0 to 32"),
    (["--without", "luck"], "argument --without: invalid choice: 'luck'"),
    (["--seed", "-1"], "cannot seed with -1: a seed is a whole number from 0 to 4294967295"),
    (["--runs", "0"], "argument --runs: needs a whole number from 1, but was given '0'"),
]


@pytest.mark.parametrize(("arguments", "line"), BAD, ids=[" ".join(arguments) for arguments, _ in BAD])
def test_bad_input_gets_one_clear_line_before_any_work(arguments, line, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("text.pt").write_text("no checkpoint")
    with pytest.raises(InputError) as caught:
        resume.main([*arguments, "--lang", "en"])
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)
    assert capsys.readouterr().out == ""
    assert list(tmp_path.iterdir()) == [tmp_path / "text.pt"]


def test_what_the_new_process_complains_of_is_passed_on(monkeypatch, one_thread):
    """Its line alone, without the name of the program before it; once in a real process."""
    done = demo("--from", "nothing.pt", "--lang", "zh")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "resume.py：错误：无法读取 nothing.pt：没有这个文件；请检查文件名\n"
    monkeypatch.setattr(resume, "save_half", lambda *given: None)
    monkeypatch.setattr(resume.subprocess, "run", lambda *given, **more: done)
    with pytest.raises(InputError) as caught:
        resume.broken_run(options(lang="zh", without="nothing"), "cpu")
    assert caught.value.in_language("zh") == (
        "后一半没有训练完：新进程出错退出（无法读取 nothing.pt：没有这个文件；请检查文件名）；请解决后重新运行"
    )


# The pages --------------------------------------------------------------------------------------------------


def blocks(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


def run_block(code: str, folder: Path, monkeypatch, capsys) -> list[str]:
    monkeypatch.chdir(folder)
    with isolate_rng():
        exec(compile(code, "page", "exec"), {})
    return capsys.readouterr().out.splitlines()


def test_both_pages_have_the_same_code():
    assert blocks(PAGES[0]) == blocks(PAGES[1])
    assert len(blocks(PAGES[0])) == 3


def test_the_two_lines_of_the_page_go_on_after_a_crash(tmp_path, monkeypatch, capsys):
    code = blocks(PAGES[0])[1]
    for name in ("whole", "broken"):
        (tmp_path / name).mkdir()
    whole = run_block(code, tmp_path / "whole", monkeypatch, capsys)
    assert whole[0] == "going on after step 0"
    assert whole[1].startswith("40 ")
    crash = code.replace("        step += 1\n", "        step += 1\n        assert step < 25\n")
    assert crash != code
    with pytest.raises(AssertionError):
        run_block(crash, tmp_path / "broken", monkeypatch, capsys)
    assert capsys.readouterr().out == "going on after step 0\n"
    assert run_block(code, tmp_path / "broken", monkeypatch, capsys) == ["going on after step 20", whole[1]]
    # The second start that the page warns of: there is nothing left to do.
    assert run_block(code.replace("loss.item()", ""), tmp_path / "broken", monkeypatch, capsys)[0] == (
        "going on after step 40"
    )


def test_the_example_with_live_tensors_prints_what_the_page_says(tmp_path, monkeypatch, capsys):
    (printed,) = run_block(blocks(PAGES[0])[2], tmp_path, monkeypatch, capsys)
    assert printed == "True False"
    assert all(f"`{printed}`" in page.read_text(encoding="utf-8") for page in PAGES)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
def test_the_example_with_torchdata_prints_true(tmp_path, monkeypatch, capsys):
    pytest.importorskip("torchdata")
    assert run_block(blocks(PAGES[0])[0], tmp_path, monkeypatch, capsys) == ["True"]
    without = blocks(PAGES[0])[0].replace(', "order": order}', "}")
    assert without != blocks(PAGES[0])[0]
    assert run_block(without, tmp_path, monkeypatch, capsys) == ["False"]


def test_the_first_screen_has_the_words_that_people_type():
    english, chinese = (page.read_text(encoding="utf-8")[:1200] for page in PAGES)
    for word in ("resum", "checkpoint", "loss", "curve", "RNG state", "second", "optimizer"):
        assert word in english.replace("\n", " "), word
    for word in ("断点续训", "loss 与不中断时不一致", "接不上", "第二次启动", "随机状态", "优化器"):
        assert word in chinese, word

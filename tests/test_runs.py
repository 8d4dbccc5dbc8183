"""Runs go through JSON bit for bit; broken files and other tools' logs are told apart from good ones."""

import json
import math
import random
import struct
import sys
from pathlib import Path

import pytest

from repro_tutorial.messages import InputError
from repro_tutorial.runs import (
    FORMAT_VERSION,
    Record,
    Recorder,
    Run,
    check_new,
    dump,
    is_clock,
    load_experiments,
    read_runs,
    write_new,
)


def record(**changes) -> Record:
    fields = {
        "lesson": "line_fit",
        "command": "python demos/line_fit.py",
        "recorded": "2026-11-30",
        "environment": {"torch": "2.14.1", "devices": ["cpu"]},
        "runs": (Run("run 1", 3, {"loss": (0.5, 0.25)}, {"threads": 2}, {"weights": "00ff"}),),
        "results": {"divergence": {"first_step": None}},
        "transcript": ("Device: cpu", {"key": "demo.identical", "values": {"runs": 2}}),
    }
    return Record(**fields | changes)


def bits(values) -> list[bytes]:
    return [struct.pack("<d", value) for value in values]


def test_a_record_comes_back_equal(tmp_path):
    path = tmp_path / "record.json"
    record().save(path)
    assert Record.load(path) == record()
    assert path.read_text().endswith("}\n")


def test_every_bit_of_ten_thousand_floats_comes_back(tmp_path):
    rng = random.Random(0)
    patterns = (struct.pack("<Q", rng.getrandbits(64)) for _ in range(10_000))
    values = [value for p in patterns if math.isfinite(value := struct.unpack("<d", p)[0])]
    values += [0.0, -0.0, 5e-324, math.inf, -math.inf]
    run = Run("run", None, {"loss": tuple(values)})
    path = tmp_path / "record.json"

    record(runs=(run,)).save(path)

    assert bits(Record.load(path).runs[0].metrics["loss"]) == bits(values)


def test_nan_and_infinity_are_written_as_text_that_every_json_parser_reads(tmp_path):
    run = Run("run", None, {"loss": (math.nan, math.inf, -math.inf, 1.0)})
    path = tmp_path / "record.json"
    record(runs=(run,), results={"max_abs": math.inf}).save(path)

    def refuse(token: str) -> None:
        raise AssertionError(f"{token} is not JSON")

    data = json.loads(path.read_text(), parse_constant=refuse)

    assert data["runs"][0]["metrics"]["loss"] == ["NaN", "Infinity", "-Infinity", 1.0]
    loaded = Record.load(path).runs[0].metrics["loss"]
    assert math.isnan(loaded[0])
    assert loaded[1:] == (math.inf, -math.inf, 1.0)


@pytest.mark.parametrize("bad", ["null", "true", '"0.5"', "[1]", "NaN", "Infinity", "1e999"])
def test_what_is_no_number_is_refused_with_metric_and_step(bad, tmp_path):
    path = tmp_path / "record.json"
    path.write_text(dump(record().to_json()).replace("0.25", bad))
    with pytest.raises(
        InputError, match=r"'loss' at step 2 is .*, which is no number; record the runs again"
    ):
        Record.load(path)


def test_a_truncated_record_is_named_as_such(tmp_path):
    whole = dump(record().to_json())
    path = tmp_path / "record.json"
    for length in range(0, len(whole) - 2, 7):
        path.write_text(whole[:length])
        with pytest.raises(InputError, match="it is no whole JSON"):
            Record.load(path)


def test_another_version_says_how_to_go_on(tmp_path):
    path = tmp_path / "record.json"
    path.write_text(dump(record().to_json() | {"format_version": 99}))
    with pytest.raises(InputError) as caught:
        Record.load(path)
    assert str(caught.value) == (
        f"cannot read the record {path}: it has format version 99, this package reads {FORMAT_VERSION}; "
        "record the runs again with the demo's --json"
    )


@pytest.mark.parametrize(
    "text", ["{}", "3", '{"format_version": 1}', '{"format_version": 1, "runs": 3}', "null"]
)
def test_json_that_is_no_record_is_refused(text, tmp_path):
    path = tmp_path / "record.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"cannot read a record from .*: it has no field"):
        Record.load(path)


@pytest.mark.parametrize("field", ["lesson", "runs", "results", "transcript", "environment"])
def test_a_missing_field_is_named(field, tmp_path):
    data = record().to_json()
    del data[field]
    path = tmp_path / "record.json"
    path.write_text(dump(data))
    with pytest.raises(InputError, match=field):
        Record.load(path)


def test_lists_of_numbers_stand_on_one_line():
    text = dump({"loss": [1.0, 2.5e-7, -3.0], "empty": [], "text": ["a", "[\n 1"]})
    assert '"loss": [1.0, 2.5e-07, -3.0]' in text
    assert json.loads(text) == {"loss": [1.0, 2.5e-7, -3.0], "empty": [], "text": ["a", "[\n 1"]}


def test_the_recorder_counts_steps_from_one_and_keeps_given_labels():
    recorder = Recorder("run", seed=3)
    for step in (10, 20):
        recorder.log(step=step, accuracy=step / 100)
        recorder.log(loss=1 / step)
    run = recorder.finish(weights="00")

    assert run.metrics == {"accuracy": (0.1, 0.2), "loss": (0.1, 0.05)}
    assert run.steps == {"accuracy": (10, 20)}
    assert list(run.steps_of("accuracy")) == [10, 20]
    assert list(run.steps_of("loss")) == [1, 2]
    assert run.switches["threads"] >= 1


def test_a_file_that_exists_is_never_overwritten(tmp_path):
    path = tmp_path / "record.json"
    path.write_text("mine")
    with pytest.raises(InputError, match="it exists already; give another name"):
        record().save(path)
    assert path.read_text() == "mine"


def test_a_folder_that_is_not_there_or_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(InputError, match="there is no folder"):
        check_new(tmp_path / "nowhere" / "record.json")
    if sys.platform == "linux":  # a folder that even root cannot write to
        with pytest.raises(InputError, match=r"cannot write /proc/record.json: .*; give another place"):
            check_new(Path("/proc/record.json"))
    with pytest.raises(InputError, match="the name is too long"):
        check_new(tmp_path / ("x" * 300))


def test_a_write_that_fails_leaves_nothing(tmp_path, monkeypatch):
    def full(self: Path, data: bytes) -> int:
        with self.open("wb") as file:
            file.write(data[:3])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(InputError, match="the disk is full"):
        write_new(tmp_path / "record.json", b"whole")
    assert list(tmp_path.iterdir()) == []


def test_published_records_are_read_by_experiment(tmp_path):
    one = record().to_json()
    del one["format_version"]
    path = tmp_path / "line_fit.cpu.json"
    path.write_text(dump({"format_version": 1, "lesson": "line_fit", "experiments": {"seeded": one}}))
    assert load_experiments(path) == {"seeded": record()}
    assert read_runs(path) == record().runs


LOGS = {
    "lightning.csv": (
        "epoch,step,train_loss,val_loss\n0,49,0.5,\n0,99,0.25,\n0,99,,0.3\n",
        {"train_loss": (0.5, 0.25), "val_loss": (0.3,)},
        {"train_loss": (49, 99), "val_loss": (99,)},
    ),
    "tensorboard.csv": (
        "Wall time,Step,Value\n1764500000.5,1,0.5\n1764500001.5,2,0.25\n",
        {"Wall time": (1764500000.5, 1764500001.5), "Value": (0.5, 0.25)},
        {},
    ),
    "wandb.csv": (
        '"Step","run - loss"\n"0","0.5"\n"10","0.25"\n',
        {"loss": (0.5, 0.25)},
        {"loss": (0, 10)},
    ),
    "plain.tsv": ("loss\tname\n0.5\ta\n0.25\tb\n", {"loss": (0.5, 0.25), "name": ()}, {}),
    "nan.csv": ("loss\n0.5\ninf\n-inf\n", {"loss": (0.5, math.inf, -math.inf)}, {}),
    "bom.csv": ("\ufeffloss\n0.5\n", {"loss": (0.5,)}, {}),
    "log.jsonl": (
        '{"step": 10, "loss": 0.5, "note": "x", "ok": true}\n\n{"step": 20, "loss": 0.25}\n',
        {"loss": (0.5, 0.25), "note": (), "ok": ()},
        {"loss": (10, 20)},
    ),
    "list.json": (
        '[{"iteration": 5, "loss": 1}, {"iteration": 6, "loss": 2}]',
        {"loss": (1, 2)},
        {"loss": (5, 6)},
    ),
    "trainer_state.json": (
        '{"epoch": 1.0, "log_history": [{"epoch": 0.5, "loss": 2.0, "step": 10}, {"epoch": 1.0, "eval_loss": 1.5, "step": 20}]}',
        {"epoch": (0.5, 1.0), "loss": (2.0,), "eval_loss": (1.5,)},
        {"epoch": (10, 20), "loss": (10,), "eval_loss": (20,)},
    ),
    "fractions.csv": ("epoch,loss\n0.5,2.0\n1.5,1.0\n", {"loss": (2.0, 1.0)}, {}),
}


@pytest.mark.parametrize("name", LOGS)
def test_logs_of_other_tools_are_read(name, tmp_path):
    text, metrics, steps = LOGS[name]
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")

    (run,) = read_runs(path)

    wanted = {key: value for key, value in metrics.items() if key != "epoch"}
    assert {key: value for key, value in run.metrics.items() if key != "epoch"} == wanted
    assert {key: value for key, value in run.steps.items() if key != "epoch"} == {
        key: value for key, value in steps.items() if key != "epoch"
    }


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("log.csv", "", "it holds no runs and no columns of numbers"),
        ("log.csv", "a,b\nx,y\n", "it holds no runs and no columns of numbers"),
        ("log.jsonl", '{"loss": 0.5}\n{"loss": 0.', "it is no whole JSON (line 2, column 11)"),
        ("log.jsonl", "3\n", "it holds no runs and no columns of numbers"),
        ("log.json", "[1, 2]", "it holds no runs and no columns of numbers"),
    ],
    ids=["empty", "words", "truncated", "no objects", "no rows"],
)
def test_logs_without_numbers_are_refused(name, text, problem, tmp_path):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_runs(path)
    assert problem in str(caught.value)


def test_files_that_are_missing_or_no_text_are_refused(tmp_path):
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(InputError, match="no UTF-8 text"):
        read_runs(tmp_path / "binary.csv")
    with pytest.raises(InputError, match="there is no such file; check the name"):
        read_runs(tmp_path / "missing.json")
    with pytest.raises(InputError, match="it is a folder"):
        read_runs(tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "Wall time",
        "_timestamp",
        "train_runtime",
        "step_time_ms",
        "time/total",
        "samples_per_second",
        "images/s",
        "elapsed",
    ],
)
def test_clocks_are_known_by_name(name):
    assert is_clock(name)


@pytest.mark.parametrize(
    "name",
    ["loss", "sentiment_acc", "update_norm", "timestep_embedding", "time_embedding_loss", "lifetime_value"],
)
def test_metrics_are_not_taken_for_clocks(name):
    assert not is_clock(name)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("step,loss,loss\n1,0.5,0.6\n", "several columns are called loss; give each a name of its own"),
        ("0.5,1.0\n0.4,0.9\n", "its first line holds numbers instead of the names of the columns"),
        ("loss;acc\n0,5;0,6\n", "separate cells by commas or tabs, and write decimals with a point"),
    ],
    ids=["repeated", "headerless", "semicolons"],
)
def test_tables_that_would_be_misread_are_refused(text, problem, tmp_path):
    path = tmp_path / "log.csv"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_runs(path)
    assert problem in str(caught.value)


def test_a_step_in_two_spellings_and_spaces_in_the_header(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text(" step , loss,Step\n10,0.5,1\n20,0.25,2\n")
    (run,) = read_runs(path)
    assert run.metrics["loss"] == (0.5, 0.25)
    assert run.steps["loss"] == (10, 20)


@pytest.mark.parametrize("bad", ["9" * 400, "9" * 5000, "[" * 5000])
def test_json_beyond_all_measure_is_refused_not_a_crash(bad, tmp_path):
    path = tmp_path / "record.json"
    path.write_text(dump(record().to_json()).replace("0.25", bad))
    with pytest.raises(InputError, match="cannot read"):
        Record.load(path)


def test_a_record_without_runs_is_refused_where_runs_are_wanted(tmp_path):
    path = tmp_path / "record.json"
    path.write_text(dump(record(runs=()).to_json()))
    with pytest.raises(InputError, match="it holds no runs"):
        read_runs(path)


def test_a_live_loss_is_logged_without_a_warning_and_a_bad_value_not_at_all():
    import torch

    recorder = Recorder("run", seed=None)
    recorder.log(loss=torch.ones(1, requires_grad=True).sum())
    with pytest.raises(ValueError, match="could not convert"):
        recorder.log(loss=2.0, accuracy="high")
    assert recorder.finish().metrics == {"loss": (1.0,)}


def test_two_writers_at_once_do_not_replace_each_other(tmp_path, monkeypatch):
    """The check comes before the work; what counts is the moment of writing."""
    import repro_tutorial.runs

    path = tmp_path / "record.json"
    monkeypatch.setattr(repro_tutorial.runs, "check_new", lambda path: None)
    write_new(path, b"first")
    with pytest.raises(InputError, match="it exists already"):
        write_new(path, b"second")
    assert path.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [path]


def test_an_experiment_that_is_no_record_is_not_passed_over(tmp_path):
    one = record().to_json()
    path = tmp_path / "line_fit.cpu.json"
    path.write_text(dump({"format_version": 1, "lesson": "line_fit", "experiments": {"good": one, "bad": 3}}))
    with pytest.raises(InputError, match=r"line_fit\.cpu\.json:bad: it has no field"):
        load_experiments(path)

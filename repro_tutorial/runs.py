"""A run, frozen, and the recorder that makes it; JSON in and out, exact to the last bit.

Also reads the logs that other tools write: CSV, JSON lines, a Trainer's ``log_history``.
"""

import csv
import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from repro_tutorial.messages import InputError, Line

FORMAT_VERSION = 1

# JSON has no such numbers, and a browser's parser refuses Python's spelling of them; they are kept as text.
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


@dataclass(frozen=True)
class Run:
    """One run, as data: its metrics per step and what it left behind.

    `seed` is ``None`` for a run that started from the operating system's entropy. `metrics` holds one
    value per step under each name; steps count from 1 unless `steps` gives a metric's own labels.
    `fingerprints` are hashes of final weights and the like.
    """

    name: str
    seed: int | None
    metrics: Mapping[str, tuple[float, ...]]
    switches: Mapping[str, bool | int | str | None] = field(default_factory=dict)
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    steps: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def steps_of(self, metric: str) -> Sequence[int]:
        """The step at which each value of `metric` was logged."""
        return self.steps.get(metric) or range(1, len(self.metrics[metric]) + 1)


class Recorder:
    """Collects a run's metrics while it goes, then freezes them.

    >>> recorder = Recorder("run 1", seed=3)
    >>> recorder.log(loss=0.5)
    >>> recorder.log(loss=0.25)
    >>> recorder.finish(weights="00ff").metrics
    {'loss': (0.5, 0.25)}

    Lesson: line_fit
    """

    def __init__(self, name: str, *, seed: int | None) -> None:
        self.name = name
        self.seed = seed
        self._values: dict[str, list[float]] = {}
        self._steps: dict[str, list[int]] = {}

    def log(self, /, *, step: int | None = None, **metrics: float) -> None:
        """Add one value to each metric: numbers, or tensors and arrays of one element.

        `step` labels the value; left out, each metric counts its own values from 1.
        """
        for name, value in metrics.items():
            values = self._values.setdefault(name, [])
            values.append(float(value))
            self._steps.setdefault(name, []).append(len(values) if step is None else step)

    def finish(self, **fingerprints: str) -> Run:
        """The run as it was: its metrics, the switches now in force, and `fingerprints`."""
        from repro_tutorial.determinism import switches_as_dict  # torch, which readers of runs do without

        return Run(
            name=self.name,
            seed=self.seed,
            metrics={name: tuple(values) for name, values in self._values.items()},
            switches=switches_as_dict(),
            fingerprints=fingerprints,
            steps=_own_steps(self._steps),
        )


def _own_steps(steps: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
    """Only the labels that say more than 1, 2, 3, …"""
    return {name: tuple(of) for name, of in steps.items() if list(of) != list(range(1, len(of) + 1))}


@dataclass(frozen=True)
class Record:
    """What a demo did: its runs, what was measured on them, where, and what it printed.

    `results` are plain numbers and texts that pages quote; `transcript` renders in every language
    (`repro_tutorial.messages.render`).
    """

    lesson: str
    command: str
    recorded: str  # date, ISO 8601
    environment: Mapping[str, Any]
    runs: tuple[Run, ...]
    results: Mapping[str, Any]
    transcript: tuple[Line, ...]

    def to_json(self) -> dict[str, Any]:
        """The record as JSON's own types."""
        return {
            "format_version": FORMAT_VERSION,
            "lesson": self.lesson,
            "command": self.command,
            "recorded": self.recorded,
            "environment": dict(self.environment),
            "runs": [_run_to_json(run) for run in self.runs],
            "results": dict(self.results),
            "transcript": list(self.transcript),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], source: str) -> Self:
        """The record in `data`; `source` names it in errors.

        Raises:
            InputError: another format version, a missing field, or a value that is no number.
        """
        _check_version(data, source)
        try:
            return cls(
                lesson=data["lesson"],
                command=data["command"],
                recorded=data["recorded"],
                environment=data["environment"],
                runs=tuple(_run_from_json(run, source) for run in data["runs"]),
                results=data["results"],
                transcript=tuple(data["transcript"]),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError("runs.not_a_record", file=source, problem=repr(error)) from error

    def save(self, path: Path) -> None:
        """Write the record to a new file `path`: whole, or not at all.

        Raises:
            InputError: `path` exists already or cannot be written.
        """
        write_new(path, dump(self.to_json()).encode())

    @classmethod
    def load(cls, path: Path) -> Self:
        """The record that `save` wrote.

        Raises:
            InputError: the file is missing, cut short, of another version, or no record.
        """
        return cls.from_json(_read_json(path), str(path))


def load_experiments(path: Path) -> dict[str, Record]:
    """A lesson's published records (``docs/assets/records/*.json``), by the name of the experiment.

    Raises:
        InputError: as `Record.load`.
    """
    data = _read_json(path)
    _check_version(data, str(path))
    if not isinstance(data.get("experiments"), dict):
        raise InputError("runs.not_a_record", file=path, problem="KeyError('experiments')")
    return {
        name: Record.from_json({"format_version": FORMAT_VERSION} | record, f"{path}:{name}")
        for name, record in data["experiments"].items()
    }


def dump(data: Mapping[str, Any]) -> str:
    """`data` as JSON that is kind to `git diff`: keys sorted, one line per entry, a list of numbers on one line."""
    pretty = json.dumps(_encode(data), indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False)
    # Strings hold no line breaks in JSON, so a bracket before one opens a real list.
    return re.sub(r"\[\n\s+([-+.\w\s,]+?)\n\s*\]", lambda m: f"[{' '.join(m[1].split())}]", pretty) + "\n"


def write_new(path: Path, data: bytes) -> None:
    """Write `data` to a file that did not exist: whole, or not at all.

    Raises:
        InputError: `path` exists or cannot be written.
    """
    check_new(path)
    partial = _partial(path)
    try:
        partial.write_bytes(data)
        partial.rename(path)
    except OSError as error:
        raise InputError("files.cannot_write", file=path, problem=error.strerror) from error
    finally:
        partial.unlink(missing_ok=True)


def check_new(path: Path) -> None:
    """Refuse, before the work is done, a `path` that `write_new` would refuse after it.

    Raises:
        InputError: `path` exists, or its folder does not or is not writable.
    """
    try:
        if path.exists() or path.is_symlink():
            raise InputError("files.exists", file=path)
        if not path.parent.is_dir():
            raise InputError("files.no_folder", file=path, folder=path.parent)
        _partial(path).touch()  # asking for permission is no proof of it: for root everything is allowed
        _partial(path).unlink()
    except OSError as error:
        raise InputError("files.cannot_write", file=path, problem=error.strerror) from error


def _partial(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.partial")


def _run_to_json(run: Run) -> dict[str, Any]:
    return {
        "name": run.name,
        "seed": run.seed,
        "switches": dict(run.switches),
        "metrics": {name: list(of) for name, of in run.metrics.items()},
        "fingerprints": dict(run.fingerprints),
        "steps": {name: list(of) for name, of in run.steps.items()},
    }


def _run_from_json(data: Mapping[str, Any], source: str) -> Run:
    return Run(
        name=data["name"],
        seed=data["seed"],
        switches=data["switches"],
        metrics={
            name: tuple(_decode(value, source, name, index) for index, value in enumerate(of, start=1))
            for name, of in data["metrics"].items()
        },
        fingerprints=data["fingerprints"],
        steps={name: tuple(of) for name, of in data["steps"].items()},
    )


def _encode(value: Any) -> Any:
    """`value` with the numbers that JSON lacks as text."""
    if isinstance(value, Mapping):
        return {key: _encode(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_encode(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _decode(value: object, source: str, metric: str, step: int) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    if isinstance(value, str) and value in _NOT_FINITE:
        return _NOT_FINITE[value]
    raise InputError("runs.not_a_number", file=source, metric=metric, step=step, value=repr(value))


def _check_version(data: object, source: str) -> None:
    version = data.get("format_version") if isinstance(data, dict) else None
    if version is None:
        raise InputError("runs.not_a_record", file=source, problem="KeyError('format_version')")
    if version != FORMAT_VERSION:
        raise InputError("runs.other_version", file=source, version=version, known=FORMAT_VERSION)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        problem = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise InputError("files.cannot_read", file=path, problem=problem) from error


def _read_json(path: Path) -> Any:
    try:
        return json.loads(_read_text(path))
    except json.JSONDecodeError as error:
        raise InputError("runs.bad_json", file=path, line=error.lineno, column=error.colno) from error


# Logs of other tools ------------------------------------------------------------------------------------

_STEP_COLUMNS = ("step", "global_step", "iteration", "iter", "batch", "epoch")  # the first that is there
_CLOCK = re.compile(
    r"(^|[^a-z])(time|walltime|timestamp|runtime|elapsed|duration|seconds)([ _./-]?(ms|s|sec|total))?$"
    r"|per_sec|/s(ec)?$",
    re.IGNORECASE,
)


def is_clock(metric: str) -> bool:
    """Whether `metric`, by its name, reads a clock: it differs in every run and says nothing of the result."""
    return _CLOCK.search(metric) is not None


def read_runs(path: Path) -> tuple[Run, ...]:
    """The runs in a file: a record, a lesson's published records, or another tool's log as one run.

    Logs are CSV with a header (Lightning's CSVLogger, TensorBoard, Weights & Biases exports), JSON lines,
    a JSON list of objects, or a Trainer's ``trainer_state.json``. Columns that hold no numbers are left
    out, empty cells too; the steps come from a column named step, global_step, iteration, … or epoch.

    Raises:
        InputError: the file cannot be read, or holds no numbers.
    """
    if path.suffix.lower() in (".csv", ".tsv"):
        return (_run_from_rows(_csv_rows(path), path),)
    if path.suffix.lower() in (".jsonl", ".ndjson"):
        return (_run_from_rows(_json_lines(path), path),)
    data = _read_json(path)
    if isinstance(data, dict) and isinstance(data.get("log_history"), list):
        data = data["log_history"]
    if isinstance(data, list):
        return (_run_from_rows(data, path),)
    _check_version(data, str(path))
    if "experiments" in data:
        return tuple(run for record in load_experiments(path).values() for run in record.runs)
    return Record.from_json(data, str(path)).runs


def _csv_rows(path: Path) -> Iterable[Mapping[str, object]]:
    lines = _read_text(path).splitlines()
    delimiter = "\t" if lines and "\t" in lines[0] else ","
    try:
        return list(csv.DictReader(lines, delimiter=delimiter))
    except csv.Error as error:
        raise InputError("files.cannot_read", file=path, problem=str(error)) from error


def _json_lines(path: Path) -> Iterable[Mapping[str, object]]:
    for number, line in enumerate(_read_text(path).splitlines(), start=1):
        if line.strip():
            try:
                yield json.loads(line)
            except json.JSONDecodeError as error:
                raise InputError("runs.bad_json", file=path, line=number, column=error.colno) from error


def _run_from_rows(rows: Iterable[Mapping[str, object]], path: Path) -> Run:
    recorder = Recorder(path.name, seed=None)
    for row in rows:
        if not isinstance(row, Mapping):
            raise InputError("runs.no_numbers", file=path)
        numbers = {str(name): number for name, cell in row.items() if (number := _number(cell)) is not None}
        names = {name.lower(): name for name in numbers}
        column = next((names[name] for name in _STEP_COLUMNS if name in names), None)
        label = math.nan if column is None else numbers.pop(column)
        recorder.log(step=int(label) if label.is_integer() else None, **numbers)
    run = Run(
        name=recorder.name,
        seed=None,
        metrics={name: tuple(of) for name, of in recorder._values.items()},
        steps=_own_steps(recorder._steps),
    )
    if not run.metrics:
        raise InputError("runs.no_numbers", file=path)
    return run


def _number(cell: object) -> float | None:
    if isinstance(cell, bool) or not isinstance(cell, str | int | float):
        return None
    try:
        return float(cell)
    except ValueError:
        return None

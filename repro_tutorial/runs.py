"""A run, frozen, and the recorder that makes it; JSON in and out, exact to the last bit.

Also reads the logs that other tools write: CSV, JSON lines, a Trainer's ``log_history``.
"""

import csv
import itertools
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from repro_tutorial.messages import InputError, Line, os_problem

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
        numbers = {name: float(_detached(value)) for name, value in metrics.items()}  # all, or an error
        for name, number in numbers.items():
            values = self._values.setdefault(name, [])
            values.append(number)
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


def _detached(value: Any) -> Any:
    """A tensor or array of one element as its number: PyTorch and NumPy warn where `float` takes it as it is."""
    return value.item() if hasattr(value, "item") else value


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
        except KeyError as error:
            raise InputError("runs.no_field", file=source, field=error.args[0]) from error
        except (TypeError, AttributeError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError("runs.bad_field", file=source, problem=str(error)) from error

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
        return cls.from_json(_read_json(Path(path)), str(path))


def load_experiments(path: Path) -> dict[str, Record]:
    """A lesson's published records (``docs/assets/records/*.json``), by the name of the experiment.

    Raises:
        InputError: as `Record.load`.
    """
    data = _read_json(path)
    _check_version(data, str(path))
    if not isinstance(data.get("experiments"), dict):
        raise InputError("runs.no_field", file=path, field="experiments")
    return {
        name: Record.from_json(
            {"format_version": FORMAT_VERSION} | record if isinstance(record, dict) else record,
            f"{path}:{name}",
        )
        for name, record in data["experiments"].items()
    }


def dump(data: Any) -> str:
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
        try:
            os.link(partial, path)  # fails where rename would replace a file that came in between
        except FileExistsError as error:
            raise InputError("files.exists", file=path) from error
        except OSError:  # a file system without links
            partial.rename(path)
    except OSError as error:
        raise InputError("files.cannot_write", file=path, problem=os_problem(error)) from error
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
        raise InputError("files.cannot_write", file=path, problem=os_problem(error)) from error


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
    steps = {name: tuple(of) for name, of in data["steps"].items()}
    for name, of in steps.items():
        if len(of) != len(data["metrics"][name]) or not all(isinstance(step, int) for step in of):
            raise ValueError(f"steps of {name}")
    return Run(
        name=data["name"],
        seed=data["seed"],
        switches=dict(data["switches"]),
        metrics={
            name: tuple(_decode(value, source, name, index) for index, value in enumerate(of, start=1))
            for name, of in data["metrics"].items()
        },
        fingerprints=dict(data["fingerprints"]),
        steps=steps,
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
    number = None if isinstance(value, str) else _number(value)
    if number is not None and math.isfinite(number):
        return number
    if isinstance(value, str) and value in _NOT_FINITE:
        return _NOT_FINITE[value]
    raise InputError("runs.not_a_number", file=source, metric=metric, step=step, value=repr(value))


def _check_version(data: object, source: str) -> None:
    version = data.get("format_version") if isinstance(data, dict) else None
    if version is None:
        raise InputError("runs.no_field", file=source, field="format_version")
    if version != FORMAT_VERSION:
        raise InputError("runs.other_version", file=source, version=version, known=FORMAT_VERSION)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError("files.cannot_read", file=path, problem=os_problem(error)) from error
    except UnicodeDecodeError as error:
        raise InputError("files.not_text", file=path) from error


def _read_json(path: Path) -> Any:
    return _parse_json(_read_text(path), path)


def _parse_json(given: str, path: Path, line: int = 1) -> Any:
    try:
        return json.loads(given)
    except json.JSONDecodeError as error:
        line += error.lineno - 1
        raise InputError("runs.bad_json", file=path, line=line, column=error.colno) from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, nesting without end
        raise InputError("runs.bad_json", file=path, line=line, column=1) from error


# Logs of other tools ------------------------------------------------------------------------------------

_STEP_COLUMNS = ("step", "global_step", "_step", "iteration", "iter", "batch", "epoch")  # the first there is
_CLOCK = re.compile(
    r"(^|[^a-z])(time|walltime|timestamp|datetime|runtime|elapsed|duration|seconds|secs|eta)"
    r"([ _./-]?(ms|s|sec|total))?$|per_sec|/s(ec)?$",
    re.IGNORECASE,
)


def is_clock(metric: str) -> bool:
    """Whether `metric`, by its name, reads a clock: it differs in every run and says nothing of the result."""
    return _CLOCK.search(metric) is not None


def read_runs(path: Path) -> tuple[Run, ...]:
    """The runs in a file: a record, a lesson's published records, or another tool's log as one run.

    Logs are CSV with a header (Lightning's CSVLogger, TensorBoard, Weights & Biases exports), JSON lines,
    a JSON list of objects, or a Trainer's ``trainer_state.json``. Empty cells are left out; the steps come
    from a column named step, global_step, iteration, … or epoch. A column that holds anything but numbers
    becomes a metric without values, so that nobody takes it for compared.

    Raises:
        InputError: the file cannot be read, or holds no numbers.
    """
    suffix = path.suffix.lower()
    if suffix in (".csv", ".tsv"):
        return (_run_from_columns(_csv_columns(path), path),)
    if suffix in (".jsonl", ".ndjson"):
        return (_run_from_columns(_columns(_json_lines(path), path), path),)
    data = _read_json(path)
    if isinstance(data, dict) and isinstance(data.get("log_history"), list):
        data = data["log_history"]
    if isinstance(data, list):
        return (_run_from_columns(_columns(data, path), path),)
    _check_version(data, str(path))
    if "experiments" in data:
        runs = tuple(run for record in load_experiments(path).values() for run in record.runs)
    else:
        runs = Record.from_json(data, str(path)).runs
    if not runs:
        raise InputError("runs.no_numbers", file=path)
    return runs


def _csv_columns(path: Path) -> dict[str, Sequence[object]]:
    lines = _read_text(path).splitlines()
    try:
        header, *rows = csv.reader(lines, delimiter="\t" if "\t" in lines[0] else ",") if lines else [[]]
    except csv.Error as error:
        raise InputError("files.cannot_read", file=path, problem=str(error)) from error
    names = [name.strip() for name in header]
    if any(_number(name) is not None for name in names):
        raise InputError("runs.no_header", file=path)
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise InputError("runs.repeated_header", file=path, names=repeated)
    if any(len(row) > len(names) for row in rows):
        raise InputError("runs.ragged", file=path)
    return dict(zip(names, itertools.zip_longest(*rows, fillvalue=""), strict=False))


def _json_lines(path: Path) -> Iterator[object]:
    for number, line in enumerate(_read_text(path).splitlines(), start=1):
        if line.strip():
            yield _parse_json(line, path, number)


def _columns(rows: Iterable[object], path: Path) -> dict[str, Sequence[object]]:
    """Objects turned on their side: a column for each name, ``None`` where an object lacks it."""
    rows = list(rows)
    if not all(isinstance(row, Mapping) for row in rows):
        raise InputError("runs.no_numbers", file=path)
    names = dict.fromkeys(name for row in rows for name in row)  # type: ignore[attr-defined]  # mappings
    return {name: [row.get(name) for row in rows] for name in names}  # type: ignore[attr-defined]  # mappings


def _run_from_columns(columns: Mapping[str, Sequence[object]], path: Path) -> Run:
    lower = {name.lower(): name for name in reversed(list(columns))}
    label_name = next((lower[name] for name in _STEP_COLUMNS if name in lower), None)
    steps = None if label_name is None else [_number(label) for label in columns[label_name]]
    if steps is not None and not all(step is None or step.is_integer() for step in steps):
        steps = None  # fractions of an epoch label nothing
    metrics: dict[str, tuple[float, ...]] = {}
    own: dict[str, list[int]] = {}
    for name, cells in columns.items():
        if name == label_name and steps is not None:
            continue
        numbers = [_number(cell) for cell in cells]
        text = any(
            number is None and cell not in ("", None) for number, cell in zip(numbers, cells, strict=True)
        )
        metrics[name] = () if text else tuple(number for number in numbers if number is not None)
        if steps is not None and not text:
            own[name] = [
                int(step) if step is not None else place
                for place, (step, number) in enumerate(zip(steps, numbers, strict=True), start=1)
                if number is not None
            ]
    if not any(metrics.values()):
        raise InputError("runs.no_numbers", file=path)
    cut = _shared_prefix(metrics)
    return Run(
        name=path.name,
        seed=None,
        metrics={name[cut:]: values for name, values in metrics.items()},
        steps={name[cut:]: labels for name, labels in _own_steps(own).items()},
    )


def _shared_prefix(names: Iterable[str]) -> int:
    """The length of "run name - ", with which Weights & Biases begins every column of an export."""
    prefixes = {name.rpartition(" - ")[0] for name in names}
    prefix = prefixes.pop() if len(prefixes) == 1 else ""
    return len(prefix) + 3 if prefix else 0


def _number(cell: object) -> float | None:
    if isinstance(cell, bool) or not isinstance(cell, str | int | float):
        return None
    if isinstance(cell, int) and abs(cell) > 2**53:  # a float cannot hold it: two such may look equal
        return None
    try:
        return float(cell)
    except (ValueError, OverflowError):
        return None

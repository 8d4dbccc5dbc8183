"""Two recorded runs: where the first difference lies, and whether it reached a result."""

import functools
import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from repro_tutorial.doctor.launch import Outcome, written

EVENT = np.dtype([("name", "<u2"), ("site", "<u2"), ("moment", "<u4"), ("inputs", "<u8"), ("outputs", "<u8")])
COLUMNS = ("name", "site", "inputs", "outputs")
TAIL = 30  # events at the end that must agree for the results to be called equal
MANY = 50  # differing events from which on a difference has spread

# One number drawn or read, such as a DataLoader's seed for its workers: harmless unless something follows it.
ONE_NUMBER = ("random_", "_local_scalar_dense", "randint", "lift_fresh", "item")

# A number with a decimal point, or none at all; not part of a name, a version or an address.
NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+\.\d*|\.\d+)(?:[eE][-+]?\d+)?(?![\w.])|(?<!\w)(?:nan|inf)(?!\w)")


@dataclass(frozen=True)
class Difference:
    """The first event of one process that is not the same in two runs."""

    role: str
    index: int
    moment: int  # milliseconds since the second run began
    operator: str
    site: str  # ``file:line function <- …``; of a backward pass `` << `` and where it was called
    kind: str  # "operator", "input", "output" or "length"
    step: int  # optimizer steps that were taken before
    instead: str = ""  # the other run's operator and place, where they are not the same


@dataclass(frozen=True)
class Note:
    """Something that a process noted; see `inside.streams.Book.note`."""

    kind: str
    site: str
    value: Any
    label: str
    index: int


class Records:
    """What one run wrote down."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def roles(self) -> list[str]:
        """Its processes and threads."""
        return sorted({path.stem for path in self.folder.iterdir()})

    def results_roles(self) -> list[str]:
        """The processes whose results count: the main one, or the ranks."""
        return [role for role in self.roles() if role == "main" or re.fullmatch(r"rank\d+", role)]

    def events(self, role: str) -> NDArray[Any]:
        """The events of `role`, as far as they have been written."""
        path = self.folder / f"{role}.events"
        if not path.exists():
            return np.empty(0, EVENT)
        data = path.read_bytes()
        return np.frombuffer(data[: len(data) // EVENT.itemsize * EVENT.itemsize], EVENT)

    def names(self, role: str) -> list[str]:
        """What the numbers in the events of `role` stand for."""
        return [json.loads(line) for line in _whole_lines(self.folder / f"{role}.names")]

    def notes(self, role: str) -> list[Note]:
        """The notes of `role`."""
        return [Note(*json.loads(line)) for line in _whole_lines(self.folder / f"{role}.notes")]

    @functools.cached_property
    def all_notes(self) -> dict[str, list[Note]]:
        """The notes of all roles, once the run has ended."""
        return {role: self.notes(role) for role in self.roles()}

    def of_kind(self, *kinds: str) -> Iterator[tuple[str, Note]]:
        """The notes of these kinds, with their roles."""
        for role, notes in self.all_notes.items():
            yield from ((role, note) for note in notes if note.kind in kinds)


def _whole_lines(path: Path) -> list[str]:
    if not path.exists():
        return []
    *lines, _ = path.read_text("utf-8", errors="replace").split("\n")
    return lines


@dataclass(frozen=True)
class Aligned:
    """The events of one role in two runs, side by side as far as both go."""

    a: NDArray[Any]
    b: NDArray[Any]  # its names and places by a's numbers
    names_a: list[str]
    names_b: list[str]
    b_as_written: NDArray[Any]

    @functools.cached_property
    def differs(self) -> NDArray[np.bool_]:
        """Which of the shared events are not the same."""
        shared = min(len(self.a), len(self.b))
        unequal = np.zeros(shared, bool)
        for column in COLUMNS:
            unequal |= self.a[column][:shared] != self.b[column][:shared]
        return unequal


def align(a: Records, b: Records, role: str) -> Aligned:
    """The events of `role` in both runs, `b`'s numbers for names translated into `a`'s."""
    names_a, names_b = a.names(role), b.names(role)
    number = {name: index for index, name in enumerate(names_a)}
    table = np.array([number.get(name, 65535) for name in names_b] or [0], "<u2")
    events, ours = b.events(role), a.events(role)
    if len(events) and len(names_b):
        events = events[(events["name"] < len(names_b)) & (events["site"] < len(names_b))]
    translated = events.copy()
    translated["name"], translated["site"] = table[events["name"]], table[events["site"]]
    return Aligned(ours, translated, names_a, names_b, events)


def first_difference(a: Records, b: Records, *, ended: bool = True) -> Difference | None:
    """The earliest event of any process that is not the same in `b` as in `a`.

    Args:
        ended: whether both runs have ended, so that a missing event is a difference.
    """
    found = []
    for role in sorted({*a.roles(), *b.roles()}):
        one = _first_of(a, b, role, ended)
        if one is not None:
            found.append(one)
    return min(found, key=lambda difference: difference.moment, default=None)


def _first_of(a: Records, b: Records, role: str, ended: bool) -> Difference | None:
    both = align(a, b, role)
    places = np.flatnonzero(both.differs)
    if len(places):
        index, kind = int(places[0]), ""
    elif ended and len(both.a) != len(both.b):
        index, kind = min(len(both.a), len(both.b)), "length"
    else:
        return None
    longer, names = (both.b_as_written, both.names_b) if index < len(both.b) else (both.a, both.names_a)
    event = longer[index]
    instead = ""
    if not kind:
        x, y = both.a[index], both.b[index]
        if x["name"] != y["name"] or x["site"] != y["site"]:
            kind = "operator"
            instead = f"{both.names_a[x['name']]} {both.names_a[x['site']]}"
        else:
            kind = "input" if x["inputs"] != y["inputs"] else "output"
    step = sum(1 for note in b.notes(role) if note.kind == "step" and note.index <= index)
    return Difference(
        role, index, int(event["moment"]), names[event["name"]], names[event["site"]], kind, step, instead
    )


def has_spread(a: Records, b: Records, *, ended: bool = True) -> bool:
    """Whether a difference reached the operators' results at the end, or many of them."""
    roles = {*a.results_roles(), *b.results_roles()}
    return any(_spread_in(align(a, b, role), ended) for role in roles)


def _spread_in(both: Aligned, ended: bool) -> bool:
    small = [number for number, name in enumerate(both.names_a) if name in ONE_NUMBER]
    aligned = np.array_equal(both.a["name"][: len(both.differs)], both.b["name"][: len(both.differs)])
    weighty = both.differs & ~np.isin(both.a["name"][: len(both.differs)], small)
    if int(weighty.sum()) > MANY and (aligned or not ended):
        return True
    if not ended:
        return False
    if len(both.a) == len(both.b) and aligned and not weighty.any():
        return False
    if not len(both.a) or not len(both.b):
        return len(both.a) != len(both.b)
    tails = [events[-TAIL:] for events in (both.a, both.b)]
    tails = [events[~np.isin(events["name"], small)] for events in tails]
    if len(tails[0]) != len(tails[1]):
        return True
    return any(
        not np.array_equal(tails[0][column], tails[1][column]) for column in ("name", "inputs", "outputs")
    )


# What the runs printed and wrote ------------------------------------------------------------------------------


def printed_differences(a: str, b: str) -> list[tuple[str, str]]:
    """The lines that are not the same, in pairs; a line that one run lacks is "" there."""
    if a == b:
        return []
    ours, theirs = a.splitlines(), b.splitlines()
    length = max(len(ours), len(theirs))
    ours, theirs = (lines + [""] * (length - len(lines)) for lines in (ours, theirs))
    return [(x, y) for x, y in zip(ours, theirs, strict=True) if x != y]


def fractions_differ(pairs: list[tuple[str, str]]) -> bool:
    """Whether numbers with a decimal point differ in these lines: results look so, and counters do not."""
    return any(NUMBER.findall(x) != NUMBER.findall(y) for x, y in pairs)


@dataclass(frozen=True)
class Files:
    """Differences between the files that two runs wrote into the program's folder."""

    data: tuple[str, ...]  # files of numbers that are not the same
    text: tuple[tuple[str, str], ...]  # lines of text files that are not the same
    only_one: tuple[str, ...]


def compare_files(a: Outcome, b: Outcome, inside: str) -> Files:
    """Compare what the runs wrote last; `inside` is where the program's folder lies in what they left."""
    ours, theirs = (_written(outcome, inside) for outcome in (a, b))
    data, lines = [], []
    for name in sorted(ours.keys() & theirs.keys()):
        if _same(ours[name], theirs[name]):
            continue
        texts = [_text(path) for path in (ours[name], theirs[name])]
        if texts[0] is None or texts[1] is None:
            data.append(name)
        else:
            lines += printed_differences(texts[0], texts[1])
    return Files(tuple(data), tuple(lines), tuple(sorted(ours.keys() ^ theirs.keys())))


def _written(outcome: Outcome, inside: str) -> Mapping[str, Path]:
    if not outcome.state:
        return {}
    folder = outcome.state[0] / inside
    return {
        path.relative_to(folder).as_posix(): path
        for path, _ in written(folder)
        if path.is_file() and not path.is_symlink() and "__pycache__" not in path.parts
    }


def _same(a: Path, b: Path) -> bool:
    if zipfile.is_zipfile(a) and zipfile.is_zipfile(b):  # torch.save, np.savez: the arrays in it
        with zipfile.ZipFile(a) as x, zipfile.ZipFile(b) as y:
            parts = [
                {
                    i.filename.split("/", 1)[-1]: i.CRC
                    for i in file.infolist()
                    if not i.filename.endswith("id")
                }
                for file in (x, y)
            ]
        return parts[0] == parts[1]
    return a.read_bytes() == b.read_bytes()


def _text(path: Path) -> str | None:
    data = path.read_bytes()
    if b"\0" in data:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None

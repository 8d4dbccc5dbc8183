"""Reruns that hold a chosen part of the outside still, and the smallest part that makes a run repeat."""

import os
import re
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from repro_tutorial.doctor.compare import (
    Files,
    Records,
    compare_files,
    fractions_differ,
    has_spread,
    printed_differences,
)
from repro_tutorial.doctor.launch import Outcome, Workshop, written

READINGS = ("entropy", "name", "clock", "pid", "listing")  # noted with the line that read


@dataclass(frozen=True, order=True)
class Unit:
    """A part of the outside that can be held still: a kind of reading, and the line (or generator) that reads."""

    kind: str  # "state", "entropy", "clock", "pid", "listing", "hash", "addresses" or "files"
    site: str = ""
    label: str = field(default="", compare=False)


Group = Sequence[Unit]


@dataclass
class Reference:
    """A run that others are held against."""

    outcome: Outcome
    records: Records
    settings: dict[str, Any]  # which the reruns share
    hash_seed: str


class OutOfTime(Exception):
    """The budget is spent."""


class Experiments:
    """Runs the program again and again in a workshop, within a budget."""

    def __init__(self, shop: Workshop, budget: float, tell: Callable[[int], None]) -> None:
        self.shop, self.tell = shop, tell
        self.deadline = time.monotonic() + budget
        self.count = 0
        self.by_print = False  # whether what is printed counts as a result
        self.harmless_lines: set[str] = set()
        self.fixed_hash = os.environ.get("PYTHONHASHSEED")

    def run(
        self,
        settings: dict[str, Any] | None = None,
        *,
        hash_seed: str | None = None,
        after: Outcome | None = None,
        watch: Callable[[Path], bool] | None = None,
    ) -> Outcome:
        """One more run of the program.

        Raises:
            OutOfTime: the budget is spent.
        """
        if self.count and time.monotonic() > self.deadline:
            raise OutOfTime
        self.count += 1
        self.tell(self.count)
        seed = self.fixed_hash or hash_seed or self.new_hash_seed()
        variables = {"PYTHONHASHSEED": seed}
        if settings and settings.get("tape"):  # a compiled function has no lines
            variables["TORCHDYNAMO_DISABLE"] = "1"
        return self.shop.run(settings, after=after, watch=watch, environment=variables)

    def new_hash_seed(self) -> str:
        """A value for PYTHONHASHSEED, of one length, so that addresses do not move with it."""
        return self.fixed_hash or str(1_000_000_000 + secrets.randbelow(3_000_000_000))

    def refer(self, settings: dict[str, Any]) -> Reference:
        """A run to hold others against, from the user's own state of things."""
        seed = self.new_hash_seed()
        outcome = self.run(settings | {"plain_addresses": True}, hash_seed=seed)
        shared = {name: value for name, value in settings.items() if name != "repeat"}
        return Reference(outcome, Records(outcome.folder), shared, seed)

    def rerun(self, like: Reference, held: Sequence[Unit], *, stop: bool = True, **settings: Any) -> Outcome:
        """Run again with `held` as `like` read them; stopped early when a difference has spread, if `stop`."""
        kinds: dict[str, list[str]] = {}
        for unit in held:
            kinds.setdefault(unit.kind, []).append(unit.site)
        files = "files" in kinds
        asked = like.settings | settings | {"plain_addresses": "addresses" in kinds}
        asked["replay"] = {"folder": str(like.outcome.folder), "kinds": kinds}

        def watch(folder: Path) -> bool:
            return has_spread(like.records, Records(folder), ended=False)

        return self.run(
            asked,
            hash_seed=like.hash_seed if "hash" in kinds else None,
            after=None if files else like.outcome,
            watch=watch if stop else None,
        )

    def repeats(self, like: Reference, held: Sequence[Unit], **settings: Any) -> bool:
        """Whether a rerun with `held` has the results of `like`."""
        return self.same(like.outcome, self.rerun(like, held, **settings))

    def same(self, a: Outcome, b: Outcome) -> bool:
        """Whether two runs have the same results."""
        if b.ended_by or a.ended_by or a.code != b.code:
            return False
        if has_spread(Records(a.folder), Records(b.folder)):
            return False
        files = self.files(a, b)
        if files.data:
            return False
        return not (self.by_print and fractions_differ(self.telling_lines(a, b, files)))

    def files(self, a: Outcome, b: Outcome) -> Files:
        """The differences between what two runs wrote."""
        return compare_files(a, b, self.shop.inside)

    def gone(self, outcome: Outcome) -> bool:
        """Whether the run deleted the script, which overlayfs marks by a device of number 0."""
        mark = outcome.state[0] / self.shop.inside / self.shop.program.target[-1]
        return mark.is_char_device()

    def telling_lines(self, a: Outcome, b: Outcome, files: Files | None = None) -> list[tuple[str, str]]:
        """The printed or written lines that differ, less those known to be harmless."""
        ours, theirs = a.out, b.out
        if self.shop.program.ranks:  # which print in any order
            ours, theirs = ("\n".join(sorted(out.splitlines())) for out in (ours, theirs))
        pairs = printed_differences(ours, theirs) + list((files or self.files(a, b)).text)
        return [pair for pair in pairs if shape(pair[0]) not in self.harmless_lines]

    # What differs from outside -------------------------------------------------------------------------

    def units(self, a: Reference, b: Outcome) -> list[Unit]:
        """Every part of the outside that was not the same in both runs."""
        ours, theirs = (_readings(records) for records in (a.records, Records(b.folder)))
        found = {
            Unit(kind, site, label)
            for (role, kind, site), (values, label) in ours.items()
            if theirs.get((role, kind, site), ([], ""))[0] != values
        }
        if not self.fixed_hash:
            found.add(Unit("hash"))
        found.add(Unit("addresses"))
        if any(True for _ in written(a.outcome.state[0])):
            found.add(Unit("files"))
        return sorted(found)

    def smallest(
        self, like: Reference, candidates: Sequence[Unit], *, always: Sequence[Unit] = (), **settings: Any
    ) -> list[Unit]:
        """A smallest part of `candidates` which, held still, makes a rerun repeat `like`.

        All of them together do, with `always`, which is held in any case. Kinds first, then the lines of each kind. Source: QuickXplain (Junker, 2004).
        """
        kinds: dict[tuple[str, str], list[Unit]] = {}
        for unit in candidates:
            key = (unit.kind, unit.site if unit.kind == "state" else str(not unit.site))
            kinds.setdefault(key, []).append(unit)
        groups: list[Group] = list(kinds.values())

        def suffices(chosen: Sequence[Sequence[Unit]]) -> bool:
            held = [*always, *(unit for group in chosen for unit in group)]
            return self.repeats(like, held, **settings)

        for group in groups[:3]:  # the likeliest, alone
            if len(groups) > 1 and suffices([group]):
                needed: list[Group] = [group]
                break
        else:
            needed = _explain([], False, groups, suffices) if len(groups) > 1 else groups
        chosen: list[Unit] = []
        for index, group in enumerate(needed):
            if len(group) == 1:
                chosen += group
                continue
            rest: list[Group] = [[unit] for other in needed[index + 1 :] for unit in other]
            rest += [[unit] for unit in chosen]
            lines: list[Group] = [[unit] for unit in group]
            chosen += [unit for part in _explain(rest, bool(rest), lines, suffices) for unit in part]
        return chosen


def _explain(
    held: list[Group], added: bool, candidates: list[Group], suffices: Callable[[list[Group]], bool]
) -> list[Group]:
    if added and suffices(held):
        return []
    if len(candidates) == 1:
        return candidates
    half = (len(candidates) + 1) // 2
    first, second = candidates[:half], candidates[half:]
    late = _explain([*held, *first], True, second, suffices)
    early = _explain([*held, *late], bool(late), first, suffices)
    return [*early, *late]


def _readings(records: Records) -> dict[tuple[str, str, str], tuple[list[Any], str]]:
    found: dict[tuple[str, str, str], tuple[list[Any], str]] = {}
    for role, note in records.of_kind("state", *READINGS):
        values, _ = found.setdefault((role, note.kind, note.site), ([], note.label))
        values.append(note.value)
    return found


def shape(line: str) -> str:
    """A printed line without its digits and the hexadecimal words that names are made of."""
    return re.sub(r"\b[0-9a-f]{6,}\b|\d+", "#", line)

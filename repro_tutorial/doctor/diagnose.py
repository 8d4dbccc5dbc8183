"""Two runs, their first difference, and reruns that prove its causes."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from repro_tutorial.doctor.compare import (
    Difference,
    Note,
    Records,
    first_difference,
    fractions_differ,
    has_spread,
)
from repro_tutorial.doctor.experiments import Experiments, OutOfTime, Reference, Unit, shape
from repro_tutorial.doctor.kinds import Cause, at, before_the_seed
from repro_tutorial.doctor.launch import Outcome, Workshop

PRINTED_ONLY = ("clock", "pid", "entropy", "name")  # harmless where they reach the printed lines alone
FOR_GENERATORS = ("numpy", "random", "seed")  # entropy that starts a generator
SLOW = 0.25  # how fast clocks run, to see whether a result depends on them
USUAL = (
    "state",
    "files",
    "hash",
    "clock",
    "listing",
    "pid",
    "name",
    "entropy",
    "addresses",
)  # likeliest first
LONGEST_HOLD = 0.05  # seconds that a thread or task is held up, to see whether its turn matters
SERIAL = {"serial": True}
DETERMINISTIC = {"deterministic": True}
ONE_THREAD = {"threads": 1}
FILLED = {"fill": True}


@dataclass
class Report:
    """What was found."""

    verdict: str  # "reproduces", "differs" or "unknown"
    program: str
    runs: int = 0
    reason: dict[str, Any] | None = None  # why it is unknown: a message's key and values
    first: Difference | None = None
    causes: list[Cause] = field(default_factory=list)
    harmless: list[str] = field(default_factory=list)  # kinds of differences that reach no result
    printed: list[tuple[str, str]] = field(default_factory=list)  # lines that differ
    draws: list[tuple[str, str]] = field(default_factory=list)  # generator and line, where a rerun looked
    out_of_time: bool = False
    rare: bool = False  # the two plain runs agreed
    a: Outcome | None = None
    b: Outcome | None = None


class Examination:
    """One examination of one program."""

    def __init__(
        self, shop: Workshop, *, budget: float, tell: Callable[[int], None], fast: bool = False
    ) -> None:
        self.fast = fast
        self.lab = Experiments(shop, budget, tell)
        self.report = Report("unknown", shop.program.shown())
        self._tapes: dict[str, Records] = {}

    def examine(self) -> Report:
        """Run the program twice, and as often again as the causes of a difference need."""
        try:
            self._examine()
        except OutOfTime:
            self.report.out_of_time = True
        self.report.runs = self.lab.count
        return self.report

    def _examine(self) -> None:
        report, lab = self.report, self.lab
        self.a = lab.refer({"repeat": True})
        report.a = self.a.outcome
        if report.a.ended_by or report.a.code:
            report.reason = failure(report.a)
            return
        if lab.gone(report.a):
            report.reason = {"key": "doctor.deletes_itself", "values": {}}
            return
        self.b = lab.run({"repeat": True}, after=self.a.outcome, watch=self._watch if self.fast else None)
        report.b = self.b
        if self.b.ended_by not in ("", "stop"):
            report.reason = failure(self.b)
            return
        self.rb = Records(self.b.folder)
        self.units = lab.units(self.a, self.b)
        if lab.same(self.a.outcome, self.b):
            self._look_closer()
        else:
            self._explain()

    def _watch(self, folder: Any) -> bool:
        return has_spread(self.a.records, Records(folder), ended=False)

    # The results agree ------------------------------------------------------------------------------------

    def _look_closer(self) -> None:
        """The operators' results agree: what of the printed lines, of operators that vary, of races?"""
        report, lab = self.report, self.lab
        if self._printed_results_differ():
            lab.by_print = True
            self._explain()
            return
        varying = [note for records in (self.a.records, self.rb) for _, note in records.of_kind("varies")]
        if varying:
            report.verdict, report.rare = "differs", True
            self._blame_operator(varying[0])
            return
        if self._depends_on_turns() or self._depends_on_time():
            return
        plain = lab.run({"record": False}, after=self.a.outcome)
        if not self._weights_agree(plain):
            report.reason = {"key": "doctor.observed", "values": {}}
            return
        report.verdict = "reproduces"

    def _printed_results_differ(self) -> bool:
        lab = self.lab
        files = lab.files(self.a.outcome, self.b)
        pairs = lab.telling_lines(self.a.outcome, self.b, files)
        self.report.printed = pairs
        if not pairs:
            return False
        moved = self._stands_differ()
        if not moved and not fractions_differ(pairs):
            self.report.harmless = self._harmless_kinds()
            return False
        kinds = () if moved else PRINTED_ONLY
        held = [unit for unit in self.units if unit.kind in kinds and unit.label not in FOR_GENERATORS]
        again = lab.rerun(self.a, held, stop=False)
        left = lab.telling_lines(self.a.outcome, again)
        if fractions_differ(left):
            return True
        lab.harmless_lines |= {shape(pair[0]) for pair in pairs}
        self.report.harmless = self._harmless_kinds()
        return False

    def _harmless_kinds(self) -> list[str]:
        kinds = {self._kind(unit, ()) for unit in self.units if unit.kind in PRINTED_ONLY and unit.site}
        return sorted(kinds & {"clock", "pid", "entropy"})

    def _stands_differ(self) -> bool:
        """Whether the global generators ended in other states."""
        ours, theirs = (
            {
                (role, note.label): note.value
                for role, note in records.of_kind("stands")
                if role in ("main", "rank0")
            }
            for records in (self.a.records, self.rb)
        )
        seeds = [
            [(note.site, note.value) for _, note in records.of_kind("seed")]
            for records in (self.a.records, self.rb)
        ]
        return seeds[0] != seeds[1] or ours != theirs

    def _depends_on_turns(self) -> bool:
        """Hold up threads and tasks by chance: does a result move?"""
        if not any(note.site for _, note in self.a.records.of_kind("thread")):
            return False
        held = self.lab.rerun(self.a, self.units, hold=LONGEST_HOLD)
        if self.lab.same(self.a.outcome, held):
            return False
        self.report.verdict, self.report.rare = "differs", True
        self.report.first = first_difference(self.a.records, Records(held.folder))
        self._race([SERIAL])
        return True

    def _depends_on_time(self) -> bool:
        """Let the program's clocks run slower: does a result move?"""
        clocks = [unit for unit in self.units if unit.kind == "clock" and unit.site]
        if not clocks:
            return False
        others = [unit for unit in self.units if unit.kind != "clock"]
        slowed = self.lab.rerun(self.a, others, pace=SLOW)
        if self._results_agree(slowed):
            return False
        self.report.verdict, self.report.rare = "differs", True
        self.report.first = first_difference(self.a.records, Records(slowed.folder))
        needed = self.lab.smallest(self.a, clocks, always=others, pace=SLOW)
        self.report.causes = self._name(needed, self.a)
        return True

    def _results_agree(self, other: Outcome) -> bool:
        """As `same`, of the operators alone: printed times may move."""
        stopped = bool(other.code or other.ended_by)
        return not stopped and not has_spread(self.a.records, Records(other.folder))

    def _weights_agree(self, plain: Outcome) -> bool:
        """The observer check: the unrecorded run ends with the same weights and prints the same."""
        if plain.code != self.a.outcome.code:
            return False
        for role in self.a.records.results_roles():
            finals = [
                list(records.events(role)["outputs"]) for records in (self.a.records, Records(plain.folder))
            ]
            if finals[0] and finals[1] and finals[0][-1] != finals[1][-1]:
                return False
        return not fractions_differ(self.lab.telling_lines(self.a.outcome, plain))

    # The results differ -----------------------------------------------------------------------------------

    def _explain(self) -> None:
        report, lab = self.report, self.lab
        report.verdict = "differs"
        report.first = first_difference(self.a.records, self.rb)
        report.printed = lab.telling_lines(self.a.outcome, self.b)
        units = self._by_suspicion(self.units)
        try:
            if lab.repeats(self.a, units):
                needed = lab.smallest(self.a, units)
                held = [unit for unit in needed if unit.kind not in ("addresses", "hash")]
                # Addresses and hashes move memory about; what then shows is what stood in it before.
                if len(held) < len(needed) and self._empties() and self._race([FILLED], else_guess=False):
                    return
                report.causes = self._name(needed, self.a)
            elif not self._laid_out_alike(units):
                self._race(self._settings_to_try())
        except OutOfTime:
            report.out_of_time = True
            report.causes = self._guess(units)

    def _laid_out_alike(self, units: Sequence[Unit]) -> bool:
        """Whether two reruns agree that find the same from outside and also lay out memory alike.

        The first run cannot serve here: a rerun carries what it gives again, and so has other addresses.
        """
        one, other = (self.lab.rerun(self.a, units, stop=False) for _ in range(2))
        if one.code or not self.lab.same(one, other):
            return False
        addresses = Unit("addresses")
        apart = self.lab.rerun(self.a, [unit for unit in units if unit != addresses], stop=False)
        if self.lab.same(one, apart) or (self._empties() and self._race([FILLED], else_guess=False)):
            return bool(self.report.causes)
        self.report.causes = self._name([addresses], self.a)
        return True

    def _settings_to_try(self) -> list[dict[str, Any]]:
        """What to hold still beside the readings, likeliest first."""
        begun = any(note.site for _, note in self.a.records.of_kind("thread", "child"))
        varies = any(True for _, _ in self.a.records.of_kind("varies"))
        first = self.report.first
        operators: list[dict[str, Any]] = [DETERMINISTIC, ONE_THREAD]
        if self._empties():
            return [FILLED, *([SERIAL] if begun else []), *operators]
        if varies or (first is not None and first.kind == "output" and not begun):
            return [*operators, FILLED, SERIAL]
        return [SERIAL, FILLED, *operators] if begun else [FILLED, *operators]

    def _empties(self) -> list[str]:
        """The lines that ask for memory without writing it."""
        return list(dict.fromkeys(note.site for _, note in self.a.records.of_kind("empty")))

    def _race(self, settings: list[dict[str, Any]], *, else_guess: bool = True) -> bool:
        """Readings alone do not explain it: find what else must be held still, and say whether that was found."""
        lab, report = self.lab, self.report
        for setting in settings:
            like = lab.refer(setting)
            held = self._by_suspicion(lab.units(like, self.b))
            if like.outcome.code or not all(lab.repeats(like, held) for _ in range(2)):
                continue
            report.causes = self._name_setting(setting, proved=True)
            if not lab.repeats(like, []):
                report.causes += self._name(lab.smallest(like, held), like)
            return True
        if else_guess:
            report.causes = self._name_setting(settings[0], proved=False)
        return False

    def _blame_operator(self, note: Note) -> None:
        """An operator gave other results for the same inputs within one run."""
        file, line = at(note.site)
        calm = self.lab.run(DETERMINISTIC | {"repeat": True})
        proved = not any(True for _ in Records(calm.folder).of_kind("varies"))
        self.report.causes = [Cause("operator", file, line, proved)]

    def _name_setting(self, setting: dict[str, Any], *, proved: bool) -> list[Cause]:
        first = self.report.first
        if "serial" in setting:
            begun = [(role, note) for role, note in self.a.records.of_kind("thread", "child") if note.site]
            kinds = {"thread": "threads", "child": "processes"}
            sites = list(dict.fromkeys((kinds[note.kind], note.site) for _, note in begun))
            return [Cause(kind, *at(site), proved) for kind, site in sites[:3]]
        if "fill" in setting and self._empties():
            return [Cause("uninitialised", *at(self._unwritten()), proved)]
        kind = (
            "uninitialised" if "fill" in setting else "operator" if "deterministic" in setting else "threads"
        )
        varying = [note for _, note in self.a.records.of_kind("varies")]
        site = varying[0].site if varying and kind == "operator" else first.site if first else ""
        return [Cause(kind, *at(site), proved)]

    def _unwritten(self) -> str:
        """The line whose memory, filled alone, makes a run repeat; the first if none alone does."""
        sites = self._empties()
        for site in sites if len(sites) > 1 else []:
            like = self.lab.refer({"fill": [site]})
            if self.lab.repeats(like, self.lab.units(like, self.b)):
                return site
        return sites[0]

    def _by_suspicion(self, units: Sequence[Unit]) -> list[Unit]:
        """`units`, the likeliest cause first."""
        drawn, seeds_moved = self._first_drawn(), bool(self._moved_seeds())

        def rank(unit: Unit) -> tuple[int, int]:
            usual = USUAL.index(unit.kind)
            asked = bool(unit.site) or unit.kind in (
                "hash",
                "files",
                "addresses",
            )  # by the program's own line
            if unit.kind == "state":
                return (1, drawn[unit.site]) if unit.site in drawn else (4, usual)
            if not asked:
                return (5, usual)
            if seeds_moved and unit.kind in ("clock", "pid", "hash", "entropy"):
                return (0, usual)
            return (2 if unit.kind == "entropy" else 3, usual)

        return sorted(units, key=rank)

    def _first_drawn(self) -> dict[str, int]:
        """Generators whose draws were not the same, by their turn."""
        found: dict[str, int] = {}
        streams = [
            [(note.label, note.value) for _, note in records.of_kind("drawn")]
            for records in (self.a.records, self.rb)
        ]
        for (name, value), other in zip_longest(*streams, fillvalue=("", None)):
            if (name, value) != other and name:
                found.setdefault(name, len(found) + 1)
        first = self.report.first
        if first is not None and first.kind == "input" and first.operator.split(".")[0].endswith("_"):
            found["torch"] = 0
        return found

    def _moved_seeds(self) -> list[Note]:
        """Calls that seed a generator with another number in each run."""
        ours, theirs = (
            [note for _, note in records.of_kind("seed")] for records in (self.a.records, self.rb)
        )
        return [x for x, y in zip(ours, theirs, strict=False) if (x.site, x.value) != (y.site, y.value)]

    # Names and lines --------------------------------------------------------------------------------------

    def _name(self, units: Sequence[Unit], like: Reference) -> list[Cause]:
        causes = []
        moved = self._moved_seeds()
        if any(unit.kind == "name" for unit in units):
            # A random name that is given again is taken: by the very file that the other run left.
            units = [unit for unit in units if unit.kind != "files"]
        for unit in units:
            try:
                causes.append(self._cause(unit, like, moved))
            except OutOfTime:
                self.report.out_of_time = True
                causes.append(Cause(self._kind(unit, moved), *at(unit.site), True))
        return list(dict.fromkeys(causes))

    def _kind(self, unit: Unit, moved: Sequence[Note]) -> str:
        if unit.kind == "state":
            seeded = any(note.label == unit.site for _, note in self.a.records.of_kind("seed"))
            return "seeded_late" if seeded else f"unseeded_{unit.site}"
        if unit.kind == "entropy" and unit.label in ("numpy", "random") and not moved:
            return "unseeded_generator"
        if unit.kind == "entropy" and unit.label == "seed":
            return "seed_from_entropy"
        if moved and unit.kind in ("clock", "pid", "hash", "entropy"):
            return f"seed_from_{unit.kind}"
        return {
            "hash": "hash_order",
            "addresses": "address_order",
            "name": "entropy",
            "listing": "file_order",
            "files": "files_left",
        }.get(unit.kind, unit.kind)

    def _cause(self, unit: Unit, like: Reference, moved: Sequence[Note]) -> Cause:
        kind = self._kind(unit, moved)
        if unit.kind == "state":
            place = self._first_draw(unit.site, like)
            seeds = [note.site for _, note in self.a.records.of_kind("seed") if note.label == unit.site]
            return Cause(kind, *at(before_the_seed(place, seeds[0]) if seeds else place), True, unit.site)
        if unit.site:
            return Cause(kind, *at(unit.site), True)
        site = self._first_line(unit, like) or (moved[0].site if moved else "")
        if not site and self.report.first is not None:
            site = self.report.first.site
        return Cause(kind, *at(site), True)

    def _all_units(self, like: Reference) -> list[Unit]:
        return self.lab.units(like, self.b)

    def _tape(self, like: Reference, without: Unit | None = None) -> Records:
        """The program's lines in a rerun that holds everything still, but one thing."""
        held = [unit for unit in self._all_units(like) if unit != without]
        return Records(self.lab.rerun(like, held, stop=False, tape=True, record=False).folder)

    def _whole_tape(self, like: Reference) -> Records:
        key = str(like.outcome.folder)
        if key not in self._tapes:
            self._tapes[key] = self._tape(like)
            drawn = self._tapes[key].of_kind("draw")
            self.report.draws = [(note.label, note.site.split(" ")[0]) for _, note in drawn]
        return self._tapes[key]

    def _first_draw(self, generator: str, like: Reference) -> str:
        """The first line that drew from `generator`."""
        tape = self._whole_tape(like)
        for role in sorted(tape.roles(), key=lambda role: (role not in ("main", "rank0"), role)):
            for note in tape.all_notes[role]:
                if note.kind == "draw" and note.label == generator:
                    return note.site
        return ""

    def _first_line(self, unit: Unit, like: Reference) -> str:
        """The first line whose outcome is not the same once `unit` is not held still."""
        one, other = self._whole_tape(like), self._tape(like, unit)
        for role in sorted(one.roles(), key=lambda role: (role not in ("main", "rank0"), role)):
            before: str = ""  # the line that was executed last
            lines = [
                [note for note in tape.all_notes.get(role, []) if note.kind in ("line", "seed")]
                for tape in (one, other)
            ]
            for x, y in zip(*lines, strict=False):
                if x.site != y.site:
                    return before
                if x.value != y.value:
                    return str(x.site)
                before = x.site
        return ""

    def _guess(self, units: Sequence[Unit]) -> list[Cause]:
        """Without the time for a proof: what the records suggest."""
        moved = self._moved_seeds()
        for unit in units[:1]:
            site = unit.site if unit.kind != "state" else ""
            if not site and self.report.first is not None:
                site = self.report.first.site
            return [Cause(self._kind(unit, moved), *at(site), False)]
        return []


NEEDS_GPU = re.compile(r"cuda|nvidia|\bgpu\b|\bmps\b|nccl", re.IGNORECASE)


def failure(outcome: Outcome) -> dict[str, Any]:
    """Why a run says nothing: a message's key and values."""
    if outcome.ended_by:
        return {"key": f"doctor.ended_{outcome.ended_by}", "values": {"seconds": f"{outcome.seconds:.0f}"}}
    lines = [line.strip() for line in outcome.err.splitlines() if line.strip()]
    values = {"code": outcome.code, "problem": lines[-1] if lines else ""}
    if outcome.code > 128:
        return {"key": "doctor.killed", "values": {"signal": outcome.code - 128} | values}
    if not lines:
        return {"key": "doctor.failed_silently", "values": values}
    if lines[-1].startswith("EOFError"):
        return {"key": "doctor.reads_input", "values": values}
    return {"key": "doctor.needs_gpu" if NEEDS_GPU.search(lines[-1]) else "doctor.failed", "values": values}

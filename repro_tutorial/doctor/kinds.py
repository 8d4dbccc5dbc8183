"""The causes that the doctor knows by name."""

from dataclasses import asdict, dataclass
from typing import Any

# The lesson that explains each cause.
LESSONS = {
    "unseeded_python": "generators",
    "unseeded_numpy": "generators",
    "unseeded_torch": "line_fit",
    "unseeded_generator": "generators",
    "seeded_late": "generators",
    "seed_from_clock": "line_fit",
    "seed_from_pid": "line_fit",
    "seed_from_hash": "line_fit",
    "seed_from_entropy": "line_fit",
    "entropy": "generators",
    "clock": "data_loading",
    "pid": "generators",
    "hash_order": "data_loading",
    "address_order": "data_loading",
    "file_order": "data_loading",
    "files_left": "resume",
    "environment": "frameworks",
    "uninitialised": "nondeterministic_ops",
    "operator": "nondeterministic_ops",
    "threads": "nondeterministic_ops",
    "processes": "multi_gpu_seeding",
}


@dataclass(frozen=True)
class Cause:
    """Why the runs differ: a known kind, and the line to change."""

    kind: str  # of LESSONS
    file: str  # relative to the working folder; "" where no line is known
    line: int | None
    proved: bool  # a rerun with this cause (and the others named) held still agreed
    generator: str = ""  # "python", "numpy" or "torch", for kinds about one

    def as_json(self) -> dict[str, Any]:
        """The cause as JSON's own types."""
        return asdict(self) | {"lesson": LESSONS[self.kind]}


def at(site: str) -> tuple[str, int | None]:
    """File and line of a place written ``file:line``, alone or as the first of a stack."""
    first = site.split(" << ")[0].split(" <- ")[0].split(" ")[0]
    file, _, line = first.rpartition(":")
    return (file, int(line)) if line.isdigit() else ("", None)


def before_the_seed(draw: str, seed: str) -> str:
    """The place, among the lines that led to a draw, whose function also led to the seeding that came too late."""
    outer_draw, outer_seed = (stack.split(" <- ")[::-1] for stack in (draw, seed))
    place = outer_draw[0]
    for ours, theirs in zip(outer_draw, outer_seed, strict=False):
        if ours.split(" ")[1:] != theirs.split(" ")[1:] or at(ours)[0] != at(theirs)[0]:
            break
        place = ours
        if ours != theirs:
            break
    return place

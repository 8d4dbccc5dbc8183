"""A tape of the program's own lines: which were executed, what they left in the names they use, who drew.

Slow, and only for a rerun that looks for a line.
"""

import dis
import random
import sys
import threading
from collections.abc import Mapping
from types import CodeType, FrameType
from typing import Any

from xxhash import xxh3_64_intdigest

from repro_tutorial.doctor.inside.process import here

MOST_LINES = 300_000  # on a tape
MOST_PARTS = 100  # of a container that are looked at
MOST_DEPTH = 4
MOST_BYTES = 1 << 22

_names: dict[tuple[CodeType, int], tuple[str, ...]] = {}
_kept: list[CodeType] = []
_lines: dict[int, dict[int, tuple[str, ...]]] = {}
NAMING: tuple[str, ...] = ("STORE_FAST", "STORE_NAME", "STORE_GLOBAL", "STORE_DEREF")
NAMING += ("LOAD_FAST", "LOAD_NAME", "LOAD_GLOBAL", "LOAD_DEREF")


def begin() -> None:
    """Trace the program's own lines in every thread."""
    tape = Tape()
    threading.settrace(tape.call)
    sys.settrace(tape.call)


class Tape:
    """The trace function and what it remembers."""

    def __init__(self) -> None:
        self.last: dict[int, int] = {}  # line by frame
        self.written = 0
        self.drawn: dict[tuple[str, str], int] = {}
        self.states: dict[str, int] = {}

    def call(self, frame: FrameType, event: str, argument: Any) -> Any:
        """sys.settrace's function: lines of the program's own files alone are traced."""
        if here.busy() or not here.places.file(frame.f_code.co_filename):
            return None
        if frame.f_code.co_name == "<module>" and frame.f_lineno == 0:
            self.last[id(frame)] = 0
        return self.line

    def line(self, frame: FrameType, event: str, argument: Any) -> Any:
        """At each new line, and at the end of a function: write down what the line before left."""
        if here.busy():
            return self.line
        here.set_busy(True)
        try:
            before = self.last.get(id(frame))
            if before:
                self._write(frame, before, argument if event == "return" else None)
            if event == "line":
                self.last[id(frame)] = frame.f_lineno
            elif event == "return":
                self.last.pop(id(frame), None)
        finally:
            here.set_busy(False)
        return self.line

    def _write(self, frame: FrameType, number: int, returned: Any) -> None:
        site = f"{here.places.file(frame.f_code.co_filename)}:{number}"
        self._look_for_draws(site, frame)
        if self.written > MOST_LINES:
            return
        self.written += 1
        digest = sum(self.states.values()) & 0xFFFFFFFFFFFFFFFF
        for name in _named(frame.f_code, number):
            value = frame.f_locals.get(name, frame.f_globals.get(name) if name in frame.f_globals else None)
            digest = of_value(value, digest, 0)
        digest = of_value(returned, digest, 0)
        here.book().note("line", site, digest)

    def _look_for_draws(self, site: str, frame: FrameType) -> None:
        for name, state in self._states().items():
            if self.states.get(name, here.first_states.get(name, state)) != state:
                count = self.drawn[name, site] = self.drawn.get((name, site), 0) + 1
                if count == 1:
                    above = here.places.stack(frame.f_back)
                    stack = " <- ".join(filter(None, [f"{site} {frame.f_code.co_name}", above]))
                    here.book().note("draw", stack, None, name)
            self.states[name] = state

    def _states(self) -> dict[str, int]:
        looks = dict(here.states)
        torch = sys.modules.get("torch")
        if torch is not None and hasattr(torch, "default_generator"):
            looks["torch"] = lambda: int(xxh3_64_intdigest(torch.default_generator.get_state().numpy().data))
        return {name: look() for name, look in looks.items()}


def _named(code: CodeType, number: int) -> tuple[str, ...]:
    """The names that a line of `code` stores or loads."""
    known = _lines.get(id(code))
    if known is None:
        _kept.append(code)
        found: dict[int, list[str]] = {}
        line = 0
        for instruction in dis.get_instructions(code):
            position = instruction.positions
            line = position.lineno if position and position.lineno else line
            if instruction.opname in NAMING and isinstance(instruction.argval, str):
                names = found.setdefault(line, [])
                if instruction.argval not in names:
                    names.append(instruction.argval)
        known = _lines[id(code)] = {line: tuple(names) for line, names in found.items()}
    return known.get(number, ())


def of_value(value: Any, seed: int, depth: int) -> int:
    """A digest of what can be seen of a value: sets without their order, objects through their attributes."""
    kind = type(value)
    if value is None or kind in (int, bool, float, str, bytes, complex):
        return int(xxh3_64_intdigest(f"{kind.__name__} {value!r}".encode(), seed))
    if depth > MOST_DEPTH:
        return seed
    if kind in (list, tuple):
        for part in value[:MOST_PARTS]:
            seed = of_value(part, seed, depth + 1)
        return (seed + len(value)) & 0xFFFFFFFFFFFFFFFF
    if isinstance(value, Mapping) and kind.__module__ in ("builtins", "collections"):
        for index, (key, part) in enumerate(value.items()):
            if index == MOST_PARTS:
                break
            seed = of_value(part, of_value(key, seed, depth + 1), depth + 1)
        return (seed + len(value)) & 0xFFFFFFFFFFFFFFFF
    if kind in (set, frozenset):
        return (seed + sum(of_value(part, 1, depth + 1) for part in value)) & 0xFFFFFFFFFFFFFFFF
    return _of_object(value, seed, depth)


def _of_object(value: Any, seed: int, depth: int) -> int:
    torch: Any = sys.modules.get("torch")
    numpy: Any = sys.modules.get("numpy")
    if isinstance(value, getattr(torch, "Tensor", ())):
        return _of_tensor(value, seed)
    if numpy is not None and isinstance(value, numpy.ndarray):
        hidden = value.dtype.hasobject or value.nbytes > MOST_BYTES
        return seed if hidden else int(xxh3_64_intdigest(value.tobytes(), seed))
    if isinstance(value, getattr(numpy, "generic", ())):
        return int(xxh3_64_intdigest(repr(value).encode(), seed))
    if torch is not None and isinstance(value, torch.nn.Module):
        for parameter in value.parameters():
            seed = _of_tensor(parameter, seed)
        return seed
    attributes = getattr(value, "__dict__", None)
    if isinstance(value, random.Random) or depth > 1 or not isinstance(attributes, dict):
        return seed
    module = sys.modules.get(type(value).__module__)
    own = here.places.file(getattr(module, "__file__", "") or "<")
    return of_value(attributes, seed, depth + 1) if own else seed


def _of_tensor(value: Any, seed: int) -> int:
    if value.device.type != "cpu" or value.numel() * value.element_size() > MOST_BYTES or value.is_sparse:
        return seed
    from repro_tutorial.doctor.inside import digests

    return digests.of_tensor(value.detach(), seed)

"""What one process writes down: events, compared one by one, and notes, which explain."""

import contextlib
import json
import os
import struct
import sys
import time
from types import CodeType, FrameType
from typing import Any

EVENT = struct.Struct("<HHIQQ")  # name, place, milliseconds since the start of the run, inputs, outputs
FLUSH = EVENT.size * 512
MOST_NOTES = 200_000  # of one kind in a process: a loop that polls a clock must not fill the disk

PACKAGE = __file__.rsplit(os.sep, 3)[0] + os.sep  # our own lines are never the program's
IMPORTING = "<frozen importlib._bootstrap>"

# The originals, before anything replaces them.
_monotonic, _write, _open = time.monotonic, os.write, os.open


class Places:
    """The lines of the program's own files that calls come from."""

    def __init__(self, roots: list[str]) -> None:
        self.roots = [root.rstrip(os.sep) + os.sep for root in roots]
        self._files: dict[str, str] = {}
        self.sites: dict[tuple[int, int], str] = {}
        self._kept: list[CodeType] = []  # so that no two code objects share an id

    def file(self, name: str) -> str:
        """`name` relative to the program's folder, or "" for a file that is not the program's own."""
        known = self._files.get(name)
        if known is None:
            known = self._files[name] = self._own(name)
        return known

    def _own(self, name: str) -> str:
        if name.startswith("<") or f"{os.sep}site-packages{os.sep}" in name:
            return ""
        full = os.path.abspath(name)  # noqa: PTH100  # as the program's working directory stands now
        if full.startswith(PACKAGE):
            return ""
        for root in self.roots:
            if full.startswith(root):
                return full[len(root) :] if root == self.roots[0] else full
        return ""

    def frame(self, depth: int = 1) -> FrameType | None:
        """The innermost frame of the program's own code; None while it imports a library, which is not its doing."""
        frame: FrameType | None = sys._getframe(depth)
        files = self._files
        while frame is not None:
            name = frame.f_code.co_filename
            if files[name] if name in files else self.file(name):
                return frame
            if name == IMPORTING:
                return None
            frame = frame.f_back
        return None

    def site(self, depth: int = 2) -> str:
        """``file:line`` of the innermost line of the program's own code, or ""."""
        frame = self.frame(depth + 1)
        return "" if frame is None else f"{self.file(frame.f_code.co_filename)}:{frame.f_lineno}"

    def stack(self, frame: FrameType | None) -> str:
        """The program's own lines that `frame` stands in, innermost first: ``file:line function <- …``."""
        lines: list[str] = []
        while frame is not None and len(lines) < 6:
            if name := self.file(frame.f_code.co_filename):
                lines.append(f"{name}:{frame.f_lineno} {frame.f_code.co_name}")
            frame = frame.f_back
        return " <- ".join(lines)

    def event_site(self, depth: int) -> str:
        """As `stack`, of the caller at `depth`; looked up by the code's place, since it is asked for every event."""
        frame = self.frame(depth + 1)
        if frame is None:
            return ""
        key = (id(frame.f_code), frame.f_lasti)
        found = self.sites.get(key)
        if found is None:
            self._kept.append(frame.f_code)
            found = self.sites[key] = self.stack(frame)
        return found


class Book:
    """The files of one process, or of one of its threads: ``ROLE.events``, ``ROLE.names``, ``ROLE.notes``."""

    def __init__(self, folder: str, role: str, begun: float) -> None:
        self.folder, self.role, self.begun = folder, role, begun
        self.count = 0
        self._names: dict[str, int] = {}
        self._buffer = bytearray()
        self._files: dict[str, int] = {}
        self._notes: dict[str, int] = {}

    def _file(self, kind: str) -> int:
        if kind not in self._files:
            path = f"{self.folder}/{self.role}.{kind}"
            self._files[kind] = _open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        return self._files[kind]

    def _put(self, kind: str, data: bytes | bytearray) -> None:
        with contextlib.suppress(OSError):  # a full disk, or the program closed all files: its affair goes on
            _write(self._file(kind), data)

    def number(self, name: str) -> int:
        """The number that stands for `name` in events."""
        number = self._names.get(name)
        if number is None:
            number = self._names[name] = min(len(self._names), 65535)
            self._put("names", (json.dumps(name) + "\n").encode())
        return number

    def event(self, name: str, site: str, inputs: int, outputs: int) -> None:
        """Write down that `name` was computed at `site`."""
        moment = int((_monotonic() - self.begun) * 1000) & 0xFFFFFFFF
        self._buffer += EVENT.pack(self.number(name), self.number(site), moment, inputs, outputs)
        self.count += 1
        if len(self._buffer) >= FLUSH:
            self.flush()

    def note(self, kind: str, site: str, value: Any = None, label: str = "") -> None:
        """Write down something that explains; `value` is JSON's."""
        written = self._notes[kind] = self._notes.get(kind, 0) + 1
        if written <= MOST_NOTES:
            line = json.dumps([kind, site, value, label, self.count])
            self._put("notes", (line + "\n").encode())

    def flush(self) -> None:
        """Hand everything to the system."""
        if self._buffer:
            self._put("events", self._buffer)
            self._buffer = bytearray()

    def close(self) -> None:
        """Flush, and close the files."""
        self.flush()
        for number in self._files.values():
            with contextlib.suppress(OSError):
                os.close(number)
        self._files.clear()

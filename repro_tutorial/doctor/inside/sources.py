"""Everything a program takes from outside: noted as it is read, or given again as another run read it.

A reading is known by its kind and the program's line that asked. On request a reading returns what the same
line read in the other run, at the same turn; so a rerun can hold any part of the outside still.
"""

import contextlib
import datetime
import json
import os
import random
import sys
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from repro_tutorial.doctor.inside import states
from repro_tutorial.doctor.inside.process import here

_urandom, _monotonic = os.urandom, time.monotonic
_nothing = object()
_asking = threading.local()


# Readings of these modules wait, poll and check; their values reach no result, and some must be the true ones.
MACHINERY = (
    "multiprocessing", "threading", "subprocess", "concurrent", "selectors", "queue", "asyncio", "socket", "logging",
    "signal", "tqdm", "torch.utils.data", "torch.distributed", "torch.multiprocessing", "torch._", "importlib",
)  # fmt: skip


class Replays:
    """The other run's readings that are to be given again."""

    def __init__(self) -> None:
        self.kinds: dict[str, list[str] | None] = {}
        self._left: dict[str, dict[tuple[str, str], deque[Any]]] = {}
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Read what is asked."""
        asked = here.settings.get("replay")
        if asked:
            self.kinds = asked["kinds"]

    def _of(self, role: str) -> dict[tuple[str, str], "deque[Any]"]:
        if role not in self._left:
            readings: dict[tuple[str, str], deque[Any]] = defaultdict(deque)
            path = Path(here.settings["replay"]["folder"], f"{role}.notes")
            if path.exists():
                for line in path.read_text("utf-8").splitlines():
                    kind, site, value, *_ = json.loads(line)
                    readings[kind, site].append(value)
            self._left[role] = readings
        return self._left[role]

    def take(self, kind: str, site: str) -> Any:
        """What the other run read here, or `_nothing`."""
        if kind not in self.kinds:
            return _nothing
        sites = self.kinds[kind]
        if sites is not None and site not in sites:
            return _nothing
        with self._lock:
            left = self._of(here.book().role)[kind, site]
            return left.popleft() if left else _nothing


replays = Replays()


def reading(kind: str, original: Callable[..., Any], label: str = "") -> Callable[..., Any]:
    """`original` watched: its values are JSON's numbers or text."""

    def read(*given: Any, **named: Any) -> Any:
        if here.busy() or str(sys._getframe(1).f_globals.get("__name__", "")).startswith(MACHINERY):
            return original(*given, **named)
        site = here.places.site(2)
        again = replays.take(kind, site)
        value = paced(label, original(*given, **named)) if again is _nothing else again
        here.book().note(kind, site, value, label)
        return value

    read.__name__ = read.__qualname__ = getattr(original, "__name__", kind)
    read.__doc__ = original.__doc__
    return read


_first_readings: dict[str, Any] = {}


def paced(label: str, value: Any) -> Any:
    """On request, a clock's reading as if time had gone so many times as fast since its first reading."""
    factor = here.settings.get("pace")
    if not factor or not label:
        return value
    first = _first_readings.setdefault(label, value)
    return type(value)(first + (value - first) * factor)


def begin() -> None:
    """Watch the standard library's sources."""
    replays.begin()
    _clocks()
    _entropy()
    _python_random()
    if here.role == "main" or here.role.startswith("rank"):
        here.book().note("hash", "", os.environ.get("PYTHONHASHSEED", ""))
    os.getpid = reading("pid", os.getpid)
    os.getppid = reading("pid", os.getppid)
    _listings()
    here.at_end.append(last_states)


# Clocks ---------------------------------------------------------------------------------------------------

CLOCKS = ("time", "monotonic", "perf_counter", "process_time", "thread_time")


def _clocks() -> None:
    for name in CLOCKS:
        for form in (name, f"{name}_ns"):
            setattr(time, form, reading("clock", getattr(time, form), form))
    now = time.time
    for name in ("localtime", "gmtime", "ctime"):
        setattr(time, name, _of_now(getattr(time, name), now, takes=1))
    for name, takes in (("strftime", 2), ("asctime", 1)):
        setattr(time, name, _of_now_formatted(getattr(time, name), takes))
    real = datetime.datetime

    class Meta(type(real)):  # type: ignore[misc]
        def __instancecheck__(cls, one: object) -> bool:
            return isinstance(one, real)

        def __subclasscheck__(cls, one: type) -> bool:
            return issubclass(one, real)

    def _now(tz: datetime.tzinfo | None = None) -> datetime.datetime:
        return real.fromtimestamp(now(), tz)

    class Watched(real, metaclass=Meta):  # type: ignore[misc, valid-type]
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Any:
            return _now(tz)

        @classmethod
        def today(cls) -> Any:
            return _now()

        @classmethod
        def utcnow(cls) -> Any:
            return _now(datetime.UTC).replace(tzinfo=None)

        def __new__(cls, *given: Any, **named: Any) -> Any:
            return real.__new__(real, *given, **named)

    Watched.__name__ = Watched.__qualname__ = "datetime"
    Watched.__module__ = "datetime"
    datetime.datetime = Watched  # type: ignore[misc]


def _of_now(original: Callable[..., Any], now: Callable[[], float], takes: int) -> Callable[..., Any]:
    def told(*given: Any) -> Any:
        return original(*given) if given and given[0] is not None else original(now())

    told.__name__ = original.__name__
    return told


def _of_now_formatted(original: Callable[..., Any], takes: int) -> Callable[..., Any]:
    def told(*given: Any) -> Any:
        return original(*given) if len(given) >= takes else original(*given, time.localtime())

    told.__name__ = original.__name__
    return told


# Entropy --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def asking(label: str) -> Iterator[None]:
    """Entropy read in the block is for `label`, if nothing further out said what it is for."""
    before = getattr(_asking, "label", "")
    _asking.label = before or label
    try:
        yield
    finally:
        _asking.label = before


def _entropy() -> None:
    def urandom(size: int) -> bytes:
        if here.busy() or str(sys._getframe(1).f_globals.get("__name__", "")).startswith(MACHINERY):
            return _urandom(size)
        site = here.places.site(2)
        again = replays.take("entropy", site)
        value = _urandom(size) if again is _nothing else bytes.fromhex(again)
        if len(value) != size:
            value = _urandom(size)
        here.book().note("entropy", site, value.hex(), _asker() or getattr(_asking, "label", ""))
        return value

    os.urandom = urandom
    random._urandom = urandom  # type: ignore[attr-defined]
    if hasattr(os, "getrandom"):
        os.getrandom = lambda size, flags=0: urandom(size)


ASKERS = {"uuid.py": "uuid", "secrets.py": "secrets"}


def _asker() -> str:
    """Through which of the library's modules the bytes were asked for."""
    frame: FrameType | None = sys._getframe(2)
    label = ""
    while frame is not None:
        name = frame.f_code.co_filename
        if here.places.file(name):
            break
        label = ASKERS.get(name.rsplit(os.sep, 1)[-1], label)
        frame = frame.f_back
    return label


# Python's generator ---------------------------------------------------------------------------------------


def first_state(kind: str) -> int:
    """A number to start the generator `kind` from: fresh, or the other run's."""
    again = replays.take("state", kind)
    value = int.from_bytes(_urandom(8), "little") if again is _nothing else int(again)
    here.book().note("state", kind, str(value))
    return value


def seed_call(given: Any, generator: str) -> None:
    """Note that the program seeds `generator`, and where."""
    frame = here.places.frame(2)
    if frame is not None:
        here.book().note("seed", here.places.stack(frame), repr(given)[:80], generator)


def last_states() -> None:
    """At the end of the process: where the global generators of Python and NumPy stand, if anything moved them."""
    for name, look in here.states.items():
        if look() != here.first_states[name]:
            here.book().note("stands", "", look(), name)


def watch_state(name: str, look: Callable[[], int]) -> None:
    """From now on `look` says where the global generator `name` stands."""
    here.states[name] = look
    here.first_states[name] = look()


def _python_random() -> None:
    original = random.Random.seed

    def seed(self: random.Random, a: Any = None, version: int = 2) -> None:
        if a is None and not here.busy():
            with asking("seed" if self is getattr(random, "_inst", None) else "random"):
                a = int.from_bytes(os.urandom(32), "little")
        elif not here.busy() and self is getattr(random, "_inst", None):
            seed_call(a, "python")
        original(self, a, version)

    seed.__doc__ = original.__doc__
    instance: random.Random = random._inst
    here.set_busy(True)
    original(instance, first_state("python"))
    watch_state("python", states.python_state())
    here.set_busy(False)
    random.Random.seed = seed  # type: ignore[method-assign]
    random.seed = instance.seed


# Listings of folders --------------------------------------------------------------------------------------


class _Scan:
    """What os.scandir returns."""

    def __init__(self, entries: list[Any]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> "_Scan":
        return self

    def __next__(self) -> Any:
        return next(self._entries)

    def __enter__(self) -> "_Scan":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._entries = iter(())


def _listings() -> None:
    """The order in which a folder names its files, which is the file system's affair."""
    listdir, scandir = os.listdir, os.scandir

    def in_order(names: list[str], place: str) -> list[str]:
        again = replays.take("listing", place)
        here.book().note("listing", place, [str(name) for name in names[:5000]])
        if again is _nothing:
            return names
        rank = {name: index for index, name in enumerate(again)}
        return sorted(names, key=lambda name: rank.get(str(name), len(rank)))

    def watched_listdir(path: Any = ".") -> Any:
        names = listdir(path)
        place = "" if here.busy() else here.places.site(2)
        if not place or (names and not isinstance(names[0], str)):
            return names
        return in_order(names, place)

    def watched_scandir(path: Any = ".") -> Any:
        place = "" if here.busy() else here.places.site(2)
        if not place or isinstance(path, bytes):
            return scandir(path)
        with scandir(path) as found:
            entries = {entry.name: entry for entry in found}
        return _Scan([entries[name] for name in in_order(list(entries), place)])

    os.listdir, os.scandir = watched_listdir, watched_scandir


def tempfile_is_there(module: Any) -> None:
    """Watch the names that ``tempfile`` draws from a generator of its own."""
    original = module._RandomNameSequence.__next__

    def name(self: Any) -> str:
        busy, site = here.busy(), here.places.site(2)
        again = _nothing if busy else replays.take("name", site)
        here.set_busy(True)
        try:
            drawn = original(self) if again is _nothing else str(again)
        finally:
            here.set_busy(busy)
        if not busy:
            here.book().note("name", site, drawn)
        return str(drawn)

    module._RandomNameSequence.__next__ = name


# numpy and torch ------------------------------------------------------------------------------------------


def numpy_is_there(module: Any) -> None:
    """Watch NumPy's generators, now that ``numpy.random`` is imported."""
    original = module.seed

    def seed(seed: Any = None) -> None:
        if not here.busy() and seed is not None:
            seed_call(seed, "numpy")
        with asking("seed") if seed is None else contextlib.nullcontext():
            original(seed)

    original([*(first_state("numpy").to_bytes(8, "little"))])
    watch_state("numpy", states.numpy_state(module))
    seed.__doc__ = original.__doc__
    module.seed = seed
    bits: Any = module.bit_generator
    ask = bits.randbits

    def randbits(count: int) -> int:
        with asking("numpy"):
            return int(ask(count))

    bits.randbits = randbits


def torch_is_there(torch: Any) -> None:
    """Watch PyTorch's generators, now that ``torch`` is imported."""
    default = torch.default_generator
    default.manual_seed(first_state("torch"))
    real, manual_seed = torch.Generator, torch.manual_seed

    def fresh() -> int:
        with asking("seed"):
            return int.from_bytes(os.urandom(8), "little")

    class Meta(type(real)):  # type: ignore[misc]
        def __instancecheck__(cls, one: object) -> bool:
            return isinstance(one, real)

    class Generator(real, metaclass=Meta):  # type: ignore[misc, valid-type]
        def seed(self) -> int:
            value = fresh()
            self.manual_seed(value)
            return value

    Generator.__module__, Generator.__qualname__ = "torch", "Generator"
    torch.Generator = Generator

    def seed() -> int:
        value = fresh()
        here.set_busy(True)
        try:
            manual_seed(value)
        finally:
            here.set_busy(False)
        return value

    seed.__doc__ = torch.seed.__doc__
    torch.seed = torch.random.seed = seed

    def seeded(given: Any) -> Any:
        if not here.busy():
            seed_call(given, "torch")
        return manual_seed(given)

    seeded.__doc__ = manual_seed.__doc__
    torch.manual_seed = torch.random.manual_seed = seeded
    count = here.settings.get("threads")
    if count:
        torch.set_num_threads(count)
        torch.set_num_threads = lambda number: None
    if here.settings.get("deterministic"):
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)

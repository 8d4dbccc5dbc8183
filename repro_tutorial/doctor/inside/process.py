"""A process of the watched program: which one it is, what it was asked to do, its beginning and its end."""

import atexit
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from repro_tutorial.doctor.inside.streams import Book, Places

HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver", "torch.distributed.run")


class Here:
    """This process."""

    settings: dict[str, Any]
    role: str
    places: Places
    children = 0
    threads = 0
    begun = 0.0

    def __init__(self) -> None:
        self._local = threading.local()
        self.books: list[Book] = []
        self.at_end: list[Callable[[], None]] = []
        self.modules: list[Any] = []
        self.states: dict[str, Callable[[], int]] = {}  # how to look at a global generator
        self.first_states: dict[str, int] = {}

    def book(self) -> Book:
        """The book of the calling thread."""
        book: Book | None = getattr(self._local, "book", None)
        if book is None:
            # current_thread() would make a thread that is still being born known under a false name
            thread = threading._active.get(threading.get_ident())  # type: ignore[attr-defined]
            main = thread is threading.main_thread()
            role = getattr(thread, "_doctor_role", None)
            book = self.open_book(self.role if main else f"{self.role}~{role or 'x'}")
        return book

    def open_book(self, role: str) -> Book:
        """Begin a book and make it the calling thread's."""
        book = Book(self.settings["folder"], role, self.begun)
        self._local.book = book
        self.books.append(book)
        return book

    def next_child(self) -> str:
        """The role of the process that is about to be started."""
        self.children += 1
        return f"{self.role}.{self.children}"

    def busy(self) -> bool:
        """Whether the calling thread is inside our own code, whose readings are not the program's."""
        return getattr(self._local, "busy", False)

    def set_busy(self, value: bool) -> None:
        """See `busy`."""
        self._local.busy = value

    def forget(self) -> None:
        """Give up the calling thread's book."""
        self._local = threading.local()
        self.books.clear()

    def set_recorder(self, recorder: Any) -> None:
        """Name the calling thread's recorder, which a fork gives a new book."""
        self._local.recorder = recorder

    def end(self) -> None:
        """Write everything down."""
        for action in self.at_end:
            action()
        self.at_end.clear()
        for book in self.books:
            book.flush()

    def forked(self) -> None:
        """In a forked child: a new process, with nothing written yet."""
        self.role, self.children, self.threads = self._child, 0, 0
        self.at_end = []
        recorder = getattr(self._local, "recorder", None)
        self._local = threading.local()
        for book in self.books:
            book._buffer = bytearray()  # the parent's, who writes it
            book.close()
        self.books = []
        os.environ["REPRO_DOCTOR_ROLE"] = self.role
        book = self.open_book(self.role)
        book.note("process", "", 1)
        if recorder is not None:
            self.set_recorder(recorder)
            recorder.book = book

    _child = ""

    def forking(self) -> None:
        """Just before a fork, in the parent."""
        self._child = self.next_child()


here = Here()


def start() -> None:
    """At the start of a process: read what is asked, and begin to watch."""
    if (
        any(helper in argument for argument in sys.orig_argv for helper in HELPERS)
        and "RANK" not in os.environ
    ):
        return
    with open(os.environ["REPRO_DOCTOR"], encoding="utf-8") as file:  # noqa: PTH123
        here.settings = json.load(file)
    ranked = f"rank{os.environ['RANK']}" if "RANK" in os.environ else "main"
    here.role = os.environ.get("REPRO_DOCTOR_ROLE") or ranked
    os.environ["REPRO_DOCTOR_ROLE"] = here.role
    here.begun = here.settings.get("begun") or time.monotonic()
    here.places = Places(here.settings["roots"])
    here.open_book(here.role).note("process", "", 0)
    atexit.register(here.end)
    leave = os._exit

    def leave_at_once(status: int) -> None:
        here.end()
        leave(status)

    os._exit = leave_at_once  # type: ignore[assignment]
    os.register_at_fork(before=here.forking, after_in_child=here.forked)

    from repro_tutorial.doctor.inside import children, sources

    sources.begin()
    children.begin()
    watched: dict[str, Callable[[ModuleType], None]] = {
        "numpy.random": _numpy,
        "torch": _torch,
        "tempfile": _tempfile,
    }
    for name in watched.keys() & sys.modules.keys():
        watched.pop(name)(sys.modules[name])
    sys.meta_path.insert(0, _Attach(watched))
    if here.settings.get("tape"):
        from repro_tutorial.doctor.inside import lines

        lines.begin()


def _tempfile(module: ModuleType) -> None:
    from repro_tutorial.doctor.inside import sources

    sources.tempfile_is_there(module)


def _numpy(module: ModuleType) -> None:
    from repro_tutorial.doctor.inside import sources

    sources.numpy_is_there(module)


def _torch(module: ModuleType) -> None:
    from repro_tutorial.doctor.inside import recorder, sources

    sources.torch_is_there(module)
    recorder.torch_is_there(module)


class _Attach(MetaPathFinder):
    """Calls a function when a module has been imported."""

    def __init__(self, wanted: dict[str, Callable[[ModuleType], None]]) -> None:
        self.wanted = wanted
        self._asking = False

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module's own spec, its loader followed by our function."""
        if name not in self.wanted or self._asking:
            return None
        from importlib.util import find_spec

        self._asking = True
        try:
            spec = find_spec(name)
        finally:
            self._asking = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Followed(spec.loader, self.wanted[name])
        return spec


class _Followed(Loader):
    def __init__(self, loader: Any, then: Callable[[ModuleType], None]) -> None:
        self.loader, self.then = loader, then

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As the module's own loader does."""
        made: ModuleType | None = self.loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        """As the module's own loader does; then our function."""
        busy = here.busy()
        self.loader.exec_module(module)
        here.set_busy(True)
        try:
            self.then(module)
        finally:
            here.set_busy(busy)

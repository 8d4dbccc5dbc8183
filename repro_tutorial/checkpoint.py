"""Save and load all that a training goes on from; write checkpoints whole or not at all; let Ctrl-C wait.

`save_training_state` and `load_training_state` take the parts of a training by name, and every generator
that the process has. `save_checkpoint` and `load_checkpoint` below them take any plain data.
"""

import contextlib
import copy
import errno
import glob
import itertools
import os
import pickle
import re
import secrets
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO, Protocol, TypeAlias

import torch
from torch.utils.data import DataLoader

from repro_tutorial.messages import InputError, Line, os_problem, text
from repro_tutorial.rng_state import (
    PrivateGenerator,
    RNGState,
    advanced_generators,
    get_rng_state,
    isolate_rng,
    set_rng_state,
)

try:
    import fcntl
except ImportError:  # Windows: there the leftovers of killed processes stay
    fcntl = None  # type: ignore[assignment]  # asked for before each use

FORMAT_VERSION = 1


class Stateful(Protocol):
    """Whatever can tell its state and take it back: models, optimizers, schedulers, scalers, some loaders."""

    def state_dict(self) -> Any:
        """The state, in tensors and plain data."""

    def load_state_dict(self, state_dict: Any, /) -> Any:
        """Go on from `state_dict`."""


Part: TypeAlias = Stateful | PrivateGenerator


# The state of a training --------------------------------------------------------------------------------


def save_training_state(
    path: str | os.PathLike[str], *, step: int, model: Stateful, optimizer: Stateful, **others: Part
) -> None:
    """Replace the file `path` by all that the rest of a training depends on.

    That is the number of steps done, every part given, and the generators of Python, NumPy and PyTorch on
    every device. `others` are whatever else the training changes: ``scheduler=``, ``scaler=``, ``loader=`` (a
    `ResumableLoader` or torchdata's ``StatefulDataLoader``), averaged weights, and generators that your code
    made itself, each under a name of its own. A crash at any moment leaves the old file or the new one.

    Raises:
        InputError: a part has no state that can be read, or one that holds more than tensors and plain data;
            or the file cannot be written.

    >>> import tempfile
    >>> model = torch.nn.Linear(2, 1)
    >>> parts = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_training_state(folder + "/run.pt", step=7, **parts)
    ...     load_training_state(folder + "/run.pt", **parts)
    7

    Lesson: resume
    """
    parts, generators = _apart({"model": model, "optimizer": optimizer, **others})
    state = {
        "format_version": FORMAT_VERSION,
        "torch": str(torch.__version__),
        "step": step,
        "parts": {name: {"kind": _kind(of), "state": of.state_dict()} for name, of in parts.items()},
        "generators": get_rng_state(**generators),
    }
    save_checkpoint(Path(path), state)


def load_training_state(
    path: str | os.PathLike[str], *, model: Stateful, optimizer: Stateful, **others: Part
) -> int:
    """Put all parts and generators to where `save_training_state` found them; the number of steps done.

    Make the parts as the first time and give them under the names they were saved with. All are loaded, or
    none when one does not fit. A warning says so where the file comes from another release of PyTorch, or
    has no state of a generator that this process has.

    Raises:
        InputError: the file cannot be read, holds no training state, has other names in it, or a state that
            does not fit the part given.

    >>> load_training_state("nothing.pt", model=torch.nn.ReLU(), optimizer=torch.optim.SGD([torch.zeros(1)]))
    Traceback (most recent call last):
        ...
    repro_tutorial.messages.InputError: cannot read nothing.pt: there is no such file; check the name

    Lesson: resume
    """
    given = {"model": model, "optimizer": optimizer, **others}
    parts, generators = _apart(given)
    saved = load_checkpoint(Path(path))
    if saved.get("format_version") != FORMAT_VERSION or not saved.keys() >= {"parts", "generators", "step"}:
        raise InputError("checkpoint.no_training_state", file=path)
    names = saved["parts"].keys() | saved["generators"]["private"].keys()
    if names != given.keys():
        raise InputError("checkpoint.other_names", file=path, saved=sorted(names), given=sorted(given))
    for name, part in parts.items():
        _check_fit(name, saved["parts"].get(name, {"kind": "generator"}), part)

    generators_before = get_rng_state(**generators)  # first: a loader may draw to tell its state
    before = {name: copy.deepcopy(part.state_dict()) for name, part in parts.items()}
    try:
        for name, part in parts.items():
            _load(name, part, saved["parts"][name]["state"])
        set_rng_state(saved["generators"], **generators)  # last: loading a loader draws
    except BaseException:  # Ctrl-C too
        for name, part in parts.items():
            part.load_state_dict(before[name])
        set_rng_state(generators_before, **generators)
        raise

    if saved["torch"] != str(torch.__version__):
        versions = {"saved": saved["torch"], "installed": torch.__version__}
        warnings.warn(text("checkpoint.other_torch", file=path, **versions), stacklevel=2)
    if missing := advanced_generators(saved["generators"], get_rng_state(**generators)):
        names_of = ", ".join(missing)
        warnings.warn(text("checkpoint.no_state_of", file=path, generators=names_of), stacklevel=2)
    return int(saved["step"])


def _apart(given: Mapping[str, Part]) -> tuple[dict[str, Stateful], dict[str, PrivateGenerator]]:
    """The parts that tell their state themselves, and the generators."""
    parts: dict[str, Stateful] = {}
    generators: dict[str, PrivateGenerator] = {}
    for name, part in given.items():
        if isinstance(part, PrivateGenerator):
            generators[name] = part
        elif hasattr(part, "state_dict") and hasattr(part, "load_state_dict"):
            parts[name] = part
        elif isinstance(part, DataLoader):
            raise InputError("checkpoint.plain_loader", name=name)
        else:
            raise InputError("checkpoint.no_state", name=name, kind=type(part).__name__)
    return parts, generators


def _kind(part: Stateful) -> str:
    """What a part has to be again. Models may be renamed: their weights say enough."""
    return "Module" if isinstance(part, torch.nn.Module) else type(part).__name__


def _check_fit(name: str, saved: Mapping[str, Any], part: Stateful) -> None:
    """Raise unless `part` is of the kind that was saved and, for a model, has weights of the same shapes."""
    if saved["kind"] != _kind(part):
        raise InputError("checkpoint.other_kind", name=name, saved=saved["kind"], given=_kind(part))
    if isinstance(part, torch.nn.Module):
        weights = part.state_dict()
        for key in saved["state"] | weights:
            ours, theirs = _shape(weights, key), _shape(saved["state"], key)
            if ours != theirs:
                raise InputError("checkpoint.other_weights", name=name, weight=key, saved=theirs, given=ours)


def _shape(weights: Mapping[str, Any], key: str) -> Line:
    weight = weights.get(key)
    if key not in weights:
        return {"key": "checkpoint.absent"}
    if not isinstance(weight, torch.Tensor):
        return type(weight).__name__
    return f"{tuple(weight.shape)} {str(weight.dtype).removeprefix('torch.')}"


def _load(name: str, part: Stateful, state: Any) -> None:
    try:
        part.load_state_dict(state)
        # torchdata's loader draws when it is first used: now, so that it moves no generator afterwards.
        part.state_dict()
    except (InputError, OSError):
        raise
    except Exception as error:
        problem = (str(error).splitlines() or [""])[0]
        raise InputError("checkpoint.misfit", name=name, problem=problem) from error


class ResumableLoader:
    """A `DataLoader` that can go on in the middle of an epoch, with the batches that were still to come.

    It keeps how many batches the epoch has given, and where the generators stood when it began. To go on it
    begins that epoch again and passes over those batches, so that the sampler and the workers draw what they
    had drawn: it takes as long as loading them. `epoch` is the number of epochs finished before this one;
    a sampler that has ``set_epoch`` is told it. Saved after the last batch of an epoch, the first pass after
    loading is empty, so that a loop ends the epoch as it would have:

    >>> loader = ResumableLoader(DataLoader(range(4), shuffle=True, generator=torch.Generator()))
    >>> first = next(iter(loader))
    >>> state = loader.state_dict()
    >>> rest = list(loader)
    >>> loader.load_state_dict(state)
    >>> len(list(loader)), len(list(loader)), loader.epoch
    (3, 4, 2)

    Raises:
        InputError: the workers stay alive from epoch to epoch (``persistent_workers=True``), with generators
            that nobody can read.

    Lesson: resume
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        if loader.num_workers and loader.persistent_workers:
            raise InputError("checkpoint.persistent_workers")
        self.loader = loader
        self.epoch = 0
        self._given = 0  # batches of this epoch
        self._start: RNGState | None = None  # None between two epochs
        self._rest: Iterator[Any] | None = None  # what loading a state has left of an epoch

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        if self._rest is None:
            self.epoch += self._start is not None  # the last pass was broken off
            self._given, self._start = 0, get_rng_state(**self._generators())
            batches = self._begin()
        else:
            batches, self._rest = self._rest, None
        for batch in batches:
            self._given += 1
            yield batch
        self.epoch, self._given, self._start = self.epoch + 1, 0, None

    def state_dict(self) -> dict[str, Any]:
        """The epoch, its batches given so far, the generators at its start, and the shape of the loader."""
        begun = self._start is not None
        start = self._start or get_rng_state(**self._generators())
        return {"epoch": self.epoch, "given": self._given, "begun": begun, "start": start} | self._shape()

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Go on where `state` was taken. The process's generators stay where they are, the loader's own move.

        Raises:
            InputError: the state is that of a loader with another number of batches or another batch size,
                or of other generators.

        Warns of another number of workers: what they draw is not what was drawn.
        """
        shape = self._shape()
        for name in ("batches", "batch_size"):
            if state[name] != shape[name]:
                values = {"name": name, "saved": state[name], "given": shape[name]}
                raise InputError("checkpoint.other_loader", **values)
        if state["workers"] != shape["workers"]:
            values = {"saved": state["workers"], "given": shape["workers"]}
            warnings.warn(text("checkpoint.other_workers", **values), stacklevel=2)
        own = self._generators()
        before, kept = get_rng_state(**own), (self.epoch, self._given, self._start, self._rest)
        self.epoch, self._given, self._start, self._rest = state["epoch"], state["given"], None, None
        try:
            with isolate_rng():
                set_rng_state(state["start"], **own)
                if state["begun"]:
                    self._start, self._rest = state["start"], self._begin()
                    passed = sum(1 for _ in itertools.islice(self._rest, self._given))
                    if passed < self._given:
                        values = {"name": "batches", "saved": self._given, "given": passed}
                        raise InputError("checkpoint.other_loader", **values)
        except BaseException:
            self.epoch, self._given, self._start, self._rest = kept
            set_rng_state(before, **own)
            raise

    def _begin(self) -> Iterator[Any]:
        if hasattr(self.loader.sampler, "set_epoch"):
            self.loader.sampler.set_epoch(self.epoch)
        return iter(self.loader)

    def _generators(self) -> dict[str, PrivateGenerator]:
        """The loader's and the sampler's own ones, each once."""
        found: dict[str, PrivateGenerator] = {}
        for name, holder in (("loader", self.loader), ("sampler", self.loader.sampler)):
            generator = getattr(holder, "generator", None)
            if isinstance(generator, torch.Generator) and generator not in found.values():
                found[name] = generator
        return found

    def _shape(self) -> dict[str, int | None]:
        try:
            batches = len(self.loader)
        except TypeError:  # an iterable data set without a length
            batches = None
        size = self.loader.batch_size
        return {"batches": batches, "batch_size": size, "workers": self.loader.num_workers}


# Files --------------------------------------------------------------------------------------------------


def save_checkpoint(path: Path, state: Mapping[str, Any]) -> None:
    """Replace the checkpoint `path` by `state`: tensors and plain data. A crash leaves the old one or the new one.

    It is written under another name, flushed to the disk, read back, and only then renamed. What a killed
    process has left half written, the next call removes.

    Raises:
        InputError: the file cannot be written, or `state` holds what `load_checkpoint` would refuse.

    Lesson: resume
    """
    try:
        partial, file = _new_partial(path)
        try:
            with file:
                torch.save(dict(state), file)
                file.flush()
                os.fsync(file.fileno())  # before the name points to it
                _check_readable(partial, path)
                if fcntl:
                    partial.replace(path)  # still locked, so that nobody takes it for a leftover
            if not fcntl:
                partial.replace(path)  # Windows renames no open file
        finally:
            partial.unlink(missing_ok=True)
        _sync_folder(path.parent)
        _remove_leftovers(path)
    except OSError as error:
        raise InputError("files.cannot_write", file=path, problem=os_problem(error)) from error


def load_checkpoint(path: Path) -> dict[str, Any]:
    """What `save_checkpoint` wrote, on the CPU; nothing in the file is executed.

    Raises:
        InputError: the file cannot be read, is cut short, or is no checkpoint.

    Lesson: resume
    """
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        if error.errno == errno.EINVAL:  # of an empty file, whose end cannot be looked at
            raise InputError("checkpoint.unreadable", file=path) from error
        raise InputError("files.cannot_read", file=path, problem=os_problem(error)) from error
    except (RuntimeError, EOFError, ValueError, LookupError, pickle.UnpicklingError) as error:
        raise InputError("checkpoint.unreadable", file=path) from error
    if not isinstance(state, dict):
        raise InputError("checkpoint.unreadable", file=path)
    return state


def _new_partial(path: Path) -> tuple[Path, BinaryIO]:
    """A new file beside `path`, locked for as long as it is open: nobody else has its name, or removes it."""
    while True:
        partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
        file = partial.open("xb")
        if fcntl is None:
            return partial, file
        with contextlib.suppress(OSError):  # a file system without locks: there leftovers stay, too
            fcntl.flock(file, fcntl.LOCK_EX)
        if partial.exists():  # else another process took it for a leftover before it was locked
            return partial, file
        file.close()


def _remove_leftovers(path: Path) -> None:
    """Remove what killed processes have left of `path`: a file whose writer lives is locked, and stays."""
    if fcntl is None:
        return
    for partial in path.parent.glob(f".{glob.escape(path.name)}.*.partial"):
        with contextlib.suppress(OSError), partial.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            partial.unlink()


def _check_readable(partial: Path, path: Path) -> None:
    """Raise where `load_checkpoint` would refuse what was written; mapped, so that no tensor is read."""
    try:
        torch.load(partial, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        found = re.search(r"GLOBAL ([\w.]+)", str(error))
        raise InputError("checkpoint.not_plain", file=path, kind=found[1] if found else "?") from error


def _sync_folder(folder: Path) -> None:
    """Flush the new name to the disk, too."""
    with contextlib.suppress(OSError):  # Windows opens no folders, and some file systems sync none
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


# Ctrl-C -------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def interrupt_waits() -> Iterator[Callable[[], bool]]:
    """In the block, Ctrl-C is only noted: the function that it gives says whether it came. The second one acts.

    For a loop that ends its step first: in the middle of one, weights and generators fit no checkpoint.
    Outside the main thread, where Python lets nobody handle signals, Ctrl-C acts as always.

    Lesson: resume
    """
    asked = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)

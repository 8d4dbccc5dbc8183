"""Write and read checkpoints whole or not at all, and let Ctrl-C wait for the end of a step.

What belongs into a checkpoint is the training program's affair; the lesson `resume` shows what is easily
forgotten.
"""

import contextlib
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from repro_tutorial.messages import InputError, os_problem


def save_checkpoint(path: Path, state: Mapping[str, Any]) -> None:
    """Replace the checkpoint `path` by `state`: tensors and plain data. A crash leaves the old one or the new one.

    Raises:
        InputError: the file cannot be written.

    Lesson: resume
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            torch.save(dict(state), file)
            file.flush()
            os.fsync(file.fileno())  # before the name points to it
        partial.replace(path)
    except OSError as error:
        raise InputError("files.cannot_write", file=path, problem=os_problem(error)) from error
    finally:
        partial.unlink(missing_ok=True)


def load_checkpoint(path: Path) -> dict[str, Any]:
    """What `save_checkpoint` wrote, on the CPU; nothing in the file is executed.

    Raises:
        InputError: the file cannot be read, is cut short, or is no checkpoint.

    Lesson: resume
    """
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise InputError("files.cannot_read", file=path, problem=os_problem(error)) from error
    except (RuntimeError, EOFError, ValueError, LookupError, pickle.UnpicklingError) as error:
        raise InputError("checkpoint.unreadable", file=path) from error
    if not isinstance(state, dict):
        raise InputError("checkpoint.unreadable", file=path)
    return state


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

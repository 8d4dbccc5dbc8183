"""For tests of one's own: a function that must give the same result twice, and why it does not."""

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from repro_tutorial.doctor import report as told
from repro_tutorial.doctor.compare import Difference, Records, first_difference
from repro_tutorial.doctor.kinds import Cause
from repro_tutorial.messages import default_language, text
from repro_tutorial.rng_state import RNGState, get_rng_state, set_rng_state

# Each generator's entry in `RNGState`.
STATES: dict[str, Literal["torch_cpu", "numpy", "python"]] = {
    "torch": "torch_cpu",
    "numpy": "numpy",
    "python": "python",
}


def assert_reproducible(fn: Callable[[], Any], runs: int = 2) -> None:
    """Call `fn` so many times and demand that every call computes the same, bit for bit.

    Every operator of PyTorch that `fn` calls is compared, and what it returns: tensors, arrays and numbers, also
    in lists, tuples and dictionaries. Each call finds the generators as the call before left them, as a second
    run would find them unseeded.

    Raises:
        AssertionError: two calls differ; the message says where they part and, if a generator that `fn` does not
            seed explains it, which one: a further call with that generator put back agrees.

    >>> import torch
    >>> assert_reproducible(lambda: torch.rand(2, generator=torch.Generator().manual_seed(0)))

    Lesson: generators
    """
    with tempfile.TemporaryDirectory() as place:
        begun = get_rng_state()
        first = _record(fn, Path(place, "0"))
        for number in range(1, runs):
            again = _record(fn, Path(place, str(number)))
            if first[1] != again[1] or first_difference(first[0], again[0]) is not None:
                difference = first_difference(first[0], again[0])
                raise AssertionError(
                    _explain(fn, difference, number + 1, _causes(fn, begun, first, Path(place)))
                )


def _record(fn: Callable[[], Any], folder: Path) -> tuple[Records, int]:
    """Call `fn`, recorded; a digest of what it returned."""
    from repro_tutorial.doctor.inside.process import here
    from repro_tutorial.doctor.inside.recorder import Recorder, digest_all
    from repro_tutorial.doctor.inside.streams import Places

    folder.mkdir()
    here.settings = {"folder": str(folder), "roots": [os.getcwd()], "repeat": False}  # noqa: PTH109
    here.places, here.begun, here.role = Places(here.settings["roots"]), time.monotonic(), "main"
    book = here.open_book("main")
    try:
        with Recorder(book):
            returned = fn()
    finally:
        book.close()
        here.forget()
    return Records(folder), digest_all(_flat(returned), 0)


def _flat(value: Any) -> Any:
    import numpy as np
    import torch

    if isinstance(value, dict):
        return [_flat(value[key]) for key in sorted(value, key=str)]
    if isinstance(value, list | tuple):
        return [_flat(part) for part in value]
    if isinstance(value, np.ndarray | np.generic):
        array = np.ascontiguousarray(value)
        return torch.frombuffer(bytearray(array.tobytes()), dtype=torch.uint8) if array.nbytes else 0
    return value


def _causes(fn: Callable[[], Any], begun: RNGState, first: tuple[Records, int], place: Path) -> list[Cause]:
    """The generator which, put back to where it stood before the first call, makes a call agree with it."""
    for name in STATES:
        state = get_rng_state()
        state[STATES[name]] = begun[STATES[name]]
        set_rng_state(state)
        again = _record(fn, place / name)
        if again[1] == first[1] and first_difference(first[0], again[0]) is None:
            return [Cause(f"unseeded_{name}", "", None, True, name)]
    return []


def _explain(
    fn: Callable[[], Any], difference: Difference | None, number: int, causes: Sequence[Cause]
) -> str:
    lang = default_language()
    name = getattr(fn, "__name__", repr(fn))
    lines = [text("doctor.calls_differ", lang, name=name, number=number)]
    if difference is not None:
        lines += told.where(difference, lang)
    for cause in causes:
        lines += told.why(cause, lang)
    return "\n".join(lines)

"""Python imports this at the start of every process of a watched program, since PYTHONPATH names its folder."""

import contextlib
import importlib
import os
import sys

_FOLDER = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120  # pathlib would cost milliseconds
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(_FOLDER)))  # noqa: PTH120


def _start() -> None:
    # The very package that started the run, whichever other the program would find; then out of its sight.
    sys.path.insert(0, _ROOT)
    try:
        from repro_tutorial.doctor.inside import process

        process.start()
    finally:
        sys.path.remove(_ROOT)


def _hand_on() -> None:
    """Import the sitecustomize that this one hides, if there is one."""
    sys.path[:] = [entry for entry in sys.path if entry != _FOLDER]
    ours = sys.modules.pop("sitecustomize", None)
    with contextlib.suppress(ModuleNotFoundError):
        importlib.import_module("sitecustomize")
    if ours is not None:
        sys.modules.setdefault("sitecustomize", ours)


if "REPRO_DOCTOR" in os.environ:
    _start()
_hand_on()

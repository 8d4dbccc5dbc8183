"""Digests of the global generators' states, looked at in place, so cheaply that every operator can ask."""

import ctypes
import random
import struct
from collections.abc import Callable
from typing import Any

from xxhash import xxh3_64_intdigest


def python_state() -> Callable[[], int]:
    """A function that digests the state of Python's global generator, in place where CPython's layout allows."""
    instance = random._inst
    window = (ctypes.c_char * 2500).from_address(
        id(instance) + 16
    )  # index and 624 words, after the object's head

    def in_place() -> int:
        return int(xxh3_64_intdigest(window))

    words = struct.unpack("<625I", bytes(window))
    state = instance.getstate()[1]
    if words[1:] == state[:624] and words[0] == state[624]:
        return in_place
    return lambda: int(xxh3_64_intdigest(repr(instance.getstate()).encode()))


def numpy_state(module: Any) -> Callable[[], int]:
    """A function that digests the state of NumPy's global generator, through its state address."""
    bits = module.mtrand._rand._bit_generator
    if type(bits).__name__ != "MT19937":
        return lambda: int(xxh3_64_intdigest(repr(module.get_state()).encode()))
    window = (ctypes.c_char * 2500).from_address(bits.ctypes.state_address)
    return lambda: int(xxh3_64_intdigest(window))

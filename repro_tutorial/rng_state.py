"""Look at, save, restore and isolate generators."""

import contextlib
import random
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias, TypedDict

import numpy as np
import torch

from repro_tutorial.messages import InputError

PrivateGenerator: TypeAlias = np.random.Generator | np.random.RandomState | random.Random | torch.Generator


class RNGState(TypedDict):
    """Where every generator of the process stands, in plain data and tensors.

    A dict at run time, so that `torch.save` writes it and ``torch.load(..., weights_only=True)`` reads it
    with nothing registered.
    """

    python: Any  # random.getstate(): version, 625 words, the spare Gaussian
    numpy: Any  # the legacy generator: name, 624 words, position, the spare Gaussian
    torch_cpu: torch.Tensor  # uint8, 5,056 bytes: the Mersenne Twister and the spare normals
    torch_cuda: list[torch.Tensor]  # uint8, 16 bytes a device: seed and offset
    torch_mps: torch.Tensor | None
    private: dict[str, Any]  # by the names they were passed in under


def get_rng_state(**private: PrivateGenerator) -> RNGState:
    """Where Python, NumPy's legacy generator and PyTorch on every device stand, and the `private` ones.

    CUDA's generators are looked at once CUDA has started: to ask earlier would start it, and with it settle
    what must be set before (`CUBLAS_WORKSPACE_CONFIG`).

    Raises:
        InputError: a private one is no generator, or has the name of one of the others.

    >>> state = get_rng_state()
    >>> drawn = torch.rand(3)
    >>> set_rng_state(state)
    >>> torch.equal(torch.rand(3), drawn)
    True

    Lesson: generators
    """
    if taken := sorted(private.keys() & RNGState.__required_keys__):
        raise InputError("rng_state.name_taken", names=taken)
    return RNGState(
        python=random.getstate(),
        numpy=_plain(np.random.get_state(legacy=False)),
        torch_cpu=torch.get_rng_state(),
        torch_cuda=list(torch.cuda.get_rng_state_all()) if _cuda_started() else [],
        torch_mps=torch.mps.get_rng_state() if torch.backends.mps.is_available() else None,
        private={name: _private_state(name, generator) for name, generator in private.items()},
    )


def set_rng_state(state: RNGState, /, **private: PrivateGenerator) -> None:
    """Put every generator back to where `get_rng_state` found it; all of them, or none when the state does not fit.

    Raises:
        InputError: `private` has other names than the state, a generator is of another kind than the one
            saved under its name, the state holds another number of CUDA devices than this machine has, or it
            is no state.

    Lesson: generators
    """
    if not isinstance(state, dict) or not RNGState.__required_keys__ <= state.keys():
        raise InputError("rng_state.not_a_state", problem=type(state).__name__)
    if private.keys() != state["private"].keys():
        raise InputError("rng_state.other_names", saved=sorted(state["private"]), given=sorted(private))
    for name, generator in private.items():
        saved, given = state["private"][name]["kind"], _kind(name, generator)
        if saved != given:
            raise InputError("rng_state.other_kind", name=name, saved=saved, given=given)
    devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if state["torch_cuda"] and len(state["torch_cuda"]) != devices:
        raise InputError("rng_state.other_devices", saved=len(state["torch_cuda"]), given=devices)
    before = get_rng_state(**private)
    try:
        _set_all(state, private)
    except (TypeError, ValueError, KeyError, RuntimeError) as error:
        _set_all(before, private)
        raise InputError("rng_state.not_a_state", problem=str(error).splitlines()[0]) from error


def _set_all(state: RNGState, private: Mapping[str, PrivateGenerator]) -> None:
    random.setstate(_python_state(state["python"]))
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch_cpu"])
    if state["torch_cuda"]:
        torch.cuda.set_rng_state_all(state["torch_cuda"])
    if state["torch_mps"] is not None and torch.backends.mps.is_available():
        torch.mps.set_rng_state(state["torch_mps"])
    for name, generator in private.items():
        _set_private_state(generator, state["private"][name]["state"])


@contextlib.contextmanager
def isolate_rng(**private: PrivateGenerator) -> Iterator[None]:
    """Whatever the block draws or seeds, every generator is afterwards where it was, also after an error.

    >>> before = get_rng_state()
    >>> with isolate_rng():
    ...     drawn = torch.rand(3)
    >>> advanced_generators(before, get_rng_state())
    ()

    Lesson: generators
    """
    state = get_rng_state(**private)
    try:
        yield
    finally:
        set_rng_state(state, **private)


def advanced_generators(before: RNGState, after: RNGState) -> tuple[str, ...]:
    """The names of the generators that moved between two states.

    ``"python"``, ``"numpy"``, ``"torch_cpu"``, ``"torch_cuda:0"``, …, ``"torch_mps"``, then the private
    ones by name. A generator that only one state holds has moved.

    >>> before = get_rng_state()
    >>> drawn = random.random()
    >>> advanced_generators(before, get_rng_state())
    ('python',)

    Lesson: data_loading
    """
    old, new = _by_name(before), _by_name(after)
    return tuple(
        name for name in old | new if name not in old or name not in new or not _same(old[name], new[name])
    )


def _by_name(state: RNGState) -> dict[str, Any]:
    named = {"python": state["python"], "numpy": state["numpy"], "torch_cpu": state["torch_cpu"]}
    named |= {f"torch_cuda:{device}": one for device, one in enumerate(state["torch_cuda"])}
    if state["torch_mps"] is not None:
        named["torch_mps"] = state["torch_mps"]
    return named | state["private"]


def _cuda_started() -> bool:
    """Whether this process can ask CUDA generators (a forked worker of a CUDA process cannot)."""
    return torch.cuda.is_initialized() and not torch.cuda._is_in_bad_fork()


def _kind(name: str, generator: PrivateGenerator) -> str:
    if isinstance(generator, np.random.Generator):
        return f"numpy.random.{type(generator.bit_generator).__name__}"
    if isinstance(generator, random.SystemRandom) or not isinstance(generator, PrivateGenerator):
        raise InputError("rng_state.not_a_generator", name=name, kind=type(generator).__name__)
    if isinstance(generator, torch.Generator):
        return f"torch.Generator on {generator.device}"
    return type(generator).__name__


def _private_state(name: str, generator: PrivateGenerator) -> dict[str, Any]:
    kind = _kind(name, generator)
    if isinstance(generator, np.random.Generator):
        state: Any = generator.bit_generator.state
    elif isinstance(generator, np.random.RandomState):
        state = generator.get_state(legacy=False)
    elif isinstance(generator, random.Random):
        state = generator.getstate()
    else:
        state = generator.get_state()
    return {"kind": kind, "state": _plain(state)}


def _set_private_state(generator: PrivateGenerator, state: Any) -> None:
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(state)
    elif isinstance(generator, random.Random):
        generator.setstate(_python_state(state))
    else:
        generator.set_state(state)


def _python_state(state: Any) -> tuple[Any, ...]:
    version, words, gauss = state  # JSON and the like turn tuples into lists
    return version, tuple(words), gauss


def _plain(state: Any) -> Any:
    """`state` with its NumPy arrays as lists: weights_only loading refuses arrays, and NumPy takes lists back."""
    if isinstance(state, Mapping):
        return {key: _plain(value) for key, value in state.items()}
    return state.tolist() if isinstance(state, np.ndarray) else state


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return torch.equal(a, b)
    return bool(a == b)

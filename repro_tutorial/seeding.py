"""Give every generator a known start; derive seeds for ranks, workers and runs."""

import functools
import itertools
import operator
import random
import types
from collections import deque
from collections.abc import Collection, Iterator

import numpy as np
import torch
from torch.utils.data import get_worker_info

from repro_tutorial.determinism import set_deterministic
from repro_tutorial.messages import InputError
from repro_tutorial.rng_state import PrivateGenerator

LARGEST_SEED = 2**32 - 1  # numpy.random.seed takes 32 bits, and so does PyTorch's MT19937 in truth


def check_seed(seed: object) -> int:
    """`seed` as an `int` from 0 to 4294967295.

    PyTorch would take more, but its CPU generator starts from the low 32 bits alone, so that two larger
    seeds can mean one stream; NumPy's legacy generator refuses them.

    Raises:
        InputError: `seed` is no integer (``1.5``, ``"3"``, ``True``) or out of range.
    """
    try:
        value = operator.index(seed)  # type: ignore[arg-type]  # the error below is for the rest
    except TypeError:
        value = -1
    if isinstance(seed, bool | np.bool_) or not 0 <= value <= LARGEST_SEED:
        raise InputError("seeding.bad_seed", seed=repr(seed), largest=LARGEST_SEED)
    return value


def seed_everything(seed: int, *, deterministic: bool = False) -> None:
    """Seed Python's `random`, NumPy's legacy generator and PyTorch on every device.

    A seed starts generators; it does not choose kernels. ``deterministic=True`` also sets the switches
    that `repro_tutorial.deterministic` sets, for good. Generators that your code made itself
    (`numpy.random.default_rng`, `random.Random`, `torch.Generator`) are not reached: pass them a seed of
    their own, from `derive_seed`.

    Raises:
        InputError: `seed` is not an integer from 0 to 4294967295.

    >>> seed_everything(3)
    >>> torch.rand(1).item() == (seed_everything(3), torch.rand(1).item())[1]
    True

    Lesson: line_fit
    """
    seed = check_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)  # every device: CPU, CUDA, MPS, XPU
    if deterministic:
        set_deterministic()


def derive_seed(seed: int, *path: int) -> int:
    """A 32-bit seed for the place `path` (rank, worker, run, …) in an experiment that starts from `seed`.

    ``seed + rank`` collides between experiments: rank 1 of seed 3 is rank 0 of seed 4. This one hashes the
    whole path with `numpy.random.SeedSequence`, and its result is a legal seed everywhere. `seed` may have
    any number of bits, so the 64-bit ``torch.initial_seed()`` of a worker will do; members of `path` have 32.

    Raises:
        InputError: `seed` or a member of `path` is negative or not an integer, or a member is above 4294967295.

    >>> derive_seed(3, 0) == derive_seed(3, 0), derive_seed(3, 1) == derive_seed(4, 0)
    (True, False)

    Lesson: multi_gpu_seeding
    """
    try:
        numbers = [operator.index(number) for number in (seed, *path)]
    except TypeError:
        numbers = [-1]
    if min(numbers) < 0 or max(numbers[1:], default=0) > LARGEST_SEED:
        raise InputError("seeding.bad_path", seed=repr(seed), path=repr(path))
    sequence = np.random.SeedSequence(numbers[0], spawn_key=tuple(numbers[1:]))
    return int(sequence.generate_state(1)[0])


def make_generator(seed: int, device: str | torch.device = "cpu") -> torch.Generator:
    """A `torch.Generator` on `device` that starts from `seed`: one for each part that must not disturb others.

    Raises:
        InputError: `seed` is not an integer from 0 to 4294967295.

    >>> a, b = make_generator(3), make_generator(3)
    >>> torch.equal(torch.rand(2, generator=a), torch.rand(2, generator=b))
    True

    Lesson: data_loading
    """
    return torch.Generator(device).manual_seed(check_seed(seed))


def seed_worker(worker_id: int) -> None:
    """For ``DataLoader(worker_init_fn=seed_worker)``: seed all that a worker process draws from.

    PyTorch itself gives each worker its own start of `random`, the legacy NumPy generator and torch's
    default one, and they stay as they are. The generators that the dataset holds are copies of one object in every worker, so that
    all workers and all epochs draw the same numbers; these get seeds of their own here, derived from the
    worker's seed. They are found at any depth: attributes of objects and of their classes, slots, lists,
    tuples, dicts, closures, partial functions, bound methods, wrapped datasets. Sets, whose order is not
    fixed, are not entered.

    Lesson: data_loading
    """
    del worker_id  # torch.initial_seed() already contains it
    worker = get_worker_info()
    if worker is None:
        return
    for index, generator in enumerate(held_generators(worker.dataset)):
        reseed(generator, derive_seed(torch.initial_seed(), index))


def reseed(generator: PrivateGenerator, seed: int) -> None:
    """Restart `generator`, in place, from `seed`."""
    if isinstance(generator, np.random.Generator):
        bit_generator = generator.bit_generator
        bit_generator.state = type(bit_generator)(seed).state
    elif isinstance(generator, torch.Generator):
        generator.manual_seed(seed)
    else:
        generator.seed(seed)


# What holds no generator; of a long list of such, or of tuples of such, only the types are looked at.
_LEAVES = (str, bytes, bytearray, int, float, complex, type(None), torch.Tensor, type, types.ModuleType)


def held_generators(root: object) -> Iterator[PrivateGenerator]:
    """Every private generator that can be reached from `root`, each once, in a fixed order."""
    seen: dict[int, object] = {}  # holds the objects too: a freed one's id would be given again
    waiting = [root]
    while waiting:
        thing = waiting.pop()
        if isinstance(thing, _LEAVES) or id(thing) in seen:
            continue
        seen[id(thing)] = thing
        if isinstance(thing, random.SystemRandom):
            continue  # draws from the operating system: it has no state to set
        if isinstance(thing, PrivateGenerator):
            yield thing
        else:
            waiting.extend(reversed([*_contents(thing), *_attributes(thing)]))


def _contents(thing: object) -> Iterator[object]:
    """What `thing` holds as a container or as something to be called."""
    if isinstance(thing, dict):
        yield from _unless_leaves(dict.values(thing))  # a subclass may have made its own of it
    elif isinstance(thing, list | tuple | deque):
        yield from _unless_leaves(thing)
    elif isinstance(thing, np.ndarray) and thing.dtype == object:
        yield from thing.flat
    elif isinstance(thing, functools.partial):
        yield from (thing.func, thing.args, thing.keywords)
    elif isinstance(thing, types.MethodType | types.BuiltinMethodType):
        yield thing.__self__
    elif isinstance(thing, types.FunctionType):
        yield from (thing.__defaults__, thing.__kwdefaults__)
        for cell in thing.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:  # a cell that is not filled yet
                continue


def _attributes(thing: object) -> Iterator[object]:
    """The attributes of `thing`, and the generators among those of its class; no property is run."""
    try:
        own = object.__getattribute__(thing, "__dict__")  # a __getattr__ of its own is not asked
    except AttributeError:
        own = {}
    yield from dict.values(own) if isinstance(own, dict) else ()
    for kind in type(thing).__mro__:
        yield from (value for value in vars(kind).values() if isinstance(value, PrivateGenerator))
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            private = name.startswith("__") and not name.endswith("__")
            slot = vars(kind).get(f"_{kind.__name__.lstrip('_')}{name}" if private else name)
            if isinstance(slot, types.MemberDescriptorType):
                try:
                    yield slot.__get__(thing)
                except AttributeError:  # nothing in it yet
                    continue


def _unless_leaves(things: Collection[object]) -> Collection[object]:
    """`things`, or nothing where all of them are leaves, or tuples and lists of leaves."""
    kinds = set(map(type, things))
    if kinds <= {tuple, list}:
        kinds = set(map(type, itertools.chain.from_iterable(things)))  # type: ignore[arg-type]  # just looked
    return () if all(issubclass(kind, _LEAVES) for kind in kinds) else things

"""Seeding starts every generator; derived seeds do not collide; workers and what they hold draw apart."""

import functools
import random
from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset

from repro_tutorial.determinism import deterministic, get_switches
from repro_tutorial.messages import InputError
from repro_tutorial.rng_state import isolate_rng
from repro_tutorial.seeding import (
    _unless_leaves,
    derive_seed,
    held_generators,
    make_generator,
    reseed,
    seed_everything,
    seed_worker,
)


def draw() -> tuple:
    return random.random(), np.random.rand(), torch.rand(1).item()


@pytest.mark.parametrize("seed", [0, 3, 2**32 - 1, np.int64(3)])
def test_one_seed_repeats_every_global_generator(seed):
    with isolate_rng():
        seed_everything(seed)
        first = draw()
        seed_everything(seed)
        second = draw()
        third = draw()

    assert first == second
    assert all(a != b for a, b in zip(second, third, strict=True))


def test_seed_means_what_it_means_to_each_library():
    with isolate_rng():
        seed_everything(3)
        ours = draw()
        random.seed(3)
        np.random.seed(3)
        torch.manual_seed(3)
        assert draw() == ours


@pytest.mark.parametrize(
    "seed", [-1, 2**32, 1.5, 3.0, "abc", "3", None, True, np.True_, torch.tensor([1, 2])]
)
def test_a_bad_seed_is_refused_with_the_range_and_nothing_moves(seed):
    with pytest.raises(InputError) as caught:
        seed_everything(seed)
    assert str(caught.value) == (
        f"cannot seed with {seed!r}: a seed is a whole number from 0 to 4294967295, the range that Python, "
        "NumPy and PyTorch all take; choose one from it"
    )  # that no generator moved is the leak guard's business


def test_there_is_no_default_seed():
    with pytest.raises(TypeError):
        seed_everything()


def test_two_seeds_that_agree_in_their_low_32_bits_are_one_stream_to_pytorch():
    """Why larger seeds are refused though PyTorch takes them."""
    draws = [torch.rand(4, generator=torch.Generator().manual_seed(seed)) for seed in (5, 2**32 + 5)]
    assert torch.equal(*draws)


def test_deterministic_sets_the_switches_too():
    before = get_switches()
    with isolate_rng(), deterministic():
        inside = get_switches()
    with isolate_rng():
        from repro_tutorial.determinism import set_switches

        seed_everything(3, deterministic=True)
        assert get_switches() == inside
        set_switches(before)


def test_derived_seeds_of_twenty_experiments_with_sixteen_ranks_do_not_collide():
    paths = [(seed, rank, worker) for seed in range(20) for rank in range(16) for worker in range(16)]

    derived = {derive_seed(seed, rank, worker) for seed, rank, worker in paths}

    assert len(derived) == len(paths)
    assert len({seed + rank for seed, rank, _ in paths}) == 35  # what `seed + rank` makes of 320
    assert all(0 <= seed < 2**32 for seed in derived)


def test_derived_seed_comes_from_numpy_seed_sequence():
    expected = np.random.SeedSequence(3, spawn_key=(1, 2)).generate_state(1)[0]
    assert derive_seed(3, 1, 2) == expected
    assert derive_seed(2**64 - 1, 0) != derive_seed(2**32 - 1, 0)


@pytest.mark.parametrize("arguments", [(-1,), (3, -1), (3, 0.5), ("3", 0), (None, 0), (3, 2**32)])
def test_a_bad_path_is_refused(arguments):
    with pytest.raises(InputError, match="cannot derive a seed from"):
        derive_seed(*arguments)


def test_generator_of_ones_own_leaves_the_global_one_alone():
    before = torch.get_rng_state()
    drawn = torch.rand(3, generator=make_generator(3))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(drawn, torch.rand(3, generator=torch.Generator().manual_seed(3)))


class Slotted:
    __slots__ = ("__hidden", "empty", "rng")
    of_all = torch.Generator()  # an attribute of the class is copied into each worker like any other

    def __init__(self) -> None:
        self.rng = np.random.RandomState(0)
        self.__hidden = random.Random(5)

    @property
    def surprise(self) -> None:
        raise AssertionError("a property is code, and looking for generators runs none")


def test_generators_are_found_at_any_depth_once_each():
    shared = np.random.default_rng(0)
    hidden, default = random.Random(0), np.random.default_rng(2)
    bound = SimpleNamespace(rng=torch.Generator())
    holder = SimpleNamespace(
        plain=shared,
        again=shared,
        nested={"a": [(Slotted(),)], "b": deque([random.Random(1)])},
        closure=lambda: hidden.random(),
        default=lambda rng=default: rng.random(),
        partial=functools.partial(min, key=random.Random(3).random),
        objects=np.array([np.random.default_rng(4), None], dtype=object),
        module=torch.nn.ModuleDict({"noise": torch.nn.Identity()}),
        numbers=list(range(1000)),
        system=random.SystemRandom(),
    )
    holder.module["noise"].rng = bound.rng
    holder.itself = holder

    found = list(held_generators(holder))

    kinds = [type(generator).__name__ for generator in found]
    assert kinds == [
        "Generator", "Generator", "Random", "RandomState", "Random", "Random", "Generator", "Random",
        "Generator", "Generator",
    ]  # fmt: skip
    assert found[0] is shared
    assert found[1] is Slotted.of_all
    assert found[-1] is bound.rng


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.random.default_rng(0),
        lambda: np.random.Generator(np.random.MT19937(0)),
        lambda: np.random.Generator(np.random.Philox(0)),
        lambda: np.random.RandomState(0),
        lambda: random.Random(0),
        lambda: torch.Generator(),
    ],
    ids=["pcg", "twister", "philox", "legacy", "python", "torch"],
)
def test_reseed_restarts_in_place(make):
    a, b = make(), make()

    def draw_from(generator: object) -> float:
        if isinstance(generator, torch.Generator):
            return torch.rand(1, generator=generator).item()
        return generator.random()

    draw_from(b)
    reseed(a, 7)
    reseed(b, 7)
    first = draw_from(a)
    assert first == draw_from(b)
    reseed(a, 8)
    assert draw_from(a) != first


class Noise(Dataset):
    """Eight items, each one draw from every kind of generator."""

    def __init__(self) -> None:
        self.numpy = np.random.default_rng(0)
        self.python = {"deep": [random.Random(0)]}
        self.torch = torch.Generator().manual_seed(0)

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(
            [
                self.numpy.random(),
                self.python["deep"][0].random(),
                torch.rand(1, generator=self.torch).item(),
                random.random(),
                np.random.rand(),
                torch.rand(1).item(),
            ],
            dtype=torch.float64,
        )


def epochs(worker_init_fn=None, *, seed: int = 3, wrap=lambda dataset: dataset) -> torch.Tensor:
    """Two epochs of eight items by two workers: (epoch, item, generator)."""
    loader = DataLoader(
        wrap(Noise()),
        batch_size=1,
        num_workers=2,
        worker_init_fn=worker_init_fn,
        generator=make_generator(seed),
        multiprocessing_context="fork",
    )
    return torch.stack([torch.cat(list(loader)) for _ in range(2)])


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # torch's threads; the worker uses none
def test_private_generators_repeat_in_every_worker_and_epoch_without_seed_worker():
    drawn = epochs()
    private, public = drawn[:, :, :3], drawn[:, :, 3:]

    assert torch.equal(private[:, 0::2], private[:, 1::2]), "worker 0 and worker 1"
    assert torch.equal(private[0], private[1]), "epoch 1 and epoch 2"
    assert len(public.unique()) == public.numel()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # as above
@pytest.mark.parametrize(
    "wrap", [lambda dataset: dataset, lambda dataset: Subset(dataset, range(8))], ids=["bare", "wrapped"]
)
def test_seed_worker_gives_every_worker_and_epoch_its_own_draws_and_repeats(wrap):
    first, second = epochs(seed_worker, wrap=wrap), epochs(seed_worker, wrap=wrap)
    other = epochs(seed_worker, seed=4, wrap=wrap)

    assert torch.equal(first, second)
    assert len(first.unique()) == first.numel()
    assert not (first == other).any()


def test_seed_worker_outside_a_worker_does_nothing():
    seed_worker(0)  # that nothing moved is the leak guard's business


class Sources(Dataset):
    """An integer from torch's default generator and one from NumPy's legacy one."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([torch.randint(0, 2**31, (1,)).item(), np.random.randint(0, 2**31)])


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # as above
def test_torch_and_numpy_stay_two_streams_in_a_worker():
    """Both are Mersenne Twisters: from one seed they give the same integers."""
    loader = DataLoader(Sources(), num_workers=2, worker_init_fn=seed_worker, generator=make_generator(3))
    drawn = torch.cat(list(loader))
    assert not (drawn[:, 0] == drawn[:, 1]).any()


def test_a_long_list_of_samples_is_not_walked():
    """An image folder holds a million (path, label) pairs, and a worker starts with this in every epoch."""
    samples = [("path", number) for number in range(1000)]
    rng = np.random.default_rng(0)
    assert list(_unless_leaves(samples)) == []
    assert list(held_generators(SimpleNamespace(samples=samples, rng=rng))) == [rng]
    assert list(held_generators([*samples, (rng, 0)])) == [rng], "one that has to be walked"


class Twins(Dataset):
    """Two private generators of one kind, in one dataset."""

    def __init__(self) -> None:
        self.a, self.b = np.random.default_rng(0), np.random.default_rng(0)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([self.a.random(), self.b.random()])


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # as above
def test_two_generators_of_one_dataset_draw_apart():
    loader = DataLoader(Twins(), num_workers=2, worker_init_fn=seed_worker, generator=make_generator(3))
    drawn = torch.cat(list(loader))
    assert len(drawn.unique()) == drawn.numel()


class Flip:
    """A transform, as an object, a method and something to be called."""

    def __init__(self) -> None:
        self.rng = random.Random(0)

    def __call__(self, x: object) -> object:
        return x

    def go(self, x: object) -> object:
        return x


class OneSlot:
    __slots__ = "rng"  # a string is legal, and means one slot


class Inherited(OneSlot):
    __slots__ = ()


class Stubborn(dict):
    def values(self):
        raise AssertionError("a subclass's own method is code")


def holders() -> dict[str, tuple[object, random.Random]]:
    flip, slotted, rng = Flip(), Inherited(), random.Random(1)
    slotted.rng = rng

    def keyword(*, rng: random.Random = rng) -> None: ...

    return {
        "bound method": (flip.go, flip.rng),
        "partial of an object": (functools.partial(flip, 1), flip.rng),
        "keyword default": (keyword, rng),
        "inherited string slot": (slotted, rng),
        "dict with methods of its own": (Stubborn(a=[rng]), rng),
    }


@pytest.mark.parametrize("name", holders())
def test_generators_are_found_in_odd_places(name):
    holder, rng = holders()[name]
    (found,) = held_generators(holder)
    assert found.getstate() == rng.getstate()


def test_a_cell_that_is_not_filled_yet_is_passed_over():
    def outer():
        def inner() -> object:
            return later

        yield inner
        later = 1

    assert list(held_generators(next(outer()))) == []

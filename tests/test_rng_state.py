"""States are complete, come back exactly, survive weights_only loading; isolation holds when the body raises."""

import copy
import io
import pickle
import random

import numpy as np
import pytest
import torch

from repro_tutorial.messages import InputError
from repro_tutorial.rng_state import advanced_generators, get_rng_state, isolate_rng, set_rng_state

PRIVATE = {
    "pcg": lambda: np.random.default_rng(1),
    "twister": lambda: np.random.Generator(np.random.MT19937(1)),
    "philox": lambda: np.random.Generator(np.random.Philox(1)),
    "sfc": lambda: np.random.Generator(np.random.SFC64(1)),
    "legacy": lambda: np.random.RandomState(1),
    "mine": lambda: random.Random(1),
    "torch": lambda: torch.Generator().manual_seed(1),
}


def draw(private: dict) -> list:
    """Some numbers from everything, normals too: their spare values are part of the state."""
    numbers = [random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn()]
    numbers += torch.randn(3).tolist() + torch.rand(2).tolist()
    for generator in private.values():
        if isinstance(generator, torch.Generator):
            numbers += torch.randn(3, generator=generator).tolist()
        elif isinstance(generator, random.Random):
            numbers += [generator.random(), generator.gauss(0, 1)]
        else:
            numbers += [generator.random(), generator.standard_normal()]
    return numbers


def through_a_file(state: dict) -> dict:
    """What `torch.save` and a weights_only load make of a state."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize(
    "pass_through",
    [lambda state: state, through_a_file, lambda state: pickle.loads(pickle.dumps(state)), copy.deepcopy],
    ids=["direct", "saved", "pickled", "copied"],
)
@pytest.mark.parametrize("ahead", [0, 1, 5])
def test_every_generator_comes_back_to_where_it_was(pass_through, ahead):
    private = {name: make() for name, make in PRIVATE.items()}
    with isolate_rng():
        for _ in range(ahead):  # an odd number of normals leaves a spare one in the state
            draw(private)
        state = pass_through(get_rng_state(**private))
        expected = draw(private)
        assert draw(private) != expected

        set_rng_state(state, **private)

        assert draw(private) == expected


def test_a_state_is_a_snapshot_not_a_view():
    with isolate_rng():
        state = get_rng_state()
        expected = draw({})
        set_rng_state(state)
        draw({})
        set_rng_state(state)
        assert draw({}) == expected


@pytest.mark.parametrize(
    ("move", "name"),
    [
        (lambda private: random.random(), "python"),
        (lambda private: np.random.rand(), "numpy"),
        (lambda private: torch.rand(1), "torch_cpu"),
        (lambda private: private["pcg"].random(), "pcg"),
        (lambda private: private["torch"].manual_seed(2), "torch"),
    ],
    ids=["python", "numpy", "torch_cpu", "pcg", "torch"],
)
def test_the_generator_that_moved_is_named(move, name):
    private = {"pcg": np.random.default_rng(1), "torch": torch.Generator()}
    with isolate_rng():
        before = get_rng_state(**private)
        move(private)
        assert advanced_generators(before, get_rng_state(**private)) == (name,)


def test_a_generator_that_one_state_lacks_has_moved():
    assert advanced_generators(get_rng_state(), get_rng_state(mine=random.Random())) == ("mine",)


def test_isolation_holds_when_the_body_raises_or_seeds():
    private = {name: make() for name, make in PRIVATE.items()}
    before = get_rng_state(**private)

    with pytest.raises(ZeroDivisionError), isolate_rng(**private):
        draw(private)
        torch.manual_seed(0)
        _ = 1 / 0

    assert advanced_generators(before, get_rng_state(**private)) == ()


def test_other_names_are_refused_and_nothing_moves():
    mine = random.Random(1)
    state = get_rng_state(mine=mine)
    mine.random()
    moved = mine.getstate()

    with pytest.raises(InputError) as caught:
        set_rng_state(state, yours=mine)

    assert mine.getstate() == moved
    assert str(caught.value) == (
        "cannot restore private generators yours: the state was saved with mine; "
        "pass the same generators under the same names"
    )


def test_another_kind_of_generator_is_refused():
    state = get_rng_state(mine=np.random.default_rng(1))
    with pytest.raises(InputError, match=r"saved from a numpy.random.PCG64, this one is a Random"):
        set_rng_state(state, mine=random.Random(1))


@pytest.mark.parametrize("thing", [3, random.SystemRandom(), np.random])
def test_what_has_no_state_is_refused(thing):
    with pytest.raises(InputError, match="has no state that can be read"):
        get_rng_state(mine=thing)


@pytest.fixture
def two_fake_gpus(monkeypatch) -> list[torch.Tensor]:
    """Two CUDA generators as PyTorch shows them: 16 bytes of seed and offset each."""
    states = [torch.zeros(16, dtype=torch.uint8) for _ in range(2)]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(states))
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: [state.clone() for state in states])

    def set_all(new: list[torch.Tensor]) -> None:
        states[:] = [state.clone() for state in new]

    monkeypatch.setattr(torch.cuda, "set_rng_state_all", set_all)
    return states


def test_every_cuda_device_is_saved_and_restored(two_fake_gpus):
    before = get_rng_state()
    two_fake_gpus[1][8] = 4  # the second device's offset
    after = get_rng_state()

    assert advanced_generators(before, after) == ("torch_cuda:1",)
    with isolate_rng():
        set_rng_state(before)
        assert two_fake_gpus[1][8] == 0
    assert two_fake_gpus[1][8] == 4
    two_fake_gpus[1][8] = 0


def test_a_state_of_two_devices_is_refused_where_there_is_none(two_fake_gpus, monkeypatch):
    state = get_rng_state()
    monkeypatch.undo()
    with pytest.raises(InputError, match="saved with 2 CUDA devices, this process has 0"):
        set_rng_state(state)


@pytest.mark.parametrize("broken", ["torch_cpu", "numpy", "python", "private"])
def test_a_broken_state_moves_nothing(broken):
    mine = random.Random(1)
    with isolate_rng(mine=mine):
        state = get_rng_state(mine=mine)
        state[broken] = {
            "torch_cpu": torch.zeros(5, dtype=torch.uint8),
            "numpy": {"bit_generator": "MT19937"},
            "python": (3, (1, 2), None),
            "private": {"mine": {"kind": "Random", "state": (3, (1,), None)}},
        }[broken]
        draw({"mine": mine})
        before = get_rng_state(mine=mine)

        with pytest.raises(InputError, match="this is no state that get_rng_state returned"):
            set_rng_state(state, mine=mine)

        assert advanced_generators(before, get_rng_state(mine=mine)) == ()


@pytest.mark.parametrize("state", [{}, None, 3])
def test_what_is_no_state_is_refused(state):
    with pytest.raises(InputError, match="this is no state"):
        set_rng_state(state)


def test_a_forked_worker_of_a_cuda_process_asks_no_device(two_fake_gpus, monkeypatch):
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: True)
    assert get_rng_state()["torch_cuda"] == []


def test_mps_is_saved_and_restored(monkeypatch):
    states = [torch.zeros(4, dtype=torch.uint8)]
    with monkeypatch.context() as patch:
        patch.setattr(torch.backends.mps, "is_available", lambda: True)
        patch.setattr(torch.mps, "get_rng_state", lambda: states[0].clone())
        patch.setattr(torch.mps, "set_rng_state", lambda state: states.__setitem__(0, state.clone()))
        before = get_rng_state()
        states[0][0] = 1
        assert advanced_generators(before, get_rng_state()) == ("torch_mps",)
        set_rng_state(before)
        assert states[0][0] == 0


def test_moved_generators_are_named_in_a_fixed_order():
    mine = random.Random(0)
    with isolate_rng():
        before = get_rng_state(mine=mine)
        mine.random()
        random.random()
        assert advanced_generators(before, get_rng_state(mine=mine)) == ("python", "mine")


def test_looking_does_not_start_cuda(two_fake_gpus, monkeypatch):
    """What is set before CUDA starts could not be set any more, in a block that only wanted to look."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    state = get_rng_state()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)  # something in between started it
    set_rng_state(state)
    assert state["torch_cuda"] == []


def test_names_of_the_common_generators_are_not_free():
    with pytest.raises(InputError, match="called torch_cpu: these names belong to the generators"):
        get_rng_state(torch_cpu=torch.Generator())
    get_rng_state(state=random.Random())

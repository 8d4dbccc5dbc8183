"""The leak guard: generators, switches, threads and environment are the same after a test as before it."""

import os
from collections.abc import Iterator

import pytest

from repro_tutorial.determinism import get_switches, set_switches
from repro_tutorial.rng_state import advanced_generators, get_rng_state, set_rng_state

# Written by pytest before each phase of a test, and by PyTorch when it first loads its compiler.
OTHERS_VARIABLES = {"PYTEST_CURRENT_TEST", "TORCHINDUCTOR_CACHE_DIR"}


def leaks(before: tuple, after: tuple) -> list[str]:
    """What differs between two states of `state_of_process`, by name."""
    moved = [f"generator {name}" for name in advanced_generators(before[0], after[0])]
    moved += [
        f"switch {name}"
        for name, value in vars(before[1]).items()
        if vars(after[1])[name] != value and name != "cublas_workspace_config"
    ]
    names = (before[2].keys() | after[2].keys()) - OTHERS_VARIABLES
    return moved + [f"variable {name}" for name in sorted(names) if before[2].get(name) != after[2].get(name)]


def state_of_process() -> tuple:
    return get_rng_state(), get_switches(), dict(os.environ)


@pytest.fixture(autouse=True)
def leak_guard(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that moves state and does not put it back makes its neighbors pass or fail by their order."""
    if request.node.get_closest_marker("leaks"):
        yield
        return
    before = state_of_process()
    yield
    moved = leaks(before, state_of_process())
    set_rng_state(before[0])
    set_switches(before[1])
    os.environ.clear()
    os.environ.update(before[2])
    assert not moved, f"the test left moved: {', '.join(moved)}"

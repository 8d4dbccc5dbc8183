"""pytest finds this by its entry point: a fixture for tests of one's own."""

from collections.abc import Callable, Iterator

import pytest


@pytest.fixture(name="assert_reproducible")
def assert_reproducible_fixture() -> Iterator[Callable[..., None]]:
    """`repro_tutorial.assert_reproducible`, with the generators put back once the test is over."""
    from repro_tutorial.doctor.testing import assert_reproducible
    from repro_tutorial.rng_state import get_rng_state, set_rng_state

    before = get_rng_state()
    yield assert_reproducible
    set_rng_state(before)

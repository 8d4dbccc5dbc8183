"""The leak guard itself: it must be able to fail."""

import os
import random

import numpy as np
import torch
from conftest import leaks, state_of_process

from repro_tutorial.determinism import get_switches, set_switches
from repro_tutorial.rng_state import isolate_rng


def test_guard_names_what_moved():
    switches, threads_variable = get_switches(), os.environ.get("OMP_NUM_THREADS")
    before = state_of_process()
    with isolate_rng():
        random.random()
        np.random.rand()
        torch.rand(1)
        torch.backends.cudnn.benchmark = True
        os.environ["REPRO_TUTORIAL_TEST"] = "1"
        moved = leaks(before, state_of_process())
        del os.environ["REPRO_TUTORIAL_TEST"]
        set_switches(switches)

    assert moved == [
        "generator python",
        "generator numpy",
        "generator torch_cpu",
        "switch cudnn_benchmark",
        "variable REPRO_TUTORIAL_TEST",
    ]
    assert os.environ.get("OMP_NUM_THREADS") == threads_variable


def test_guard_is_silent_when_nothing_moved():
    assert leaks(state_of_process(), state_of_process()) == []

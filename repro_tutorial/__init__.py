"""Why two PyTorch runs differ, and what to do about it.

Importing this package changes no state and loads nothing: each name below loads its module when it is
first used.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from repro_tutorial.checkpoint import (
        ResumableLoader as ResumableLoader,
        load_training_state as load_training_state,
        save_training_state as save_training_state,
    )
    from repro_tutorial.determinism import (
        IneffectiveSwitch as IneffectiveSwitch,
        Switches as Switches,
        deterministic as deterministic,
        get_switches as get_switches,
        ineffective_switches as ineffective_switches,
        set_deterministic as set_deterministic,
        set_switches as set_switches,
    )
    from repro_tutorial.divergence import Divergence as Divergence, compare as compare
    from repro_tutorial.doctor.testing import assert_reproducible as assert_reproducible
    from repro_tutorial.environment import describe_environment as describe_environment
    from repro_tutorial.fingerprint import (
        fingerprint_state_dict as fingerprint_state_dict,
        fingerprint_tensor as fingerprint_tensor,
    )
    from repro_tutorial.messages import InputError as InputError
    from repro_tutorial.rng_state import (
        RNGState as RNGState,
        advanced_generators as advanced_generators,
        get_rng_state as get_rng_state,
        isolate_rng as isolate_rng,
        set_rng_state as set_rng_state,
    )
    from repro_tutorial.runs import Record as Record, Recorder as Recorder, Run as Run
    from repro_tutorial.seeding import (
        derive_seed as derive_seed,
        make_generator as make_generator,
        seed_everything as seed_everything,
        seed_worker as seed_worker,
    )
    from repro_tutorial.virtual_cuda import (
        VirtualCluster as VirtualCluster,
        VirtualCudaGenerator as VirtualCudaGenerator,
    )

__version__ = "0.1.0"

_HOME = {
    "Divergence": "divergence",
    "IneffectiveSwitch": "determinism",
    "InputError": "messages",
    "RNGState": "rng_state",
    "Record": "runs",
    "Recorder": "runs",
    "ResumableLoader": "checkpoint",
    "Run": "runs",
    "Switches": "determinism",
    "VirtualCluster": "virtual_cuda",
    "VirtualCudaGenerator": "virtual_cuda",
    "advanced_generators": "rng_state",
    "assert_reproducible": "doctor.testing",
    "compare": "divergence",
    "derive_seed": "seeding",
    "describe_environment": "environment",
    "deterministic": "determinism",
    "fingerprint_state_dict": "fingerprint",
    "fingerprint_tensor": "fingerprint",
    "get_rng_state": "rng_state",
    "get_switches": "determinism",
    "ineffective_switches": "determinism",
    "isolate_rng": "rng_state",
    "load_training_state": "checkpoint",
    "make_generator": "seeding",
    "save_training_state": "checkpoint",
    "seed_everything": "seeding",
    "seed_worker": "seeding",
    "set_deterministic": "determinism",
    "set_rng_state": "rng_state",
    "set_switches": "determinism",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'repro_tutorial' has no attribute {name!r}")
    return getattr(importlib.import_module(f"repro_tutorial.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])

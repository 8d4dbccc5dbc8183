"""What seed_everything and its cousins do and do not set.

Run:   python demos/frameworks.py                            every call of every framework, probed; then two trainings
       python demos/frameworks.py --only repro_tutorial      this package alone
       python demos/frameworks.py --cure                     the trainings alone, their own generator seeded too
See:   a table of calls and of what each of them sets, then whether the trainings agree.
Needs: a CPU and a minute; pip install -e ".[frameworks]" for Lightning, transformers and accelerate. What is not
       installed is shown from the published record.
"""

import contextlib
import importlib
import importlib.metadata
import importlib.util
import json
import multiprocessing
import os
import random
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from repro_tutorial.cli import choose_device, demo_parser, judge_runs, make_record, run
from repro_tutorial.determinism import one_thread
from repro_tutorial.fingerprint import fingerprint_state_dict
from repro_tutorial.lessons import find_root
from repro_tutorial.messages import InputError, Transcript
from repro_tutorial.rng_state import isolate_rng
from repro_tutorial.runs import Record, Recorder, Run, load_experiments
from repro_tutorial.seeding import derive_seed, seed_everything

STEPS, LEARNING_RATE = 20, 0.05
AT_ONCE = 2  # frameworks that are probed at a time: importing one takes a core
# What a framework may set, of the environment; taken away before each call, so that it shows who sets it.
VARIABLES = ("PYTHONHASHSEED", "CUBLAS_WORKSPACE_CONFIG", "PL_GLOBAL_SEED", "PL_SEED_WORKERS")


# The calls ------------------------------------------------------------------------------------------------


def lightning_trainer(seed: int) -> None:
    """The recipe of Lightning's documentation."""
    from lightning.pytorch import Trainer, seed_everything

    seed_everything(seed, workers=True)
    Trainer(deterministic=True, accelerator="cpu", logger=False, enable_checkpointing=False)


def called(module: str, name: str, **settings: object) -> Callable[[int], None]:
    """`name` of `module`, to be called with a seed."""
    return lambda seed: getattr(importlib.import_module(module), name)(seed, **settings)


CALLS: Mapping[str, Mapping[str, Callable[[int], None]]] = {
    "torch": {"torch.manual_seed(s)": torch.manual_seed},
    "repro_tutorial": {
        "seed_everything(s)": called("repro_tutorial", "seed_everything"),
        "seed_everything(s, deterministic=True)": called(
            "repro_tutorial", "seed_everything", deterministic=True
        ),
    },
    "lightning": {
        "seed_everything(s)": called("lightning", "seed_everything"),
        "seed_everything(s, workers=True)": called("lightning", "seed_everything", workers=True),
        "seed_everything(s, workers=True); Trainer(deterministic=True)": lightning_trainer,
    },
    "transformers": {
        "set_seed(s)": called("transformers", "set_seed"),
        "set_seed(s, deterministic=True)": called("transformers", "set_seed", deterministic=True),
        "enable_full_determinism(s)": called("transformers", "enable_full_determinism"),
    },
    "accelerate": {
        "set_seed(s)": called("accelerate.utils", "set_seed"),
        "set_seed(s, deterministic=True)": called("accelerate.utils", "set_seed", deterministic=True),
    },
}


# The probes -----------------------------------------------------------------------------------------------


class Draws(Dataset):
    """What a worker draws from the generators of its process, and from one that the dataset holds."""

    def __init__(self) -> None:
        self.held = np.random.default_rng(0)

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> list[float]:
        return [random.random(), np.random.random(), self.held.random()]


class Device:
    """Stands in for the generator of a CUDA device: keeps the seed that it is given."""

    def __init__(self) -> None:
        self.seed = int.from_bytes(os.urandom(8), "little")  # from entropy, until somebody seeds it

    def manual_seed(self, seed: int) -> None:
        """As a generator has it."""
        self.seed = seed


def cuda_seed() -> int:
    """What a CUDA device would be seeded with: the calls that PyTorch keeps until CUDA starts, made on a stand-in."""
    device = Device()
    torch.cuda.default_generators = (device,)
    torch.cuda.random.device_count = lambda: 1
    for waiting in torch.cuda._lazy_seed_tracker.get_calls():
        if waiting:
            waiting[0]()
    return device.seed


def child_hashes() -> list[str]:
    """What two new interpreters make of hash("a")."""
    command = [sys.executable, "-S", "-c", "print(hash('a'))"]
    return [
        subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
        for _ in range(2)
    ]


def prepare() -> torch.nn.Linear:
    """A fresh start, and every switch set the other way; a layer made before the call."""
    for name in VARIABLES:
        os.environ.pop(name, None)
    random.seed()
    np.random.seed()
    torch.seed()
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    return torch.nn.Linear(2, 2)


def probe(call: Callable[[int], None] | None, seed: int) -> dict[str, Any]:
    """After `call`: the next draw of every generator, and where every switch stands."""
    early = prepare()
    threads = torch.get_num_threads()
    if call is not None:
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):  # noqa: PTH123
            call(seed)
    hashes = child_hashes()
    algorithms = torch.are_deterministic_algorithms_enabled()
    found: dict[str, Any] = {
        "python": random.random(),
        "numpy": np.random.random(),
        "torch_cpu": torch.rand(()).item(),
        "torch_cuda": cuda_seed(),
        "default_rng": np.random.default_rng().random(),
        "random_random": random.Random().random(),
        "early_layer": early.weight.tolist(),
    }
    workers = list(DataLoader(Draws(), batch_size=None, num_workers=2))
    return found | {
        "worker_draws": [worker[:2] for worker in workers],
        "worker_held": workers[0][2] != workers[1][2],
        "hash_here": str(hash("a")) == hashes[0] == hashes[1],
        "hash_children": hashes[0] == hashes[1],
        "cublas": "CUBLAS_WORKSPACE_CONFIG" in os.environ,
        "cudnn_deterministic": torch.backends.cudnn.deterministic,
        "cudnn_benchmark": not torch.backends.cudnn.benchmark,
        "algorithms": algorithms,
        "fill": algorithms and torch.utils.deterministic.fill_uninitialized_memory,
        "precision": torch.get_float32_matmul_precision() == "highest",
        "threads": torch.get_num_threads() != threads,
    }


# A draw is set by a call if two processes draw the same after it.
DRAWN = (
    "python",
    "numpy",
    "torch_cpu",
    "torch_cuda",
    "default_rng",
    "random_random",
    "early_layer",
    "worker_draws",
)
SWITCHED = (
    *("worker_held", "hash_here", "hash_children", "cublas", "cudnn_deterministic", "cudnn_benchmark"),
    *("algorithms", "fill", "precision", "threads"),
)
PROBES = DRAWN + SWITCHED


def in_a_process(call: Callable[[int], None] | None, seed: int) -> dict[str, Any]:
    """What `probe` finds in a process of its own, where nothing else was called."""
    kinds = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("fork" if "fork" in kinds else "spawn")
    theirs, ours = context.Pipe()
    child = context.Process(target=lambda: ours.send(probe(call, seed)))
    child.start()
    ours.close()
    try:
        found: dict[str, Any] = theirs.recv()
    finally:
        child.join()
    return found


def probe_framework(name: str, seed: int) -> None:
    """In a process that imports one framework: print what each of its calls sets, as JSON."""
    if name != "repro_tutorial":
        importlib.import_module(name)
    table = {}
    for label, call in {"": None, **CALLS[name]}.items():
        first, second = (in_a_process(call, seed) for _ in range(2))
        table[label] = {key: first[key] == second[key] for key in DRAWN} | {
            key: bool(first[key] and second[key]) for key in SWITCHED
        }
    print(json.dumps({"version": importlib.metadata.version(name.replace("_", "-")), "table": table}))


# The table ------------------------------------------------------------------------------------------------


def measure(name: str, seed: int) -> dict[str, Any]:
    """What the calls of a framework set; a problem instead, if it is not installed or cannot be imported."""
    if importlib.util.find_spec(name) is None:
        return {"problem": {"key": "frameworks.not_installed", "values": {"name": name}}}
    command = [sys.executable, __file__, "--probe", name, "--seed", str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        problem = (done.stderr.strip().splitlines() or [str(done.returncode)])[-1]
        return {"problem": {"key": "frameworks.failed", "values": {"name": name, "problem": problem}}}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def recorded(name: str) -> dict[str, Any]:
    """What the published record says of a framework; nothing if there is no record."""
    with contextlib.suppress(InputError, OSError, KeyError):
        path = find_root() / "docs" / "assets" / "records" / "frameworks.cpu.json"
        frameworks: dict[str, Any] = load_experiments(path)["table"].results["frameworks"]
        return frameworks[name] | {"recorded": True}
    return {}


def show_table(out: Transcript, names: Sequence[str], seed: int) -> dict[str, Any]:
    """Measure the frameworks and print one column for each call, one row for each probe."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = dict(zip(names, pool.map(lambda name: measure(name, seed), names), strict=True))
    columns: list[Mapping[str, bool]] = []
    for name, of in found.items():
        if "problem" in of:
            out.say("frameworks.problem", problem=of["problem"])
            found[name] = of = recorded(name)
        if not of:
            continue
        key = "frameworks.recorded" if of.get("recorded") else "frameworks.measured"
        out.say(key, name=name, version=of["version"])
        for label, row in of["table"].items():
            if label:
                out.print(f"  {'ABCDEFGHIJKLMNOP'[len(columns)]}  {label}")
                columns.append(row)
    out.print()
    out.print(" ".join("ABCDEFGHIJKLMNOP"[: len(columns)]))
    for key in PROBES:
        marks = " ".join("x" if row[key] else "." for row in columns)
        out.say("frameworks.row", marks=marks, probe={"key": f"frameworks.probe_{key}"})
    none = [key for key in PROBES if not any(row[key] for row in columns)]
    out.print()
    out.say("frameworks.none_of_them")
    for key in none:
        out.say("frameworks.none_row", probe={"key": f"frameworks.probe_{key}"})
    out.print()
    return {"frameworks": found, "none": none, "calls": len(columns), "probes": len(PROBES)}


# Two trainings --------------------------------------------------------------------------------------------


def train(name: str, seed: int, cure: bool) -> Run:
    """A fit of noisy points; the noise comes from a generator that the program makes for itself."""
    seed_everything(seed)
    noise = np.random.default_rng(derive_seed(seed, 1) if cure else None)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    points = torch.randn(32, 4)
    recorder = Recorder(name, seed=seed if cure else None)
    for _ in range(STEPS):
        blurred = points + torch.from_numpy(noise.normal(0, 0.1, (32, 4))).float()
        loss = (model(blurred) - points.sum(1, keepdim=True)).square().mean()
        recorder.log(loss=loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return recorder.finish(weights=fingerprint_state_dict(model.state_dict()))


def main(argv: Sequence[str] | None = None) -> Record | None:
    """Probe the calls, train twice, say whether the trainings agree, and return all as a record."""
    parser = demo_parser("frameworks", argv, runs=2, seed=3, device="cpu")
    parser.option("--only", choices=CALLS)
    parser.option("--cure", action="store_true", about="cli.help_cure_framework")
    parser.option("--probe", choices=CALLS)
    options = parser.parse_args(argv)
    if options.probe:
        probe_framework(options.probe, options.seed)
        return None
    choose_device(options.device)
    out = Transcript(options.lang)
    results: dict[str, Any] = {}
    if not options.cure:
        results |= show_table(out, [options.only] if options.only else list(CALLS), options.seed)
    out.say("frameworks.cured" if options.cure else "frameworks.uncured", seed=options.seed)
    with isolate_rng(), one_thread():  # a caller's generators and threads stay as they are
        runs = [train(f"run {number}", options.seed, options.cure) for number in range(1, options.runs + 1)]
    results |= judge_runs(out, runs)
    if options.plot:
        from repro_tutorial.plots import plot_runs, save_figure

        save_figure(plot_runs(runs, lang=options.lang), options.plot)
    return make_record("frameworks", argv, options, runs=runs, results=results, out=out)


if __name__ == "__main__":
    sys.exit(run(main))

"""Workers, samplers and an innocent validation loop all draw from generators you did not think of.

Run:   python demos/data_loading.py                   two trainings from one seed; the second also validates: they part
       python demos/data_loading.py --own             the same, each loader with a generator of its own: equal
       python demos/data_loading.py --show workers    what the number of workers and their lifetime change
       python demos/data_loading.py --show held       a generator that the dataset holds repeats in every worker
       python demos/data_loading.py --show order      sets of strings and lists of files as the order of data
       python demos/data_loading.py --show iterable   an iterable dataset gives every item once per worker
See:   the losses of both trainings, then which draws moved the shared generator, and who drew.
Needs: a CPU and some seconds.
"""

import os
import random
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, get_worker_info

from repro_tutorial.cli import choose_device, demo_parser, judge_runs, make_record, run
from repro_tutorial.determinism import one_thread
from repro_tutorial.divergence import distinct_outcomes
from repro_tutorial.fingerprint import fingerprint_state_dict, fingerprint_tensor
from repro_tutorial.messages import Transcript
from repro_tutorial.rng_state import isolate_rng
from repro_tutorial.runs import Record, Recorder, Run
from repro_tutorial.seeding import derive_seed, make_generator, seed_everything, seed_worker

EPOCHS, BATCH, TRAINED, VALIDATED = 3, 8, 32, 16  # four batches an epoch
FEATURES, HIDDEN = 4, 16
LEARNING_RATE = 0.1
WORKERS = (0, 1, 2, 4)
ITEMS = 16  # of the datasets that are loaded by workers
SIDE = 8  # pixels, of the pictures that are shifted
PROCESSES = 4  # fresh ones, that print the order of a set
SLOW = 0.3  # seconds that the first item takes where batches may arrive in any order
WORDS = ("cat", "dog", "bird", "fish", "frog", "deer", "horse", "ship")

Draws = list[dict[str, Any]]


# A validation loop ----------------------------------------------------------------------------------------


class Tape:
    """Who moved PyTorch's default generator, in order: looked up in its state, not written down by hand."""

    def __init__(self) -> None:
        self.draws: Draws = []

    @contextmanager
    def by(self, who: str) -> Iterator[None]:
        """Keep that the block drew, if it did, and from which state on."""
        before = torch.get_rng_state()
        yield
        if not torch.equal(before, torch.get_rng_state()):
            self.draws.append({"by": who, "from": fingerprint_tensor(before)})


def batches(loader: DataLoader, tape: Tape, whose: str) -> Iterator[list[torch.Tensor]]:
    """The batches of a loader; its draws go on the tape."""
    with tape.by(f"{whose}_seed"):
        iterator = iter(loader)  # the seed of the workers, also of none
    with tape.by(f"{whose}_order"):
        first = next(iterator)  # the seed of the shuffle
    yield first
    yield from iterator


def train(name: str, seed: int, device: str, *, validate: bool, own: bool) -> tuple[Run, Draws]:
    """A training of three epochs, with or without a look at the validation loss after each."""
    draw = make_generator(0)  # the points are data: the same for every seed
    points = torch.randn(TRAINED + VALIDATED, FEATURES, generator=draw).to(device)
    targets = points.square().mean(1, keepdim=True)
    parts = (
        TensorDataset(points[:TRAINED], targets[:TRAINED]),
        TensorDataset(points[TRAINED:], targets[TRAINED:]),
    )

    seed_everything(seed)
    tape = Tape()
    with tape.by("weights"):
        model = torch.nn.Sequential(
            *(torch.nn.Linear(FEATURES, HIDDEN), torch.nn.ReLU(), torch.nn.Dropout(0.2)),
            torch.nn.Linear(HIDDEN, 1),
        ).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    training, validation = loaders(parts, seed, own)
    recorder = Recorder(name, seed=seed)
    for _ in range(EPOCHS):
        model.train()
        for point, target in batches(training, tape, "training"):
            with tape.by("dropout"):
                loss = (model(point) - target).square().mean()
            recorder.log(loss=loss.item())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if validate:
            look_at(model, batches(validation, tape, "validation"))
    return recorder.finish(weights=fingerprint_state_dict(model.state_dict())), tape.draws


def loaders(parts: Sequence[Dataset], seed: int, own: bool) -> list[DataLoader]:
    """A loader that shuffles and one that does not; with `own`, each draws from a generator of its own."""
    return [
        DataLoader(
            part,
            batch_size=BATCH,
            shuffle=number == 0,
            generator=make_generator(derive_seed(seed, number)) if own else None,
        )
        for number, part in enumerate(parts)
    ]


def look_at(model: torch.nn.Module, of: Iterator[list[torch.Tensor]]) -> float:
    """The validation loss: no dropout, no gradient, no change to the model."""
    model.eval()
    with torch.no_grad():
        losses = [(model(point) - target).square().mean().item() for point, target in of]
    return sum(losses) / len(losses)


def compare_draws(first: Draws, second: Draws) -> Draws:
    """The second tape, and whether each draw starts where the same draw did on the first; None if it has no twin."""
    left: dict[str, list[str]] = {}
    for one in first:
        left.setdefault(one["by"], []).append(one["from"])
    compared = []
    for one in second:
        twins = left.get(one["by"])
        compared.append({"by": one["by"], "same": one["from"] == twins.pop(0) if twins else None})
    return compared


def show_validation(
    out: Transcript, seed: int, runs: int, device: str, own: bool
) -> tuple[list[Run], dict[str, Any]]:
    """The same seed without and with a validation loop: with one in every second run."""
    out.say("data_loading.own" if own else "data_loading.shared", seed=seed)
    trained = [
        train(f"run {number}", seed, device, validate=number % 2 == 0, own=own)
        for number in range(1, runs + 1)
    ]
    made, tapes = [one for one, _ in trained], [tape for _, tape in trained[:2]]
    out.say("data_loading.header")
    for step in range(0, EPOCHS * TRAINED // BATCH, 2):
        losses = "".join(f"{one.metrics['loss'][step]:<22}" for one in made[:2])
        out.print(f"{step + 1:>4}  {losses}".rstrip())
    out.print()
    results = judge_runs(out, made)
    labels = ("data_loading.tape_without", "data_loading.tape_with")
    results["draws"] = [
        {"label": {"key": label}, "cells": compare_draws(tapes[0], tape)}
        for label, tape in zip(labels, tapes, strict=False)
    ]
    last = results["draws"][-1]["cells"]
    shifted = sum(cell["same"] is False for cell in last)
    results["tape"] = {"draws": len(tapes[0]), "with": len(last), "shifted": shifted}
    out.say("data_loading.tape", **results["tape"])
    out.say("data_loading.tape_shifted", **results["tape"])
    return made, results


# Workers --------------------------------------------------------------------------------------------------


class Noisy(Dataset):
    """Items that an augmentation changes, drawing from PyTorch's default generator, as most do."""

    def __len__(self) -> int:
        return ITEMS

    def __getitem__(self, index: int) -> torch.Tensor:
        return index + torch.rand(())


class Uneven(Dataset):
    """Items that take their time: the first one longer than all others together."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        time.sleep(SLOW if index == 0 else 0)
        return index


def epochs(workers: int, *, persistent: bool = False) -> list[list[float]]:
    """What a loader delivers in two epochs."""
    keep = persistent and workers > 0
    loader = DataLoader(Noisy(), batch_size=4, num_workers=workers, persistent_workers=keep)
    return [[value for batch in loader for value in batch.tolist()] for _ in range(2)]


def show_workers(out: Transcript, seed: int) -> tuple[list[Run], dict[str, Any]]:
    """The number of workers, how long they live, and the order in which they deliver."""
    out.say("data_loading.workers", seed=seed)
    runs, rows = [], {}
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "This DataLoader will create"
        )  # more workers than cores: slow, not wrong
        settings = [(workers, False) for workers in WORKERS] + [(2, True)]
        for workers, persistent in settings:
            seed_everything(seed)
            delivered = epochs(workers, persistent=persistent)
            seed_everything(seed)
            again = epochs(workers, persistent=persistent)
            name = f"workers {workers}{' persistent' if persistent else ''}"
            recorder = Recorder(name, seed=seed)
            for value in delivered[0] + delivered[1]:
                recorder.log(value=value)
            runs.append(recorder.finish())
            prints = [fingerprint_tensor(torch.tensor(epoch))[:8] for epoch in delivered]
            rows[name] = {"epochs": prints, "repeats": delivered == again}
            lives = {"key": f"data_loading.life_{'kept' if persistent else 'fresh' if workers else 'none'}"}
            repeats = {"key": "demo.yes" if delivered == again else "demo.no"}
            out.say("data_loading.worker_row", workers=workers, lives=lives, epochs=prints, repeats=repeats)
        orders = {
            name: [
                int(item) for item in DataLoader(Uneven(), batch_size=None, num_workers=2, in_order=in_order)
            ]
            for name, in_order in (("kept", True), ("free", False))
        }
    out.print()
    out.say("data_loading.in_order", **orders)
    results = {"different": distinct_outcomes(runs), "workers": rows, "orders": orders}
    results["counts"] = len({tuple(rows[f"workers {workers}"]["epochs"]) for workers in WORKERS})
    out.print()
    out.say("data_loading.workers_verdict", counts=results["counts"], tried=len(WORKERS))
    return runs, results


# Generators that a dataset holds --------------------------------------------------------------------------

KINDS: dict[str, Callable[[], Any]] = {
    "default_rng": lambda: np.random.default_rng(0),
    "Random": lambda: random.Random(0),
    "torch.Generator": lambda: torch.Generator().manual_seed(0),
    "np.random": lambda: (
        None
    ),  # no generator of its own: NumPy's legacy one, which PyTorch seeds in each worker
}


def draw_shift(generator: Any) -> int:
    """A number below `SIDE` from a generator of any kind."""
    if isinstance(generator, torch.Generator):
        return int(torch.randint(SIDE, (), generator=generator))
    if isinstance(generator, random.Random):
        return generator.randrange(SIDE)
    return int(np.random.randint(SIDE) if generator is None else generator.integers(SIDE))


class Shifted(Dataset):
    """Pictures of a bar, shifted by a number from a generator that the dataset holds."""

    def __init__(self, kind: str) -> None:
        self.generator = KINDS[kind]()

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> list[list[int]]:
        """Four bars, so that pictures seldom agree by chance; `index` does not count, only who draws."""
        shifts = [draw_shift(self.generator) for _ in range(4)]
        return [
            [int((x - shift) % SIDE < 3) for x in range(SIDE)] for shift in shifts for _ in range(SIDE // 4)
        ]


def pictures(kind: str, init: Callable[[int], None] | None) -> list[list[int]]:
    """The first picture of two workers in two epochs, pixel by pixel."""
    loader = DataLoader(Shifted(kind), batch_size=None, num_workers=2, worker_init_fn=init)
    return [[pixel for row in picture for pixel in row] for _ in range(2) for picture in loader]


def show_held(out: Transcript, seed: int) -> tuple[list[Run], dict[str, Any]]:
    """Copies of one generator in every worker and every epoch, and what seeds each of them."""
    out.say("data_loading.held", seed=seed)
    out.say("data_loading.held_header")
    runs, rows, shown = [], {}, []
    for kind in KINDS:
        counts = {}
        for name, init in (("plain", None), ("cured", seed_worker)):
            seed_everything(seed)
            images = pictures(kind, init)
            seed_everything(seed)
            counts[name] = len(set(map(tuple, images)))
            counts[f"{name}_repeats"] = images == pictures(kind, init)
            recorder = Recorder(f"{kind} {name}", seed=seed)
            for image in images:
                recorder.log(dark=float(sum(pixel << place for place, pixel in enumerate(image[::2]))))
            runs.append(recorder.finish())
            if kind == "default_rng":
                captions = [
                    {"key": "data_loading.caption", "values": {"worker": worker, "epoch": epoch}}
                    for epoch in (1, 2)
                    for worker in (0, 1)
                ]
                label = {"key": f"data_loading.pictures_{name}"}
                shown.append({"label": label, "captions": captions, "images": images})
        rows[kind] = counts
        out.say("data_loading.held_row", kind=kind, pictures=len(images), **counts)
    results = {"different": distinct_outcomes(runs), "held": rows, "pictures": shown}
    repeats = all(row["plain_repeats"] and row["cured_repeats"] for row in rows.values())
    out.print()
    out.say("data_loading.held_verdict" if repeats else "data_loading.held_unstable")
    return runs, results


# Orders that no seed reaches ------------------------------------------------------------------------------

PRINT_SET = f"print(*{{{', '.join(map(repr, WORDS))}}})"
WAYS: dict[str, tuple[str, str | None]] = {  # the program, and PYTHONHASHSEED outside it
    "unset": (PRINT_SET, None),
    "inside": (f"import os; os.environ['PYTHONHASHSEED'] = '0'; {PRINT_SET}", None),
    "exported": (PRINT_SET, "0"),
    "sorted": (PRINT_SET.replace("*{", "*sorted({").replace("})", "}))"), None),
}


def set_orders(code: str, exported: str | None) -> list[str]:
    """The order that fresh processes print."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
    if exported is not None:
        environment["PYTHONHASHSEED"] = exported
    command = [sys.executable, "-S", "-c", code]
    return [
        subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
        for _ in range(PROCESSES)
    ]


def listings() -> list[list[str]]:
    """What the file system lists of two folders with the same files, made in opposite orders."""
    names = [f"{word}.txt" for word in WORDS]
    found = []
    with tempfile.TemporaryDirectory() as parent:
        for number, order in enumerate((names, names[::-1])):
            folder = Path(parent, str(number))
            folder.mkdir()
            for name in order:
                (folder / name).touch()
            found.append([file.name for file in folder.iterdir()])
    return found


def show_order(out: Transcript, seed: int) -> tuple[list[Run], dict[str, Any]]:
    """Sets and listings as the order of data."""
    del seed  # no seed reaches them
    out.say("data_loading.order", processes=PROCESSES)
    results: dict[str, Any] = {"processes": PROCESSES, "sets": {}}
    runs = []
    for way, (code, exported) in WAYS.items():
        orders = set_orders(code, exported)
        results["sets"][way] = len(set(orders))
        out.say(f"data_loading.set_{way}", orders=len(set(orders)))
        if way == "sorted":
            recorder = Recorder(way, seed=0)
            for word in orders[0].split():
                recorder.log(place=float(WORDS.index(word)))
            runs.append(recorder.finish())
    first, second = listings()
    results["listings"] = {"alike": first == second, "sorted": first == sorted(first)}
    results["listings"]["sorted_alike"] = sorted(first) == sorted(second)
    out.print()
    out.say("data_loading.listing_alike" if first == second else "data_loading.listing_differs")
    out.say("data_loading.listing_in_order" if first == sorted(first) else "data_loading.listing_unordered")
    results["different"] = distinct_outcomes(runs)
    return runs, results


class Numbers(IterableDataset):
    """The numbers from 0 on. Each worker has a copy of it, and so all of the numbers, unless it takes its share."""

    def __init__(self, shared: bool) -> None:
        self.shared = shared

    def __iter__(self) -> Iterator[int]:
        worker = get_worker_info()
        start, step = (worker.id, worker.num_workers) if self.shared and worker else (0, 1)
        return iter(range(start, ITEMS, step))


def show_iterable(out: Transcript, seed: int) -> tuple[list[Run], dict[str, Any]]:
    """How often each item comes."""
    out.say("data_loading.iterable", items=ITEMS)
    runs, counts = [], {}
    for name, shared in (("copied", False), ("shared", True)):
        items = [int(item) for item in DataLoader(Numbers(shared), batch_size=None, num_workers=2)]
        counts[name] = len(items)
        recorder = Recorder(name, seed=seed)
        for item in items:
            recorder.log(item=float(item))
        runs.append(recorder.finish())
        out.say(f"data_loading.iterable_{name}", items=ITEMS, given=len(items), distinct=len(set(items)))
    return runs, {"different": distinct_outcomes(runs), "given": counts, "items": ITEMS}


SHOWS = {"workers": show_workers, "held": show_held, "order": show_order, "iterable": show_iterable}


def draw_figure(runs: Sequence[Run], results: dict[str, Any], lang: str, path: Path) -> None:
    """The figure of what was shown."""
    from repro_tutorial.plots import plot_draws, plot_pictures, plot_runs, save_figure

    if "draws" in results:
        figure = plot_draws(results["draws"], lang=lang)
    elif "pictures" in results:
        figure = plot_pictures(results["pictures"], lang=lang)
    else:
        figure = plot_runs(runs[:1], next(iter(runs[0].metrics)), lang=lang)
    save_figure(figure, path)


def main(argv: Sequence[str] | None = None) -> Record:
    """Show what was asked for, and return it as a record."""
    parser = demo_parser("data_loading", argv, runs=2, seed=3, device="cpu")
    parser.option(
        "--show", choices=("validation", *SHOWS), default="validation", about="cli.help_show_loading"
    )
    parser.option("--own", action="store_true")
    options = parser.parse_args(argv)
    device = choose_device(options.device)
    out = Transcript(options.lang)

    with isolate_rng(), one_thread():  # a caller's generators and threads stay as they are
        if options.show in SHOWS:
            runs, results = SHOWS[options.show](out, options.seed)
        else:
            runs, results = show_validation(out, options.seed, options.runs, device, options.own)
    if options.plot:
        draw_figure(runs, results, options.lang, options.plot)
    return make_record("data_loading", argv, options, runs=runs, results=results, out=out)


if __name__ == "__main__":
    sys.exit(run(main))

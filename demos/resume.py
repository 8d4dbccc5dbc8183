"""A checkpoint without generator state is not a checkpoint.

Run:   python demos/resume.py                   train at once; then save halfway and go on in a new process
       python demos/resume.py --without all     the same, but only the weights were saved
       python demos/resume.py --save half.pt    by hand: the first half, and in another process
       python demos/resume.py --from half.pt    the second
See:   two equal runs, then what each part of the state is good for: leave it out, and see the runs part.
Needs: a CPU and a few seconds.
"""

import argparse
import copy
import random
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from repro_tutorial.checkpoint import (
    ResumableLoader,
    load_training_state,
    save_training_state,
)
from repro_tutorial.cli import (
    choose_device,
    demo_parser,
    judge_runs,
    make_record,
    new_file,
    progress,
    run,
    worker_count,
)
from repro_tutorial.determinism import one_thread
from repro_tutorial.divergence import compare, distinct_outcomes
from repro_tutorial.fingerprint import fingerprint_state_dict, fingerprint_tensor
from repro_tutorial.messages import InputError, Transcript, text
from repro_tutorial.rng_state import get_rng_state, isolate_rng, set_rng_state
from repro_tutorial.runs import Record, Recorder, Run
from repro_tutorial.seeding import derive_seed, make_generator, seed_everything

SEED = 3
STEPS, STOP = 60, 30  # all steps; those before the process ends
SAMPLES, BATCH, FEATURES = 192, 16, 16  # 12 steps an epoch, so that the stop lies in the middle of the third
DROPOUT, SHAKE = 0.2, 0.1
LEARNING_RATE, MOMENTUM, LOWER_EVERY = 0.02, 0.9, 20
SHOWN = (1, 29, 30, 31, 32, 60)  # the steps whose losses are printed

PARTS = ("optimizer", "scheduler")
GENERATORS = {"torch_rng": ("torch_cpu", "torch_cuda"), "numpy_rng": ("numpy",), "python_rng": ("python",)}
WAYS = ("all", *PARTS, *GENERATORS, "own_rng", "position", "order", "reseed", "workers")


class Examples(Dataset[Any]):
    """Rows of numbers. Python's generator turns each round or not, NumPy's shakes it: augmentation."""

    def __init__(self) -> None:
        self.inputs = torch.randn(SAMPLES, FEATURES, generator=make_generator(0))
        self.targets = self.inputs.sin().mean(1, keepdim=True)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, place: int) -> tuple[int, torch.Tensor, torch.Tensor]:
        inputs = self.inputs[place].flip(0) if random.random() < 0.5 else self.inputs[place]
        shake = np.random.standard_normal(FEATURES).astype(np.float32)
        return place, inputs + SHAKE * torch.from_numpy(shake), self.targets[place]


class Training:
    """All that a training changes, made from the seed, as each start of the program makes it."""

    def __init__(self, options: argparse.Namespace, device: str, workers: int) -> None:
        seed_everything(options.seed)
        layers = torch.nn.Linear(FEATURES, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)
        self.model = torch.nn.Sequential(torch.nn.Dropout(DROPOUT), *layers).to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, LOWER_EVERY, gamma=0.5)
        self.noise = np.random.default_rng(derive_seed(options.seed, 0))
        self.order = make_generator(derive_seed(options.seed, 1))
        self.loader = make_loader(options.loader, self.order, workers)
        self.parts = {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler}
        self.parts |= {"loader": self.loader, "noise": self.noise}
        if options.loader == "stateful":
            self.parts["order"] = self.order
        self.step, self.device = 0, device
        self.losses: list[float] = []
        self.masks: list[str] = []  # of dropout, a fingerprint for each step
        self.samples: list[int] = []  # in the order of training
        self.model[0].register_forward_hook(
            lambda layer, inputs, output: self.masks.append(fingerprint_tensor(output == 0))
        )

    def train(self, until: int) -> "Training":
        """Train up to the step `until`, in the middle of an epoch or not."""
        while self.step < until:
            for places, inputs, targets in self.loader:
                noise = torch.from_numpy(self.noise.standard_normal(targets.shape).astype(np.float32))
                self.optimizer.zero_grad()
                output = self.model(inputs.to(self.device))
                loss = torch.nn.functional.mse_loss(output, (targets + SHAKE * noise).to(self.device))
                loss.backward()
                self.optimizer.step()
                self.scheduler.step()
                self.losses.append(loss.item())
                self.samples += places.tolist()
                self.step += 1
                if self.step == until:
                    break
        return self


def make_loader(kind: str, generator: torch.Generator, workers: int) -> Any:
    """The examples in batches, shuffled by a generator of their own, in a loader that knows its position."""
    settings: dict[str, Any] = {"shuffle": True, "generator": generator, "num_workers": workers}
    if kind == "resumable":
        return ResumableLoader(DataLoader(Examples(), BATCH, **settings))
    try:
        from torchdata.stateful_dataloader import StatefulDataLoader
    except ImportError as error:
        raise InputError("resume.no_torchdata") from error
    with warnings.catch_warnings(action="ignore"):  # it calls what PyTorch calls deprecated
        return StatefulDataLoader(Examples(), BATCH, **settings)


def save_half(path: Path, options: argparse.Namespace, device: str) -> Training:
    """Train up to the stop, and save."""
    training = Training(options, device, options.workers).train(STOP)
    save_training_state(path, step=training.step, **training.parts)
    return training


def resume(path: Path, way: str, options: argparse.Namespace, device: str) -> Training:
    """Go on from `path`; what `way` names is left as it is in a new process."""
    workers = options.workers if way != "workers" else max(options.workers - 1, 0) or 2
    training = Training(options, device, workers)
    new = {name: copy.deepcopy(training.parts[name].state_dict()) for name in PARTS}
    generators = get_rng_state(noise=training.noise, loader=training.order)

    training.step = load_training_state(path, **training.parts)

    if way == "all":  # the usual checkpoint
        weights, training = training.model.state_dict(), Training(options, device, workers)
        training.model.load_state_dict(weights)
        training.step = STOP
    elif way in PARTS:
        training.parts[way].load_state_dict(new[way])
    elif way == "position":
        start = {"given": 0, "begun": False, "start": get_rng_state(loader=training.order)}
        state = {} if options.loader == "stateful" else training.loader.state_dict() | start
        training.loader.load_state_dict(state)
    elif way == "reseed":
        seed_everything(options.seed)
    else:
        forget_generators(training, way, generators, options.loader)
    return training


def forget_generators(training: Training, way: str, new: Any, loader: str) -> None:
    """Put the generators that `way` names to where they stand in a new process."""
    state: Any = get_rng_state(noise=training.noise, loader=training.order)
    state |= {name: new[name] for name in GENERATORS.get(way, ())}
    forgotten = {"own_rng": "noise", "order": "loader"}.get(way)
    if forgotten:
        state["private"][forgotten] = new["private"][forgotten]
    set_rng_state(state, noise=training.noise, loader=training.order)
    if way == "order" and loader == "resumable":  # the position is known, the order in which it counts is not
        start = get_rng_state(loader=training.order)
        training.loader.load_state_dict(training.loader.state_dict() | {"start": start})


def second_half(options: argparse.Namespace, device: str) -> tuple[list[Run], dict[str, Any]]:
    """What the new process does: go on from the file that ``--from`` names, in one way or in each."""
    # StatefulDataLoader raises an error where the number of workers is another.
    each = ("nothing", *(WAYS if options.loader == "resumable" else WAYS[:-1]))
    ways = each if options.without == "each" else (options.without,)
    runs, results = [], {}
    for way in progress(ways, "resume.progress", options.lang):
        training = resume(options.start, way, options, device)
        recorder = Recorder(way, seed=options.seed)
        for step, loss in enumerate(training.train(STEPS).losses, start=STOP + 1):
            recorder.log(step=step, loss=loss)
        runs.append(recorder.finish(weights=fingerprint_state_dict(training.model.state_dict())))
        results[way] = {"masks": training.masks, "samples": training.samples}
    return runs, results


def whole(name: str, first: Training, second: Run) -> Run:
    """The run of two halves."""
    recorder = Recorder(name, seed=second.seed)
    for loss in [*first.losses, *second.metrics["loss"]]:
        recorder.log(loss=loss)
    return recorder.finish(**second.fingerprints)


def broken_run(options: argparse.Namespace, device: str) -> tuple[Training, Record]:
    """Train the first half here and the second in a new process, which records what it did."""
    with tempfile.TemporaryDirectory() as folder:
        state, record = Path(folder, "half.pt"), Path(folder, "second.json")
        first = save_half(state, options, device)
        arguments = ["--from", state, "--json", record, "--without", options.without, "--device", device]
        arguments += ["--seed", options.seed, "--workers", options.workers, "--loader", options.loader]
        command = [sys.executable, __file__, *map(str, arguments), "--lang", options.lang]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            problem = (done.stderr.strip().splitlines() or [""])[-1]
            start = text("cli.error", options.lang, prog=Path(__file__).name, error="")
            raise InputError("resume.no_second_half", problem=problem.removeprefix(start))
        return first, Record.load(record)


def explain(out: Transcript, unbroken: Run, first: Training, record: Record) -> dict[str, Any]:
    """Say for each way what is lost by it, at which step it shows, and how far it leads; the same as numbers."""
    out.print()
    out.say("resume.head")
    ways, seen = {}, record.results["ways"]
    for half in record.runs:
        gap = compare(unbroken, whole(half.name, first, half))
        facts = {"first_step": gap.first_step, "max_abs": gap.max_abs, "last": gap.gap[-1]}
        ways[half.name] = facts
        key = "resume.row_equal" if gap.bitwise_equal else "resume.row"
        out.say(key, **facts, label={"key": f"resume.way_{half.name}"})
    out.print()
    masks = sum(a == b for a, b in zip(first.masks, seen["torch_rng"]["masks"], strict=True))
    results: dict[str, Any] = {"ways": ways, "masks": {"same": masks, "steps": STOP}}
    out.say("resume.masks", **results["masks"])
    out.say("resume.epoch_head", samples=SAMPLES)
    begun = STOP * BATCH // SAMPLES * SAMPLES  # samples before the epoch that is broken off
    for way in ("nothing", "position", "order"):
        epoch = [*first.samples, *seen[way]["samples"]][begun : begun + SAMPLES]
        twice = len(epoch) - len(set(epoch))
        results[f"epoch_{way}"] = {"twice": twice, "never": SAMPLES - len(set(epoch)), "samples": SAMPLES}
        out.say("resume.epoch", **results[f"epoch_{way}"], label={"key": f"resume.way_{way}"})
    parted = [way for way in ways if ways[way]["first_step"] and way != "nothing"]
    whole_state = "resume.verdict" if ways["nothing"]["first_step"] is None else "resume.verdict_bad"
    out.say(whole_state, parted=len(parted), ways=len(ways) - 1)
    return results | {"parted": len(parted)}


def show(out: Transcript, runs: Sequence[Run]) -> None:
    """Some losses of the first two runs side by side."""
    out.print()
    out.say("resume.losses" if len(runs) > 1 else "resume.losses_of_one")
    for step in SHOWN:
        losses = "".join(f"{of.metrics['loss'][step - 1]:<14.7f}" for of in runs[:2])
        out.print(f"{step:<14}{losses}".rstrip())
    out.print()


def train_all(options: argparse.Namespace, device: str, out: Transcript) -> tuple[list[Run], dict[str, Any]]:
    """Run 1 without a break, each further one with: said, judged, and explained."""
    out.say("resume.run_whole", number=1, runs=options.runs, seed=options.seed, steps=STEPS)
    training = Training(options, device, options.workers).train(STEPS)
    recorder = Recorder("run 1", seed=options.seed)
    for loss in training.losses:
        recorder.log(loss=loss)
    runs = [recorder.finish(weights=fingerprint_state_dict(training.model.state_dict()))]
    broken = []
    for number in progress(range(2, options.runs + 1), "resume.progress", options.lang):
        way = "nothing" if options.without == "each" else options.without
        told = {"number": number, "runs": options.runs, "seed": options.seed, "stop": STOP}
        out.say("resume.run_broken", **told, label={"key": f"resume.way_{way}"})
        broken.append(broken_run(options, device))
        runs.append(whole(f"run {number}", broken[-1][0], broken[-1][1].runs[0]))
    show(out, runs)
    results = judge_runs(out, runs)
    if broken and options.without == "each":
        results |= explain(out, runs[0], *broken[0])
    return runs, results


def chosen(options: argparse.Namespace, device: str, out: Transcript) -> tuple[list[Run], dict[str, Any]]:
    """What the options ask for: the first half alone, the second alone, or all."""
    if options.save:
        training = save_half(options.save, options, device)
        weights = fingerprint_state_dict(training.model.state_dict())
        out.say("resume.saved", file=options.save.name, step=training.step, weights=weights)
        return [], {"different": 0}
    if options.start:
        runs, ways = second_half(options, device)
        for half in runs:
            label = {"key": f"resume.way_{half.name}"}
            out.say("resume.half", loss=half.metrics["loss"][-1], label=label, **half.fingerprints)
        return runs, {"different": distinct_outcomes(runs), "ways": ways}
    return train_all(options, device, out)


def main(argv: Sequence[str] | None = None) -> Record:
    """Train at once and with a break, judge the runs, explain, and return all as a record."""
    parser = demo_parser("resume", argv, runs=2, seed=SEED)
    parser.option("--without", choices=("each", "nothing", *WAYS), default="each")
    parser.option("--workers", type=worker_count, metavar="N", default=0, about="cli.help_loader_workers")
    parser.option("--loader", choices=("resumable", "stateful"), default="resumable")
    parser.option("--save", type=new_file, metavar="FILE")
    parser.option("--from", type=Path, metavar="FILE", dest="start")
    options = parser.parse_args(argv)
    device = choose_device(options.device)
    out = Transcript(options.lang)
    with isolate_rng(), one_thread():  # a caller's generators and threads stay as they are
        runs, results = chosen(options, device, out)
    if options.plot:
        from repro_tutorial.plots import plot_runs, save_figure

        save_figure(plot_runs(runs, lang=options.lang), options.plot)
    return make_record("resume", argv, options, runs=runs, results=results, out=out)


if __name__ == "__main__":
    sys.exit(run(main))

"""The order of additions changes the sum: threads, batch size, vector width, precision.

Run:   python demos/float_order.py --seed 3                two trainings that add the same numbers in two orders
       python demos/float_order.py --seed 3 --order kept   the same order in both: equal on every bit
       python demos/float_order.py --seed 3 --calm         a small learning rate, at which the gap does not grow
       python demos/float_order.py --seed 3 --processes    fresh processes with other instruction sets, too
See:   sums of the same numbers, a row alone and in a batch, and how one last bit becomes a visible gap.
Needs: a CPU and some seconds; with --processes about twice as many.
"""

import json
import math
import operator
import os
import platform
import random
import re
import secrets
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial, reduce
from pathlib import Path
from typing import Any

import numpy as np
import torch

from repro_tutorial.cli import choose_device, demo_parser, make_record, progress, run
from repro_tutorial.determinism import one_thread
from repro_tutorial.divergence import compare, distinct_outcomes, ulp_distance
from repro_tutorial.fingerprint import fingerprint_state_dict
from repro_tutorial.messages import Transcript
from repro_tutorial.rng_state import isolate_rng
from repro_tutorial.runs import Record, Recorder, Run
from repro_tutorial.seeding import make_generator

TERMS = (1e-10, 1e-5, 1e-2, 1)  # each of them and its negative; the last is an integer, which matters
SHUFFLES = 10_000
SHUFFLE_SEED = 42  # the one with which 102 different sums were published
MANY = 1_000_000  # numbers between -0.5 and 0.5
THREADS = {"float_order.many_one": 1, "float_order.many_two": 2, "float_order.many_three": 3}
PRECISIONS = {"float": torch.float32, "double": torch.float64, "bfloat": torch.bfloat16}
BATCH, WIDTH = 64, 512  # rows of a batch, and numbers in a row
POINTS, HIDDEN, STEPS, MOMENTUM = 256, 32, 400, 0.9  # of the training
RATE, CALM_RATE = 0.1, 0.003  # the first so large that the loss jumps about and small differences grow
OTHER_SEEDS = 3  # for the noise of seeds
SHOWN_STEPS = (1, 10, 50, 100, 150, 200, 250, 300, 350, 400)
EARLY = 10  # a step at which the losses of two runs are compared with a tolerance


@dataclass(frozen=True)
class Setting:
    """How a training is computed, which changes nothing in what is computed."""

    key: str = "float_order.as_it_is"
    order: Sequence[int] = range(POINTS)  # of the points, which are one batch
    parts: int = 1  # the batch goes through the network in so many parts, whose gradients are added
    fused: bool = False  # the optimizer's update in one kernel
    dtype: torch.dtype = torch.float32
    environment: Mapping[str, str] = field(default_factory=dict)  # read once, when the process starts


ATEN, MKL = "ATEN_CPU_CAPABILITY", "MKL_CBWR"  # the instruction sets of PyTorch's own kernels, and of MKL
SETTINGS = (
    Setting(),
    Setting("float_order.reversed", order=range(POINTS)[::-1]),
    Setting("float_order.halves", parts=2),
    Setting("float_order.fused", fused=True),
    Setting("float_order.double", dtype=torch.float64),
)
ELSEWHERE = (
    Setting("float_order.aten_default", environment={ATEN: "default"}),
    Setting("float_order.mkl_compatible", environment={MKL: "COMPATIBLE"}),
    Setting("float_order.mkl_vector", environment={MKL: "AVX2"}),
    Setting("float_order.aten_and_mkl", environment={ATEN: "default", MKL: "COMPATIBLE"}),
)


def sum_since_3_12(numbers: Iterable[float]) -> float:
    """What `sum` does since Python 3.12: it keeps the rounding errors of floats, not those of integers."""
    total, error = 0, 0.0
    for number in numbers:
        after = total + number
        if isinstance(total, float) and isinstance(number, float):
            larger, smaller = (total, number) if abs(total) >= abs(number) else (number, total)
            error += (larger - after) + smaller
        total = after
    return total + error


def different_sums() -> dict[str, int]:
    """How many different sums the same eight numbers have, by the way of adding them."""
    numbers = [*TERMS, *(-term for term in TERMS)]
    shuffle, orders = random.Random(SHUFFLE_SEED), []
    for _ in range(SHUFFLES):
        shuffle.shuffle(numbers)
        orders.append(tuple(numbers))
    ways = {
        "float_order.eight_loop": partial(reduce, operator.add),
        "float_order.eight_builtin": sum,
        "float_order.eight_since": sum_since_3_12,
        "float_order.eight_floats": lambda order: sum_since_3_12(map(float, order)),
        "float_order.eight_single": lambda order: reduce(operator.add, map(np.float32, order)),
        "float_order.eight_fsum": math.fsum,
    }
    return {key: len({float(way(order)) for order in orders}) for key, way in ways.items()}


def sums_of_many(numbers: torch.Tensor) -> tuple[dict[str, float], list[float]]:
    """The sum of the same numbers in other orders and precisions, and that of their squares."""
    sums, squares = {"float_order.many_exact": math.fsum(numbers.tolist())}, []
    for key, threads in THREADS.items():
        torch.set_num_threads(threads)
        sums[key] = numbers.sum().item()
        squares.append(torch.dot(numbers, numbers).item())
    torch.set_num_threads(1)
    sums["float_order.many_reversed"] = numbers.flip(0).sum().item()
    sums["float_order.many_in_turn"] = float(np.add.accumulate(numbers.numpy())[-1])
    sums["float_order.many_double"] = numbers.double().sum().item()
    sums["float_order.many_bfloat"] = numbers.bfloat16().sum().item()
    return sums, squares


def alone_and_in_batch(start: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """What a linear layer makes of each row alone, and of all rows at once."""
    generator = make_generator(start)
    rows = torch.randn(BATCH, WIDTH, generator=generator).to(dtype)
    weights = torch.randn(WIDTH, WIDTH, generator=generator).to(dtype) / WIDTH**0.5
    alone = [torch.nn.functional.linear(row, weights) for row in rows.split(1)]
    return torch.cat(alone), torch.nn.functional.linear(rows, weights)


def train(name: str, seed: int | None, start: int, rate: float, setting: Setting, device: str = "cpu") -> Run:
    """One run: a small network learns a wavy surface from points that are one batch."""
    torch.manual_seed(start)
    inputs = 2 * torch.rand(POINTS, 2) - 1
    targets = torch.sin(6 * inputs[:, :1]) * torch.cos(4 * inputs[:, 1:])
    layers = [torch.nn.Linear(2, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, HIDDEN), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(HIDDEN, 1)).to(device, setting.dtype)
    inputs, targets = (of[list(setting.order)].to(device, setting.dtype) for of in (inputs, targets))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=MOMENTUM, fused=setting.fused)

    recorder = Recorder(name, seed=seed)
    for _ in range(STEPS):
        optimizer.zero_grad()
        total = torch.zeros((), dtype=setting.dtype, device=device)
        for x, y in zip(inputs.chunk(setting.parts), targets.chunk(setting.parts), strict=True):
            loss = (model(x) - y).square().sum() / POINTS
            loss.backward()
            total += loss.detach()
        recorder.log(loss=total)
        optimizer.step()
    return recorder.finish(weights=fingerprint_state_dict(model.state_dict()))


def train_elsewhere(setting: Setting, start: int, rate: float) -> list[float]:
    """The losses of one training in a process of its own; none where this PyTorch has no such setting."""
    if MKL in setting.environment and not torch.backends.mkl.is_available():
        return []
    code = (
        "import json, pathlib, torch; from repro_tutorial.lessons import load_demo; torch.set_num_threads(1); "
        f"demo = load_demo(pathlib.Path({str(Path(__file__).resolve().parent.parent)!r}), 'float_order'); "
        f"run = demo.train('', 0, {start}, {rate!r}, demo.Setting()); print(json.dumps(run.metrics['loss']))"
    )
    environment = os.environ | setting.environment
    done = subprocess.run([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def allowed(dtype: torch.dtype) -> dict[str, float]:
    """The tolerance of torch.testing.assert_close, from its own complaint."""
    try:
        torch.testing.assert_close(torch.zeros(2, dtype=dtype), torch.ones(2, dtype=dtype))
    except AssertionError as error:
        absolute, relative = re.findall(r"\(up to (\S+) allowed\)", str(error))
    return {"absolute": float(absolute), "relative": float(relative)}


def accepted(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether torch.testing.assert_close, as it is, takes the two for equal."""
    try:
        torch.testing.assert_close(a, b)
    except AssertionError:
        return False
    return True


def show_sums(out: Transcript, start: int) -> dict[str, Any]:
    """Sums of eight numbers, of a million, and of the products behind each number of a linear layer."""
    eight = different_sums()
    # Multiples of 2**-24, which are the same on every processor.
    numbers = torch.rand(MANY, generator=make_generator(start)) - 0.5
    sums, squares = sums_of_many(numbers)
    exact = sums["float_order.many_exact"]
    off = {key: abs(total - exact) / abs(exact) for key, total in sums.items()}
    out.say("float_order.eight", shuffles=SHUFFLES)
    for key, count in eight.items():
        out.say(key, count=count, python=platform.python_version())
    out.print()
    out.say("float_order.many", count=MANY)
    for key, total in sums.items():
        out.say(key, total=repr(total), off=off[key])
    out.say("float_order.squares", squares=[repr(of) for of in squares])
    out.print()
    rows: dict[str, Any] = {"rows": BATCH}
    out.say("float_order.rows", rows=BATCH)
    for name, dtype in PRECISIONS.items():
        alone, batch = alone_and_in_batch(start, dtype)
        rows[name] = int((alone != batch).any(dim=1).sum())
        rows[f"{name}_gap"] = (alone - batch).abs().max().item()
        out.print(f"  {str(dtype).removeprefix('torch.'):<36}{rows[name]:<20}{rows[f'{name}_gap']:.1e}")
    out.print()
    return {"eight": bare(eight), "many": bare(sums), "off": bare(off), "squares": squares, "rows": rows}


def bare(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts by the last word of their keys, for the record: many_in_turn is in_turn."""
    return {re.sub(r"float_order\.(eight_|many_|pair_)?", "", key): fact for key, fact in facts.items()}


def judge(out: Transcript, runs: Sequence[Run], others: Sequence[Run]) -> dict[str, Any]:
    """Say whether the runs agree, where they part, and how the gap compares with the noise of seeds."""
    different = distinct_outcomes(runs)
    # The record counts the runs from other seeds, too; they are in it for the figure.
    results: dict[str, Any] = {"runs": len(runs), "orders": different}
    results["different"] = distinct_outcomes([*runs, *others])
    if len(runs) == 1:
        out.say("demo.one_run")
        return results
    first, second = (run.metrics["loss"] for run in runs[:2])
    divergence = compare(*runs[:2], seed_runs=others)
    out.say("float_order.growth")
    for step in SHOWN_STEPS:
        a, b = first[step - 1], second[step - 1]
        _, (ulps,) = ulp_distance([a], [b])
        out.print(f"{step:>4}  {a:<22} {b:<22} {abs(a - b):<9.1e} {ulps:>9,}")
    out.print()
    results["divergence"] = divergence.summary()
    results["first_gap"] = next((gap for gap in divergence.gap if gap), 0.0)
    if different == 1:
        out.say("demo.identical", runs=len(runs))
    else:
        out.say("demo.part", runs=len(runs), different=different, step=divergence.first_step)
    out.say("float_order.gap", gap=divergence.max_abs, step=divergence.max_abs_step)
    ratio = f"{divergence.noise_ratio:.2g}" if divergence.noise_ratio is not None else "-"
    out.say("float_order.noise", ratio=ratio, seeds=len(others))
    return results


def leaves(first: Sequence[float], other: Sequence[float], relative: float) -> int | None:
    """The first step at which two losses differ by more than `relative`; ``None`` if they never do."""
    for step, (a, b) in enumerate(zip(first, other, strict=True), start=1):
        if not math.isclose(a, b, rel_tol=relative):
            return step
    return None


def show_settings(out: Transcript, start: int, rate: float, elsewhere: Sequence[Setting]) -> dict[str, Any]:
    """The final loss of one training from one seed, under every setting there is."""
    losses = {way.key: train("", start, start, rate, way).metrics["loss"] for way in SETTINGS}
    with ThreadPoolExecutor(2) as pool:
        found = pool.map(partial(train_elsewhere, start=start, rate=rate), elsewhere)
        found = progress(found, "float_order.progress", out.lang)
        losses |= {way.key: tuple(of) for way, of in zip(elsewhere, found, strict=True)}

    relative, rows = allowed(torch.float32)["relative"], {}
    out.print()
    out.say("float_order.settings", steps=STEPS, relative=relative)
    for key, of in losses.items():
        step = leaves(losses[Setting().key], of, relative) if of else None
        rows[key] = {"loss": repr(of[-1]) if of else "-", "step": step or "-"}
        out.say(key, **rows[key])
    last = sorted(of[-1] for of in losses.values() if of)
    spread = {"settings": len(last), "different": len(set(last)), "lowest": last[0], "highest": last[-1]}
    settled = min((row["step"] - 1 for row in rows.values() if row["step"] != "-"), default=STEPS)
    out.say("float_order.spread", **spread)
    out.say("float_order.settled", settled=settled, steps=STEPS, relative=relative)
    return {"settings": bare(rows), "spread": spread, "settled": settled}


def show_tolerance(
    out: Transcript, start: int, runs: Sequence[Run], squares: Sequence[float]
) -> dict[str, Any]:
    """What torch.testing.assert_close takes for equal, by its own measure, of what was computed above."""
    out.print()
    tolerance = {}
    for dtype in PRECISIONS.values():
        name = str(dtype).removeprefix("torch.")
        tolerance[name] = allowed(dtype)
        out.say("float_order.tolerance", dtype=name, **tolerance[name])
    first, other = (torch.tensor(run.metrics["loss"], dtype=torch.float32) for run in (runs[0], runs[-1]))
    pairs = {
        "float_order.pair_rows": alone_and_in_batch(start, torch.float32),
        "float_order.pair_squares": (torch.tensor(squares[0]), torch.tensor(squares[1])),
        "float_order.pair_early": (first[EARLY - 1], other[EARLY - 1]),
        "float_order.pair_last": (first[-1], other[-1]),
    }
    verdicts = {key: accepted(*pair) for key, pair in pairs.items()}
    for key, fine in verdicts.items():
        out.say(key, step=EARLY, verdict={"key": "float_order.accepted" if fine else "float_order.refused"})
    return {"tolerance": tolerance, "accepted": bare(verdicts)}


def main(argv: Sequence[str] | None = None) -> Record:
    """Add in other orders, train in other orders, say how far apart it ends, and return all as a record."""
    parser = demo_parser("float_order", argv, runs=2)
    parser.option("--order", choices=("changed", "kept"), default="changed")
    parser.option("--calm", action="store_true")
    parser.option("--processes", action="store_true")
    options = parser.parse_args(argv)
    device = choose_device(options.device)
    out = Transcript(options.lang)

    rate = CALM_RATE if options.calm else RATE
    # Without a seed there is one all the same, and all runs start from it: only the order shall differ.
    start = secrets.randbits(32) if options.seed is None else options.seed
    runs, others = [], []
    with isolate_rng(), one_thread():  # a caller's generators and threads stay as they are
        results = show_sums(out, start)
        out.say("float_order.start", start=start, rate=rate, order=options.order)
        for number in progress(range(1, options.runs + 1), "float_order.progress", options.lang):
            order: Sequence[int] = range(POINTS)
            if number > 1 and options.order == "changed":
                order = torch.randperm(POINTS, generator=make_generator(number)).tolist()
            runs.append(train(f"run {number}", options.seed, start, rate, Setting(order=order), device))
        for other in ((start + number) % 2**32 for number in range(1, OTHER_SEEDS + 1)):
            seed = None if options.seed is None else other
            others.append(train(f"seed {other}", seed, other, rate, Setting(), device))
        results |= judge(out, runs, others)
        results |= show_settings(out, start, rate, ELSEWHERE if options.processes else ())
        results |= show_tolerance(out, start, runs, results["squares"])
    if options.plot:
        from repro_tutorial.plots import plot_runs, save_figure

        save_figure(plot_runs(runs, lang=options.lang), options.plot)
    return make_record("float_order", argv, options, runs=[*runs, *others], results=results, out=out)


if __name__ == "__main__":
    sys.exit(run(main))

"""Every seed fixed, CPU only, and still two results: some kernels add in a different order each time.

Run:   python demos/nondeterministic_ops.py                      two trainings from one seed: they part
       python demos/nondeterministic_ops.py --cure algorithms    the same with a cure: equal on every bit
       python demos/nondeterministic_ops.py --show operators     which operators repeat, raise or warn
       python demos/nondeterministic_ops.py --show compile       random numbers of compiled code (a minute)
See:   the losses of both trainings side by side, then how many different gradients one input has.
Needs: a CPU with two cores and some ten seconds; for --show compile a C++ compiler.
"""

import os
import shutil
import sys
import textwrap
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import torch
from torch.nn import functional

from repro_tutorial.cli import choose_device, count, demo_parser, judge_runs, make_record, progress, run
from repro_tutorial.determinism import get_switches, set_deterministic, set_switches
from repro_tutorial.fingerprint import fingerprint_state_dict, fingerprint_tensor
from repro_tutorial.messages import Transcript
from repro_tutorial.processes import cores  # on one, two threads take turns and seldom race
from repro_tutorial.rng_state import isolate_rng
from repro_tutorial.runs import Record, Recorder, Run
from repro_tutorial.seeding import make_generator, seed_everything

CURES = {  # and the sentence that names each
    "none": "nondeterministic_ops.cure_none",
    "algorithms": "nondeterministic_ops.cure_algorithms",
    "one-thread": "nondeterministic_ops.cure_one_thread",
    "embedding": "nondeterministic_ops.cure_embedding",
}
THREADS = 2  # the fewest that can race
USERS, FILMS, WIDTH = 50, 40, 8  # a number of each user and film for each of so many tastes
RATINGS = 200_000  # so many that both threads meet in every row of the tables, on a busy machine too
STEPS, SHOWN_EVERY, SHOWN_RUNS = 20, 4, 2
LEARNING_RATE = 30.0  # large, since the loss is a mean over many ratings
LOOKUPS = 200_000  # of the gradients that are counted: one takes long enough for the threads to mix
DROPPED = 10_000  # numbers that eager and compiled dropout decide on
TRIES = 100
TAGS = ("nondeterministic_seeded", "nondeterministic_bitwise")  # PyTorch's tags that speak of repeating


@contextmanager
def cured(cure: str) -> Iterator[None]:
    """Two threads and the fast kernels, unless the cure is one of these; a caller's switches come back."""
    before = get_switches()
    try:
        threads = 1 if cure == "one-thread" else THREADS
        set_switches(replace(before, deterministic_algorithms=False, warn_only=False, threads=threads))
        if cure == "algorithms":
            set_deterministic()
        yield
    finally:
        set_switches(before)


def rows_of(table: torch.Tensor, index: torch.Tensor, cure: str) -> torch.Tensor:
    """The rows that `index` names: two operators, one result, and two ways to add up the gradient."""
    return functional.embedding(index, table) if cure == "embedding" else table[index]


def train(name: str, seed: int, cure: str, device: str) -> Run:
    """One run: learn from ratings what users and films have in common, gradient descent written out."""
    draw = make_generator(0)  # the ratings are data: the same for every seed
    user, film = (torch.randint(size, (RATINGS,), generator=draw).to(device) for size in (USERS, FILMS))
    taste, style = (torch.randn(size, WIDTH, generator=draw).to(device) for size in (USERS, FILMS))
    rating = (taste[user] * style[film]).mean(1)

    seed_everything(seed)
    users, films = (torch.randn(size, WIDTH).to(device).requires_grad_() for size in (USERS, FILMS))
    recorder = Recorder(name, seed=seed)
    with cured(cure):
        for _ in range(STEPS):
            guess = (rows_of(users, user, cure) * rows_of(films, film, cure)).mean(1)
            loss = WIDTH * (guess - rating).square().mean()
            recorder.log(loss=loss.item())
            gradients = torch.autograd.grad(loss, (users, films))
            with torch.no_grad():
                for table, gradient in zip((users, films), gradients, strict=True):
                    table -= LEARNING_RATE * gradient
        return recorder.finish(weights=fingerprint_state_dict({"users": users, "films": films}))


def cure_line(cure: str) -> dict[str, str]:
    """The name of a cure as a line of its own, in every language."""
    return {"key": CURES[cure]}


def show(out: Transcript, runs: Sequence[Run]) -> None:
    """The losses of the first runs side by side, every few steps."""
    columns = [run.metrics["loss"] for run in runs[:SHOWN_RUNS]]
    for step in range(SHOWN_EVERY, STEPS + 1, SHOWN_EVERY):
        losses = "".join(f"{column[step - 1]:<22}" for column in columns)
        out.print(f"{step:>4}  {losses}".rstrip())
    out.print()


def results_of(compute: Callable[[], torch.Tensor], tries: int) -> tuple[int, float]:
    """How many different results one computation has in so many tries, and the median of its seconds."""
    seen, seconds = set(), []
    for _ in range(tries):
        start = time.perf_counter()
        result = compute()
        seen.add(fingerprint_tensor(result))
        seconds.append(time.perf_counter() - start)
    return len(seen), median(seconds)


def gradient(
    lookup: Callable[[torch.Tensor], torch.Tensor], shape: Sequence[int], weight: torch.Tensor
) -> torch.Tensor:
    """The gradient of a table, looked up and weighted."""
    table = torch.zeros(shape, device=weight.device, requires_grad=True)
    return torch.autograd.grad(lookup(table), table, weight)[0]


def count_gradients(
    out: Transcript, cures: Sequence[str], tries: int, device: str
) -> dict[str, dict[str, Any]]:
    """The same input again and again: how many different sums, and what each cure costs."""
    draw = make_generator(1)
    index = torch.randint(USERS, (LOOKUPS,), generator=draw).to(device)
    weight = torch.randn(LOOKUPS, WIDTH, generator=draw).to(device)

    def put(cure: str) -> torch.Tensor:
        table = torch.zeros(USERS, WIDTH, device=device)
        if cure == "embedding":
            return table.index_add_(0, index, weight)
        return table.index_put_((index,), weight, accumulate=True)

    def grad(cure: str) -> torch.Tensor:
        return gradient(lambda table: rows_of(table, index, cure), (USERS, WIDTH), weight)

    out.say("nondeterministic_ops.gradients", tries=tries)
    out.say("nondeterministic_ops.gradients_header")
    counted: dict[str, dict[str, Any]] = {}
    for cure in progress(cures, "nondeterministic_ops.progress", out.lang):
        with cured(cure):
            puts, _ = results_of(partial(put, cure), tries)
            grads, seconds = results_of(partial(grad, cure), tries)
        counted[cure] = {"index_put": puts, "table": grads, "seconds": seconds}
        counted[cure]["cost"] = seconds / counted["none"]["seconds"]
        out.say("nondeterministic_ops.gradients_row", cure=cure_line(cure), **counted[cure])
    return counted


def operators(device: str) -> dict[str, tuple[str, Callable[[], torch.Tensor]]]:
    """What is tried: the operator whose tags count, and a call that always gets the same input."""
    draw = make_generator(2)
    row = torch.randint(USERS, (LOOKUPS,), generator=draw).to(device)
    cell = torch.randint(USERS * WIDTH, (LOOKUPS * WIDTH,), generator=draw).to(device)
    value = torch.randn(LOOKUPS, WIDTH, generator=draw).to(device)
    image = torch.randn(4, 8, 64, 64, generator=draw).to(device)
    table = torch.zeros(USERS, WIDTH, device=device)
    pooled, places = functional.max_pool2d(image, 2, return_indices=True)

    def enlarge(small: torch.Tensor) -> torch.Tensor:
        return functional.interpolate(small, scale_factor=2, mode="bilinear")

    def dropout() -> torch.Tensor:
        torch.manual_seed(0)
        return functional.dropout(value)

    return {
        "index_put_, accumulate": ("index_put_", lambda: table.index_put((row,), value, accumulate=True)),
        "grad of table[index]": ("index_put_", lambda: gradient(lambda t: t[row], table.shape, value)),
        "grad of take": ("put_", lambda: gradient(lambda t: t.take(cell), table.shape, value.view(-1))),
        "index_put_": ("index_put_", lambda: table.index_put((row,), value)),
        "put_": ("put_", lambda: table.put(cell, value)),
        "index_copy_": ("index_copy_", lambda: table.index_copy(0, row, value)),
        "index_add_": ("index_add_", lambda: table.index_add(0, row, value)),
        "scatter_add_": ("scatter_add_", lambda: table.view(-1).scatter_add(0, cell, value.view(-1))),
        "grad of F.embedding": (
            "embedding_dense_backward",
            lambda: gradient(lambda t: functional.embedding(row, t), table.shape, value),
        ),
        "max_unpool2d": ("max_unpool2d", lambda: functional.max_unpool2d(pooled, places, 2)),
        "grad of interpolate": (
            "upsample_bilinear2d_backward",
            lambda: gradient(enlarge, pooled.shape, image),
        ),
        "cumsum": ("cumsum", lambda: value.cumsum(0)),
        "dropout, same seed": ("dropout", dropout),
    }


def tagged(tag: str) -> set[str]:
    """PyTorch's own operators that carry a tag, by name."""
    wanted = getattr(torch.Tag, tag, None)  # a release may lack it
    found = set()
    for schema in torch._C._jit_get_all_schemas():  # there is no public list
        packet = getattr(torch.ops.aten, schema.name.removeprefix("aten::"), None)
        overload = getattr(packet, schema.overload_name or "default", None)
        if wanted in getattr(overload, "tags", ()):
            found.add(schema.name.removeprefix("aten::"))
    return found


def try_operators(out: Transcript, tries: int, device: str) -> dict[str, Any]:
    """Each operator as it is and with deterministic algorithms: how many results, or which error."""
    names = {tag: tagged(tag) for tag in TAGS}
    tags = {tag: len(of) for tag, of in names.items()}
    out.say("nondeterministic_ops.operators", tries=tries)
    out.say("nondeterministic_ops.operators_header")
    rows: dict[str, dict[str, Any]] = {}
    for label, (name, compute) in operators(device).items():
        row: dict[str, Any] = {"seeded": name in names[TAGS[0]], "error": ""}
        with cured("none"):
            row["different"], _ = results_of(compute, tries)
        with cured("algorithms"):
            try:
                row["deterministic"], _ = results_of(compute, tries)
            except RuntimeError as error:
                row["deterministic"], row["error"] = 0, str(error)
        shown = {"key": "nondeterministic_ops.raises"} if row["error"] else row["deterministic"]
        tag = {"key": "nondeterministic_ops.draws" if row["seeded"] else "nondeterministic_ops.untagged"}
        out.say("nondeterministic_ops.operator", name=label, tag=tag, **row | {"deterministic": shown})
        rows[label] = row
    out.say("nondeterministic_ops.tags", **tags)
    out.print()
    out.say("nondeterministic_ops.error", name="put_")
    for line in textwrap.wrap(rows["put_"]["error"], 100):
        out.print(line)
    out.print()
    return {"tags": tags, "operators": rows, "warn_only": warn_only(out, tries, device)} | fill(out)


def warn_only(out: Transcript, tries: int, device: str) -> dict[str, Any]:
    """With warnings in place of errors: who warns, and who repeats."""
    told: dict[str, Any] = {"tries": tries}
    for label, short in (("put_", "put"), ("index_put_, accumulate", "index_put")):
        with cured("none"), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            set_deterministic(warn_only=True)
            told[short], _ = results_of(operators(device)[label][1], tries)
        told[f"{short}_warned"] = len(caught)
    out.say("nondeterministic_ops.warn_only", **told)
    return told


def fill(out: Transcript) -> dict[str, Any]:
    """What `torch.empty` holds before anything is written to it, in memory that held sevens."""

    def leftover() -> torch.Tensor:
        return torch.empty(4, out=torch.full((4,), 7.0))

    with cured("none"):
        plain = (leftover() == 7).sum().item()
    with cured("algorithms"):
        filled = leftover().isnan().sum().item()
        whole = torch.empty(1, dtype=torch.int64).item()
        set_switches(replace(get_switches(), fill_uninitialized_memory=False))
        unfilled = (leftover() == 7).sum().item()
    told = {"plain": plain, "filled": filled, "unfilled": unfilled, "whole": whole, "size": 4}
    out.say("nondeterministic_ops.fill", **told)
    out.say("nondeterministic_ops.fill_whole", **told)
    out.say("nondeterministic_ops.fill_off", **told)
    return {"fill": told}


def compile_streams(out: Transcript, seed: int) -> dict[str, Any]:
    """Which numbers dropout keeps, from one seed: eager, compiled, and compiled with eager's generator."""
    compilers = (os.environ.get("CXX"), "g++", "clang++", "cl")
    if not any(name and shutil.which(name) for name in compilers):
        out.say("nondeterministic_ops.no_compiler")
        return {}
    ones, variables = torch.ones(DROPPED), dict(os.environ)

    def kept(dropout: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        torch.manual_seed(seed)
        return dropout(ones) != 0

    def agreeing(a: torch.Tensor, b: torch.Tensor) -> int:
        return int((a == b).sum())

    try:
        from torch._inductor import config

        eager = kept(functional.dropout)
        compiled = torch.compile(functional.dropout)
        first, second = kept(compiled), kept(compiled)
        torch.compiler.reset()  # else the code compiled above is taken again
        with config.patch(fallback_random=True):
            fallback = kept(torch.compile(functional.dropout))
    finally:
        torch.compiler.reset()
        os.environ.clear()  # the compiler leaves variables behind
        os.environ.update(variables)
    told = {
        "compiled": agreeing(eager, first),
        "again": agreeing(first, second),
        "fallback": agreeing(eager, fallback),
        "dropped": DROPPED,
    }
    out.say("nondeterministic_ops.compiled", **told)
    return {"compile": told}


def main(argv: Sequence[str] | None = None) -> Record:
    """Train as often as asked, judge the runs, show what was asked for, and return all as a record."""
    parser = demo_parser("nondeterministic_ops", argv, runs=2, seed=3, device="cpu")
    parser.option("--cure", choices=CURES, default="none")
    parser.option("--show", choices=("gradients", "operators", "compile"), default="gradients")
    parser.option("--tries", type=count, metavar="N", default=TRIES)
    options = parser.parse_args(argv)
    device = choose_device(options.device)
    out = Transcript(options.lang)

    with isolate_rng():  # a caller's generators stay where they are
        threads = 1 if options.cure == "one-thread" else THREADS
        cure = cure_line(options.cure)
        out.say("nondeterministic_ops.head", device=device, threads=threads, cores=cores(), cure=cure)
        numbers = progress(range(1, options.runs + 1), "nondeterministic_ops.progress", options.lang)
        runs = [train(f"run {number}", options.seed, options.cure, device) for number in numbers]
        show(out, runs)
        results = judge_runs(out, runs)
        out.print()
        if options.show == "operators":
            results |= try_operators(out, options.tries, device)
        elif options.show == "compile":
            results |= compile_streams(out, options.seed)
        else:
            cures = tuple(CURES) if options.cure == "none" else ("none", options.cure)
            results["gradients"] = count_gradients(out, cures, options.tries, device)
    if options.plot:
        from repro_tutorial.plots import plot_runs, save_figure

        save_figure(plot_runs(runs, lang=options.lang), options.plot)
    return make_record("nondeterministic_ops", argv, options, runs=runs, results=results, out=out)


if __name__ == "__main__":
    sys.exit(run(main))

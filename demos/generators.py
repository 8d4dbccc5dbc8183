"""A seed starts one generator; there are many, and every draw moves one of them.

Run:   python demos/generators.py              two runs without a seed: not one number in common
       python demos/generators.py --seed 42    two runs from seed 42: equal on every bit
See:   the first numbers of four generators side by side, then what one extra draw does, and to whom.
Needs: a CPU and a few seconds; the CUDA numbers are recomputed, so that no GPU is needed.
"""

import random
import secrets
import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import torch

from repro_tutorial.cli import choose_device, demo_parser, make_record, progress, run
from repro_tutorial.divergence import distinct_outcomes
from repro_tutorial.messages import Transcript
from repro_tutorial.rng_state import advanced_generators, get_rng_state, isolate_rng
from repro_tutorial.runs import Record, Recorder, Run
from repro_tutorial.seeding import make_generator, seed_everything
from repro_tutorial.virtual_cuda import RULES_OF, VirtualCudaGenerator, warn_of_newer_torch

DRAWN = 12  # numbers that a run takes from each generator
SHOWN = 4  # of which so many are printed
SHOWN_RUNS = 2
EXTRA_AFTER = 3  # the extra draw comes after so many numbers: these stay, those behind them shift
PIECES = (2, 3)  # rand(2) then rand(3), against rand(5)
FAR_SEEDS = (0, 2**32)  # equal in their low 32 bits, which are all that the CPU's generator looks at
RELEASE = ".".join(map(str, RULES_OF))  # of PyTorch: whose rules the CUDA numbers follow
NORMALS = 16  # from so many on, PyTorch's CPU generator makes normal numbers by another rule

Generator: TypeAlias = torch.Generator | VirtualCudaGenerator


def first_numbers(name: str, seed: int | None, start: int, gpu: str) -> Run:
    """One run: the first numbers of four generators that all start from `start`."""
    seed_everything(start)
    cuda = VirtualCudaGenerator(gpu).manual_seed(start)
    recorder = Recorder(name, seed=seed)
    for number in rand(cuda, DRAWN):
        recorder.log(
            python=random.random(), numpy=np.random.rand(), torch_cpu=torch.rand(1), torch_cuda=number
        )
    return recorder.finish()


def rand(generator: Generator, count: int) -> list[float]:
    """So many uniform numbers in one call, whichever kind the generator is."""
    if isinstance(generator, VirtualCudaGenerator):
        return [float(number) for number in generator.rand(count)]
    return torch.rand(count, generator=generator).tolist()


def program(start: int, *, extra: bool = False, own: bool = False) -> list[float]:
    """The numbers that a program gets one by one, while another part of it may draw one too."""
    seed_everything(start)
    generator = make_generator(start) if own else None  # None: the default, which all share
    numbers = []
    for place in range(DRAWN):
        if extra and place == EXTRA_AFTER:
            torch.rand(1)
        numbers.append(torch.rand(1, generator=generator).item())
    return numbers


def moved_by_extra_draw(start: int) -> tuple[str, ...]:
    """Which generators the extra draw moves: every one of the process is watched, and one of our own."""
    own = make_generator(start)
    before = get_rng_state(own=own)
    torch.rand(1)
    return advanced_generators(before, get_rng_state(own=own))


def randn_prefix(start: int) -> int:
    """How many numbers of randn(15) are also the first of randn(16)."""
    short, full = (torch.randn(n, generator=make_generator(start)).tolist() for n in (NORMALS - 1, NORMALS))
    return equal(short, full[:-1])


def habits(make: Callable[[], Generator], start: int) -> dict[str, int]:
    """How one kind of generator takes a draw in pieces, far seeds, and its saved state."""
    count = sum(PIECES)
    generator = make().manual_seed(start)
    pieces = [number for piece in PIECES for number in rand(generator, piece)]
    state = generator.get_state()
    drawn = rand(generator, count)
    generator.set_state(state)
    return {
        "generators.split": equal(pieces, rand(make().manual_seed(start), count)),
        "generators.seeds": equal(*(rand(make().manual_seed(seed), count) for seed in FAR_SEEDS)),
        "generators.restored": equal(drawn, rand(generator, count)),
        "generators.state_bytes": len(state),
    }


def equal(a: Sequence[float], b: Sequence[float]) -> int:
    """At how many places the two have the same number."""
    return sum(x == y for x, y in zip(a, b, strict=True))


def show(out: Transcript, runs: Sequence[Run]) -> None:
    """The first numbers of the first runs, a column for each generator."""
    for number, drawn in enumerate(runs[:SHOWN_RUNS], start=1):
        key = "demo.run_unseeded" if drawn.seed is None else "demo.run_seeded"
        out.say(key, number=number, runs=len(runs), seed=drawn.seed)
        out.print("random      NumPy       torch, CPU  torch, CUDA*")
        for row in list(zip(*drawn.metrics.values(), strict=True))[:SHOWN]:
            out.print("".join(f"{value:<12.7f}" for value in row).rstrip())
        out.print()


def judge(out: Transcript, runs: Sequence[Run]) -> dict[str, Any]:
    """Say whether the runs drew the same numbers."""
    different = distinct_outcomes(runs)
    if len(runs) == 1:
        out.say("demo.one_run")
    elif different == 1:
        out.say("demo.identical", runs=len(runs))
    else:
        first, second = ([*chain(*of.metrics.values())] for of in runs[:2])
        agree = {"same": equal(first, second), "numbers": len(first)}
        out.say("generators.part", runs=len(runs), different=different, **agree)
    return {"runs": len(runs), "different": different}


def check_device(out: Transcript, device: str, gpu: str, start: int, numbers: Sequence[float]) -> None:
    """Say by which rules the CUDA numbers were made; where there is a CUDA device, whether it draws them too."""
    out.say("generators.recomputed", gpu=gpu, release=RELEASE)
    if device == "cuda":
        torch.manual_seed(start)
        agree = equal(torch.rand(DRAWN, device=device).tolist(), numbers)
        out.say("generators.device", name=torch.cuda.get_device_name(), agree=agree, drawn=DRAWN)
    else:
        out.say("demo.no_device")
    out.print()


def explain(out: Transcript, start: int, gpu: str) -> dict[str, Any]:
    """What draws do to generators, computed from the start of run 1: said, and returned as numbers."""
    plain, shifted = program(start), program(start, extra=True)
    own = program(start, extra=True, own=True)
    cpu, cuda = habits(torch.Generator, start), habits(partial(VirtualCudaGenerator, gpu), start)
    extra = {
        "after": EXTRA_AFTER,
        "moved": ", ".join(moved_by_extra_draw(start)),
        "kept": equal(shifted, plain),
        "early": equal(shifted[EXTRA_AFTER:-1], plain[EXTRA_AFTER + 1 :]),
        "behind": DRAWN - EXTRA_AFTER - 1,  # the last of them would come after the end
        "drawn": DRAWN,
    }
    facts: dict[str, dict[str, Any]] = {
        "generators.extra": extra,
        "generators.own": {"kept": equal(own, plain), "drawn": DRAWN},
        "generators.randn": {"equal": randn_prefix(start), "short": NORMALS - 1, "full": NORMALS},
    } | {key: {"cpu": cpu[key], "cuda": cuda[key], "drawn": sum(PIECES)} for key in cpu}
    out.print()
    for key, values in facts.items():
        out.say(key, **values)
    streams = [
        {"label": {"key": "generators.row_extra"}, "numbers": shifted},
        {"label": {"key": "generators.row_own"}, "numbers": own},
    ]
    return {key.removeprefix("generators."): values for key, values in facts.items()} | {"streams": streams}


def main(argv: Sequence[str] | None = None) -> Record:
    """Draw from every generator as often as asked, judge the runs, explain, and return all as a record."""
    parser = demo_parser("generators", argv, runs=2)
    parser.option("--gpu", metavar="NAME", default="A100")
    options = parser.parse_args(argv)
    VirtualCudaGenerator(options.gpu)  # an unknown name is told before any work
    device = choose_device(options.device)
    warn_of_newer_torch()
    out = Transcript(options.lang)

    runs, starts = [], []
    with isolate_rng():  # a caller's generators stay where they are
        for number in progress(range(1, options.runs + 1), "generators.progress", options.lang):
            # Without a seed there is one all the same; nobody chose it, and nobody notes it down.
            starts.append(secrets.randbits(32) if options.seed is None else options.seed)
            runs.append(first_numbers(f"run {number}", options.seed, starts[-1], options.gpu))
        show(out, runs)
        check_device(out, device, options.gpu, starts[0], runs[0].metrics["torch_cuda"])
        results = judge(out, runs) | explain(out, starts[0], options.gpu)
    shown = [{"label": run.name, "numbers": list(run.metrics["torch_cpu"])} for run in runs[:SHOWN_RUNS]]
    results |= {"gpu": options.gpu, "release": RELEASE, "streams": shown + results["streams"]}
    if options.plot:
        from repro_tutorial.plots import plot_streams, save_figure

        save_figure(plot_streams(results["streams"], lang=options.lang), options.plot)
    return make_record("generators", argv, options, runs=runs, results=results, out=out)


if __name__ == "__main__":
    sys.exit(run(main))

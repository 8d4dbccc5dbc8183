"""One flipped bit is as much noise as a new seed, so report many.

Run:   python demos/seed_variance.py                    30 seeds of one method, other ones each time
       python demos/seed_variance.py --seed 3           the seeds from 3 on: the same numbers every time
       python demos/seed_variance.py --seed 3 --full    80 seeds, and ten runs of each change
See:   how far seeds lie apart, what the best of them is worth, and one ULP in one weight grown to all of it.
Needs: a CPU and up to a minute; all cores are used, and how many there are changes no bit.
"""

import math
import secrets
import sys
from collections.abc import Mapping, Sequence
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from repro_tutorial.cli import choose_device, count, demo_parser, make_record, progress, run
from repro_tutorial.determinism import one_thread
from repro_tutorial.divergence import FloatArray, compare, distinct_outcomes
from repro_tutorial.fingerprint import fingerprint_state_dict
from repro_tutorial.messages import InputError, Transcript
from repro_tutorial.processes import cores, map_in_processes
from repro_tutorial.rng_state import isolate_rng
from repro_tutorial.runs import Record, Recorder, Run
from repro_tutorial.seeding import derive_seed, make_generator

DATA_SEED = 0  # the data is the same in every run: it is not what varies here
POINTS, TESTS, INPUTS = 500, 4000, 20
LOSS_POINTS = 1000  # of the test points, on which the loss is recorded: the same in every run
WIDTH, LAYERS, MOMENTUM = 32, 4, 0.9
SHORT = {"rate": 0.02, "epochs": 8, "batch": 32}  # how the method is trained that many seeds are tried of
LONG = {"rate": 0.06, "epochs": 20, "batch": 16}  # at a rate so large that small differences grow
DECAY = 0.003  # of the second method: the first with this weight decay
HALF_POINT = 0.5
CHANGES, FULL_CHANGES = 3, 10  # runs of each kind of change
RUNS, FULL_RUNS = 30, 80
FEW = 5  # seeds, which many papers stop at
RESAMPLES, RESAMPLE_SEED = 10_000, 0
SPLITS, SIZES = 200, (2000, 500, 100)  # so many times, so many test points to choose a seed on
FIGURE_SIZE = 500  # of which the figure is drawn
SHOWN_GAPS = {"millionth": 1e-6, "thousandth": 1e-3, "tenth": 1e-1}
SETTLED = 1e-6  # relative: below it, the losses of two machines can be compared


def data() -> tuple[torch.Tensor, torch.Tensor]:
    """Points and their classes, 0 or 1: a bent border with noise, so that no network gets all of them right."""
    generator = make_generator(DATA_SEED)
    points = torch.randn(POINTS + TESTS, INPUTS, generator=generator)
    bends = torch.randn(INPUTS, 16, generator=generator) / INPUTS**0.5
    side = torch.tanh(2 * points @ bends) @ torch.randn(16, generator=generator)
    noise = torch.randn(len(points), generator=generator)
    return points, (side - side.median() + noise > 0).long()


def network(init: int, ulp: int | None) -> torch.nn.Sequential:
    """A network whose weights are drawn from seed `init`; one ULP is added to its largest weight but `ulp`."""
    generator, sizes = make_generator(init), [INPUTS, *[WIDTH] * (LAYERS - 1), 2]
    layers: list[torch.nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layer = torch.nn.utils.skip_init(torch.nn.Linear, inputs, outputs)
        torch.nn.init.kaiming_uniform_(layer.weight, generator=generator)
        torch.nn.init.zeros_(layer.bias)
        layers += [layer, torch.nn.ReLU()]
    if ulp is not None:
        weights = layer.weight.detach().view(-1)  # of the last layer, where no ReLU hides them
        place = weights.abs().argsort(descending=True)[ulp]
        weights[place] = torch.nextafter(weights[place], torch.tensor(math.inf))
    return torch.nn.Sequential(*layers[:-1])


def train(  # noqa: PLR0913  # all that can vary in a run, by name
    *,
    seed: int | None = None,
    name: str = "",
    init: int,
    order: int,
    ulp: int | None = None,
    rate: float,
    epochs: int,
    batch: int,
    decay: float = 0.0,
    device: str = "cpu",
) -> tuple[Run, Any]:
    """One run, and which of the test points it got right; a run with a name has its loss recorded."""
    points, classes = (of.to(device) for of in data())
    model, shuffle = network(init, ulp).to(device), make_generator(order)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=rate, momentum=MOMENTUM, weight_decay=decay, fused=True
    )
    recorder, step = Recorder(name, seed=seed), 0
    for _ in range(epochs):
        for some in torch.randperm(POINTS, generator=shuffle).split(batch):
            step += 1
            if name and (step <= 50 or step % 10 == 0):
                with torch.no_grad():
                    loss = functional.cross_entropy(model(points[-LOSS_POINTS:]), classes[-LOSS_POINTS:])
                recorder.log(step=step, loss=loss)
            optimizer.zero_grad()
            functional.cross_entropy(model(points[some]), classes[some]).backward()
            optimizer.step()
    with torch.no_grad():
        right = model(points[POINTS:]).argmax(dim=1) == classes[POINTS:]
    return recorder.finish(weights=fingerprint_state_dict(model.state_dict())), right.cpu().numpy()


def seeds_of(seed: int) -> dict[str, int]:
    """Separate seeds for the initial weights and for the order of the data, both from one."""
    return {"init": derive_seed(seed, 0), "order": derive_seed(seed, 1)}


def changed(start: int, changes: int, *, known: bool) -> dict[str, list[dict[str, Any]]]:
    """The runs of the second part: the first twice, then with one change at a time.

    Those with a name have their losses recorded: the first, those with one ULP, and other seeds.
    """
    base, others = seeds_of(start), [(start + number) % 2**32 for number in range(1, changes + 1)]
    named = base | {"seed": start if known else None}
    return {
        "same": [named | {"name": name} for name in ("run 1", "again")],
        "ulp": [named | {"ulp": place, "name": f"run {place + 2}"} for place in range(changes)],
        "order": [base | {"order": seeds_of(seed)["order"]} for seed in others],
        "init": [base | {"init": seeds_of(seed)["init"]} for seed in others],
        "both": [
            seeds_of(seed) | {"name": f"seed {seed}", "seed": seed if known else None} for seed in others
        ],
    }


def percent(right: Any) -> float:
    """Which share of the points was got right."""
    return 100 * float(np.mean(right))


def interval(*groups: Sequence[float] | FloatArray) -> tuple[float, float]:
    """The 95% interval of a mean, or of the second group's mean less the first's: percentile bootstrap."""
    rng = np.random.default_rng(RESAMPLE_SEED)
    means = [rng.choice(of, (RESAMPLES, len(of))).mean(axis=1) for of in groups]
    low, high = np.percentile(means[0] if len(means) == 1 else means[1] - means[0], [2.5, 97.5])
    return float(low), float(high)


def report(values: Sequence[float] | FloatArray) -> dict[str, Any]:
    """What to report of one number from several seeds: its mean, the interval of the mean, how many seeds."""
    low, high = interval(values)
    return {"mean": float(np.mean(values)), "low": low, "high": high, "seeds": len(values)}


def disagreement(rights: Sequence[Any]) -> float:
    """On how many of the test points two runs decide differently: percent, the mean of all pairs."""
    return float(np.mean([percent(a != b) for a, b in combinations(rights, 2)]))


def elsewhere(rights: Sequence[Any], size: int) -> dict[str, float]:
    """Choose the best seed on some of the test points, look at it on as many others: the mean of many cuts."""
    rng, right = np.random.default_rng(RESAMPLE_SEED), np.array(rights, dtype=np.float64)
    found = []
    for _ in range(SPLITS):
        points = rng.permutation(TESTS)
        chosen, other = (100 * right[:, part].mean(axis=1) for part in (points[:size], points[-size:]))
        best = int(np.argmax(chosen))
        leads = [of[best] - of.mean() for of in (chosen, other)]
        found.append([*leads, 1 + np.sum(other > other[best])])
    lead, left, rank = np.mean(found, axis=0).tolist()
    return {"size": size, "lead": lead, "left": left, "rank": rank, "runs": len(rights)}


def lottery(out: Transcript, seeds: Sequence[int], rights: Sequence[Any]) -> dict[str, Any]:
    """Many seeds of one method: how far apart, how much the best gains, what it is worth elsewhere."""
    values = [percent(right) for right in rights]
    gaps = [abs(a - b) for a, b in combinations(values, 2)]
    std, differ = float(np.std(values, ddof=1)), disagreement(rights)
    spread = {"low": min(values), "high": max(values), "std": std}
    pairs = {"share": 100 * float(np.mean(np.array(gaps) > HALF_POINT)), "pairs": len(gaps)}
    # If every test point were decided by a throw of its own, the count of right ones would spread so much.
    alone = {"disagreement": differ, "std": 100 * math.sqrt(differ / 100 / (2 * TESTS))}
    cherry = {"best": max(values), "gain": max(values) - float(np.mean(values)), "runs": len(values)}
    few, many = report(values[:FEW]), report(values)
    out.say("seed_variance.method", runs=len(values), points=POINTS, tests=TESTS, **SHORT)
    facts = {
        "seed_variance.spread": spread,
        "seed_variance.pairs": pairs,
        "seed_variance.alone": alone,
        "seed_variance.cherry": cherry,
    }
    for key, of in facts.items():
        out.say(key, **of)
    out.say("seed_variance.choose", splits=SPLITS)
    lucky = {str(size): elsewhere(rights, size) for size in SIZES}
    for row in lucky.values():
        out.say("seed_variance.lucky", **row)
    out.say("seed_variance.few", **few)
    out.say("seed_variance.many", **many)
    halves = (slice(0, FIGURE_SIZE), slice(FIGURE_SIZE, 2 * FIGURE_SIZE))
    first, second = ([percent(right[half]) for right in rights] for half in halves)
    best = int(np.argmax(first))
    histograms = [
        {"label": {"key": key, "values": {"size": FIGURE_SIZE}}, "values": of, "chosen": best}
        for key, of in (("seed_variance.chosen_on", first), ("seed_variance.others", second))
    ]
    example = {"seed": seeds[best], "rank": 1 + sum(value > second[best] for value in second)}
    more = {"lucky": lucky, "example": example, "few": few, "many": many, "histograms": histograms}
    return {key.removeprefix("seed_variance."): of for key, of in facts.items()} | more


def two_methods(out: Transcript, plain: Sequence[Any], decayed: Sequence[Any]) -> dict[str, Any]:
    """Is the method with weight decay better? By one seed of each, by means, and seed by seed."""
    a, b = (np.array([percent(right) for right in of]) for of in (plain, decayed))
    gain = float(np.mean(b - a))
    wrong = 100 * float(np.mean(np.sign(b[:, None] - a[None, :]) != np.sign(gain)))
    unpaired = dict(zip(("low", "high"), interval(a, b), strict=True))
    paired = dict(zip(("low", "high"), interval(b - a), strict=True))
    out.print()
    out.say("seed_variance.methods", decay=DECAY, runs=len(a), gain=gain)
    out.say("seed_variance.single", wrong=wrong, pairs=len(a) ** 2)
    for key, of in (("seed_variance.unpaired", unpaired), ("seed_variance.paired", paired)):
        seen = "seed_variance.seen" if of["low"] > 0 or of["high"] < 0 else "seed_variance.unseen"
        out.say(key, verdict={"key": seen}, **of)
    correlation = float(np.corrcoef(a, b)[0, 1])
    return {"gain": gain, "wrong": wrong, "unpaired": unpaired, "paired": paired, "correlation": correlation}


def kept_runs(groups: Mapping[str, Sequence[tuple[Run, Any]]]) -> list[Run]:
    """The runs of the record: the first, the same with one ULP, and other seeds, whose noise is the measure."""
    return [groups["same"][0][0], groups["ulp"][0][0], *(one for one, _ in groups["both"])]


def one_ulp(out: Transcript, groups: Mapping[str, Sequence[tuple[Run, Any]]]) -> dict[str, Any]:
    """One change at a time against the first run: how far it comes, against another seed."""
    runs, (first, again) = kept_runs(groups), groups["same"]
    out.print()
    last = runs[0].steps_of("loss")[-1]
    out.say("seed_variance.changes", runs=len(groups["ulp"]), steps=last, **LONG)
    table = {}
    for name, group in groups.items():
        rights = [right for _, right in (group if name == "same" else (first, *group))]
        std = float(np.std([percent(right) for right in rights], ddof=1))
        table[name] = {"disagreement": disagreement(rights), "std": std}
        out.say(f"seed_variance.kind_{name}", **table[name])
    out.print()
    divergence = compare(*runs[:2], seed_runs=runs[2:])
    same = distinct_outcomes([first[0], again[0]])
    out.say("seed_variance.again" if same == 1 else "seed_variance.not_again")
    out.say("seed_variance.apart", step=divergence.first_step)
    reached: dict[str, int | str] = {}
    for name, least in SHOWN_GAPS.items():
        steps = [step for step, gap in zip(divergence.steps, divergence.gap, strict=True) if gap > least]
        reached[name] = steps[0] if steps else "-"
        out.say("seed_variance.reached", gap=f"{least:g}", step=reached[name])
    ratio = f"{divergence.noise_ratio:.2g}" if divergence.noise_ratio is not None else "-"
    out.say("seed_variance.noise", ratio=ratio, seeds=len(runs) - 2)
    # Rounding on another machine acts as these changes do: while they stay small, it does. From other seeds
    # differences grow sooner or later than from this one, so that half of the way is counted on.
    gaps = np.max([compare(runs[0], one).gap for one, _ in groups["ulp"]], axis=0)
    settled = int(np.argmax(np.append(gaps > SETTLED * np.array(runs[0].metrics["loss"]), True)))
    results = {"same": same, "kinds": table, "reached": reached, "settled": settled // 2}
    return results | {"different": distinct_outcomes(runs), "divergence": divergence.summary()}


def main(argv: Sequence[str] | None = None) -> Record:
    """Train one method from many seeds, change one thing at a time, and return all as a record."""
    parser = demo_parser("seed_variance", argv, runs=RUNS)
    parser.option("--processes", type=count, metavar="N", default=cores(), about="cli.help_processes_many")
    parser.option("--full", action="store_true", about="cli.help_full_seeds")
    parser.option("--figure", choices=("histograms", "divergence"), default="histograms")
    options = parser.parse_args(argv)
    if options.runs < FEW:
        raise InputError("seed_variance.few_runs", runs=options.runs, least=FEW)
    runs = FULL_RUNS if options.full and options.runs == RUNS else options.runs
    changes = FULL_CHANGES if options.full else CHANGES
    device = choose_device(options.device)
    out = Transcript(options.lang)

    start = secrets.randbits(32) if options.seed is None else options.seed
    seeds = [(start + number) % 2**32 for number in range(runs)]
    kinds = changed(start, changes, known=options.seed is not None)
    short = [seeds_of(seed) | SHORT for seed in seeds]
    calls = [*short, *(one | {"decay": DECAY} for one in short)]
    calls += [LONG | one for of in kinds.values() for one in of]
    calls = [call | {"device": device} for call in calls]
    with isolate_rng(), one_thread():  # as in every process: the record names the number
        results_of = map_in_processes(train, calls, processes=options.processes)
        done = list(progress(results_of, "seed_variance.progress", options.lang, total=len(calls)))
        rights = [right for _, right in done[: 2 * runs]]
        rest = iter(done[2 * runs :])
        groups = {kind: [next(rest) for _ in of] for kind, of in kinds.items()}
        results = lottery(out, seeds, rights[:runs]) | two_methods(out, rights[:runs], rights[runs:])
        results |= one_ulp(out, groups) | {"runs": runs}
        kept = kept_runs(groups)
        record = make_record("seed_variance", argv, options, runs=kept, results=results, out=out)
    if options.plot:
        from repro_tutorial.plots import plot_divergence, plot_histograms, save_figure

        if options.figure == "histograms":
            figure = plot_histograms(results["histograms"], lang=options.lang)
        else:
            figure = plot_divergence(compare(*kept[:2], seed_runs=kept[2:]), lang=options.lang)
        save_figure(figure, options.plot)
    return record


if __name__ == "__main__":
    sys.exit(run(main))

"""Two fits of the same line differ until the seed is set.

Run:   python demos/line_fit.py             two runs without a seed: they part at step 1
       python demos/line_fit.py --seed 3    two runs from seed 3: equal on every bit
See:   the loss at ten steps of each run, then whether the runs agree and where they part.
Needs: a CPU and a few seconds.
"""

import sys
from collections.abc import Sequence
from statistics import median

import torch

from repro_tutorial.cli import choose_device, count, demo_parser, judge_runs, make_record, progress, run
from repro_tutorial.fingerprint import fingerprint_state_dict
from repro_tutorial.messages import Transcript
from repro_tutorial.rng_state import isolate_rng
from repro_tutorial.runs import Record, Recorder, Run

SLOPE = 10.0  # the line to find: y = 10 x
POINTS = 8  # x = 0, 1, ..., 7
HIDDEN = 100  # units in the one hidden layer
STEPS = 1000
LEARNING_RATE = 1e-4  # small, since the loss is a sum over the points, not a mean
SHOWN_RUNS = 2  # the losses of more runs are computed and compared, but not printed

# What the source's author saw with seed 3 on a GPU, by t, the number of steps done before.
SOURCE_LOSSES = {
    99: 10.655608177185059,
    199: 3.6195263862609863,
    299: 1.653144359588623,
    399: 0.9989959001541138,
    499: 0.712784469127655,
    599: 0.5509689450263977,
    699: 0.44407185912132263,
    799: 0.368024617433548,
    899: 0.3116675019264221,
    999: 0.2681158781051636,
}


def fit(name: str, seed: int | None, steps: int, device: str) -> Run:
    """One run: 8 points, a 1-100-1 network, gradient descent written out."""
    if seed is None:
        torch.seed()  # start from the operating system's entropy, as a fresh process does
    else:
        torch.manual_seed(seed)
    x = torch.arange(POINTS, dtype=torch.float32, device=device).unsqueeze(1)
    y = SLOPE * x
    # Built on the CPU, so that the initial weights come from the CPU's generator on every device.
    model = torch.nn.Sequential(torch.nn.Linear(1, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, 1))
    model.to(device)
    loss_fn = torch.nn.MSELoss(reduction="sum")

    recorder = Recorder(name, seed=seed)
    for _ in range(steps):
        loss = loss_fn(model(x), y)
        recorder.log(loss=loss.item())
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= LEARNING_RATE * parameter.grad
    return recorder.finish(weights=fingerprint_state_dict(model.state_dict()))


def show(out: Transcript, run: Run, device: str) -> None:
    """The losses of one run in the source's format: t and the loss, after every hundredth step."""
    out.print(f"Device: {device}")
    for t in range(99, len(run.metrics["loss"]), 100):
        out.print(f"{t} {run.metrics['loss'][t]}")
    out.print()


def judge(out: Transcript, runs: Sequence[Run]) -> dict[str, object]:
    """Say whether the runs agree and, of many, how widely they end; the same as numbers."""
    results = judge_runs(out, runs)
    if len(runs) > SHOWN_RUNS:
        last = sorted(run.metrics["loss"][-1] for run in runs)
        results["last"] = {"lowest": last[0], "median": median(last), "highest": last[-1]}
        out.say("line_fit.spread", **results["last"])
    return results


def compare_with_source(out: Transcript, losses: Sequence[float]) -> dict[str, object]:
    """The source's ten losses for seed 3 beside ours."""
    rows = [
        {"t": t, "source": theirs, "here": losses[t], "relative": abs(losses[t] - theirs) / theirs}
        for t, theirs in SOURCE_LOSSES.items()
        if t < len(losses)
    ]
    if not rows:
        return {}
    out.print()
    out.say("line_fit.source_header")
    for row in rows:
        out.print("{t:>4}  {source:<20} {here:<20} {relative:.1e}".format(**row))
    largest = max(row["relative"] for row in rows)
    out.say("line_fit.source_verdict", relative=largest)
    return {"source": rows, "source_max_relative": largest}


def main(argv: Sequence[str] | None = None) -> Record:
    """Fit the line as often as asked, say whether the runs agree, and return everything as a record."""
    parser = demo_parser("line_fit", argv, runs=2)
    parser.option("--steps", type=count, metavar="N", default=STEPS)
    options = parser.parse_args(argv)
    device = choose_device(options.device)
    out = Transcript(options.lang)

    shown = min(options.runs, SHOWN_RUNS)
    runs = []
    with isolate_rng():  # a caller's generators stay where they are
        for number in range(1, shown + 1):
            runs.append(fit(f"run {number}", options.seed, options.steps, device))
            key = "demo.run_unseeded" if options.seed is None else "demo.run_seeded"
            out.say(key, number=number, runs=options.runs, seed=options.seed)
            show(out, runs[-1], device)
        for number in progress(range(shown + 1, options.runs + 1), "line_fit.progress", options.lang):
            runs.append(fit(f"run {number}", options.seed, options.steps, device))

    results = judge(out, runs)
    if options.seed == 3:
        results |= compare_with_source(out, runs[0].metrics["loss"])
    if options.plot:
        from repro_tutorial.plots import plot_runs, save_figure

        save_figure(plot_runs(runs, lang=options.lang), options.plot)
    return make_record("line_fit", argv, options, runs=runs, results=results, out=out)


if __name__ == "__main__":
    sys.exit(run(main))

"""With convolutions on cuDNN a seed is not enough.

Run:   python demos/cifar_cudnn.py              two short runs without a seed: they part at batch 1
       python demos/cifar_cudnn.py --seed 3     two short runs from seed 3: equal on every bit
       python demos/cifar_cudnn.py --seed 3 --full --data cifar10 --shuffle torch-1.6
                                                the losses that the source printed, after two minutes
See:   the mean loss of the batches as the source prints it, then whether the runs agree and where they part.
Needs: a CPU and half a minute; for the last command CIFAR-10, which --download fetches (170 MB).
"""

import argparse
import contextlib
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, TypeAlias

import torch
from tqdm import tqdm

from repro_tutorial.checkpoint import interrupt_waits, load_checkpoint, save_checkpoint
from repro_tutorial.cli import (
    Parser,
    choose_device,
    count,
    demo_parser,
    make_record,
    progress,
    run,
    worker_count,
)
from repro_tutorial.datasets import (
    Pictures,
    download_cifar10,
    has_cifar10,
    load_cifar10,
    synthetic_pictures,
    torchvision_dataset,
)
from repro_tutorial.determinism import get_switches, set_deterministic, set_switches
from repro_tutorial.divergence import compare, distinct_outcomes
from repro_tutorial.fingerprint import fingerprint_state_dict, fingerprint_tensor
from repro_tutorial.messages import InputError, Transcript, text
from repro_tutorial.rng_state import get_rng_state, isolate_rng, set_rng_state
from repro_tutorial.runs import Record, Recorder, Run, check_new

BATCH = 4
LEARNING_RATE, MOMENTUM = 0.001, 0.9
STEPS = 2_000  # batches of a short run
FULL_STEPS = 25_000  # the source's two epochs of 12,500 batches
ROW = 2_000  # batches in the mean that a line prints; fewer in a short run, so that it has four lines
SAVE_EVERY = 1_000  # batches between two checkpoints
MOST_THREADS = 256  # PyTorch does not survive a hundred thousand threads
# The source has float32. Its rounding belongs to the processor, and after thousands of batches it shows in the
# printed digits; a full run has float64, whose rounding does not.
DTYPES = {"float64": torch.float64, "float32": torch.float32}
DATA = Path("data")

Finished: TypeAlias = tuple[list[Run], list[torch.Tensor]]
Save: TypeAlias = Callable[[Mapping[str, Any]], None]

# What the source's author saw with seed 3 on a GPU: the mean loss of every 2,000 batches.
SOURCE_LOSSES = {
    (1, 2000): 2.192,
    (1, 4000): 1.824,
    (1, 6000): 1.613,
    (1, 8000): 1.532,
    (1, 10000): 1.470,
    (1, 12000): 1.429,
    (2, 2000): 1.378,
    (2, 4000): 1.317,
    (2, 6000): 1.291,
    (2, 8000): 1.298,
    (2, 10000): 1.264,
    (2, 12000): 1.255,
}


def make_network() -> torch.nn.Module:
    """The network of PyTorch's tutorial on image classification, to which the source adds its seed."""
    return torch.nn.Sequential(
        *(torch.nn.Conv2d(3, 6, 5), torch.nn.ReLU(), torch.nn.MaxPool2d(2)),
        *(torch.nn.Conv2d(6, 16, 5), torch.nn.ReLU(), torch.nn.MaxPool2d(2), torch.nn.Flatten()),
        *(torch.nn.Linear(16 * 5 * 5, 120), torch.nn.ReLU()),
        *(torch.nn.Linear(120, 84), torch.nn.ReLU(), torch.nn.Linear(84, 10)),
    )


def epoch_order(pictures: int, shuffle: str) -> torch.Tensor:
    """The order of the pictures in an epoch: the draws of DataLoader, one for one."""
    torch.empty((), dtype=torch.int64).random_()  # the seed of the workers, drawn also where there are none
    if shuffle == "torch-1.6":
        return torch.randperm(pictures)
    seed = int(torch.empty((), dtype=torch.int64).random_())
    return torch.randperm(pictures, generator=torch.Generator().manual_seed(seed))


def preloaded(pixels: torch.Tensor, labels: torch.Tensor, shuffle: str) -> Iterator[list[torch.Tensor]]:
    """The batches of an epoch, cut from pictures that lie in memory: the fast path."""
    for chosen in epoch_order(len(pixels), shuffle).split(BATCH):
        # Divided as ToTensor and Normalize do it: times 1/255 would be other bits.
        yield [pixels[chosen].float().div_(255).sub_(0.5).div_(0.5), labels[chosen]]


class LegacyShuffle(torch.utils.data.Sampler[int]):
    """The shuffle of PyTorch 1.1 to 1.6: the whole order is drawn from the default generator."""

    def __init__(self, pictures: int) -> None:
        self.pictures = pictures

    def __len__(self) -> int:
        return self.pictures

    def __iter__(self) -> Iterator[int]:
        yield from torch.randperm(self.pictures).tolist()


def plain_loader(pictures: Pictures, shuffle: str, workers: int) -> torch.utils.data.DataLoader:
    """The source's own pipeline: torchvision's data set and transforms, PyTorch's DataLoader."""
    from torchvision.transforms import Compose, Normalize, ToTensor

    transform = Compose([ToTensor(), Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))])
    dataset = torchvision_dataset(pictures, transform)
    if shuffle == "torch-1.6":
        order: dict[str, Any] = {"sampler": LegacyShuffle(len(dataset))}
    else:
        order = {"shuffle": True}
    return torch.utils.data.DataLoader(dataset, batch_size=BATCH, num_workers=workers, **order)


class Training:
    """One run: the network, its optimizer, the loss of every batch so far, and how to save them."""

    def __init__(self, pictures: Pictures, options: argparse.Namespace, device: str) -> None:
        self.options, self.device, self.dtype = options, device, DTYPES[options.dtype]
        if options.workers is None:
            # Planes of color first, as the network wants them; bytes, since floats would take four times as much.
            pixels = torch.from_numpy(pictures.pixels).permute(0, 3, 1, 2).contiguous()
            labels = torch.from_numpy(pictures.labels)
            self.epoch = lambda: preloaded(pixels, labels, options.shuffle)
        else:
            loader = plain_loader(pictures, options.shuffle, options.workers)
            self.epoch = lambda: iter(loader)
        self.per_epoch = -(-len(pictures.labels) // BATCH)

    def start(self, saved: Mapping[str, Any] | None) -> None:
        """Seed, then make the network, whose weights are drawn on the CPU; or go on where `saved` was taken."""
        if self.options.seed is None:
            torch.seed()  # start from the operating system's entropy, as a fresh process does
        else:
            torch.manual_seed(self.options.seed)
        self.net = make_network().to(self.device, self.dtype)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
        self.losses: list[float] = []
        if saved:
            self.losses = saved["losses"].tolist()
            self.net.load_state_dict(saved["net"])
            self.optimizer.load_state_dict(saved["optimizer"])
            self.epoch_start = saved["epoch_start"]
            set_rng_state(saved["now"])

    def steps(self, lang: str) -> Iterator[int]:
        """Train to the end, and give the number of batches done after each."""
        loss_fn = torch.nn.CrossEntropyLoss()
        done = len(self.losses)
        batches: Iterator[Sequence[torch.Tensor]] = iter(())
        if done % self.per_epoch:  # resumed: draw this epoch again, and pass over what was trained on
            set_rng_state(self.epoch_start)
            batches = itertools.islice(self.epoch(), done % self.per_epoch, None)
        for step in progress(range(done, self.options.steps), "cifar_cudnn.progress", lang):
            if step % self.per_epoch == 0:
                self.epoch_start = get_rng_state()
                batches = self.epoch()
            images, labels = next(batches)
            self.optimizer.zero_grad()
            loss = loss_fn(self.net(images.to(self.device, self.dtype)), labels.to(self.device))
            loss.backward()
            self.optimizer.step()
            self.losses.append(loss.item())
            yield step + 1

    def state(self) -> dict[str, Any]:
        """All that the rest of the run depends on."""
        return {
            "losses": torch.tensor(self.losses, dtype=torch.float64),
            "net": self.net.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "epoch_start": self.epoch_start,
            "now": get_rng_state(),
        }

    def result(self) -> dict[str, Any]:
        """What a finished run leaves."""
        losses = torch.tensor(self.losses, dtype=torch.float64)
        return {"losses": losses, "weights": fingerprint_state_dict(self.net.state_dict())}


@contextlib.contextmanager
def chosen_switches(options: argparse.Namespace) -> Iterator[None]:
    """The source's two cuDNN switches, and what the options add; every switch as before after it."""
    before = get_switches()
    try:
        # One thread: with four pictures a batch, threads spend their time waiting for each other.
        torch.set_num_threads(options.threads)
        if options.algorithms:
            set_deterministic()  # CUBLAS_WORKSPACE_CONFIG too, or an error if it is too late for that
        torch.backends.cudnn.deterministic = options.deterministic
        torch.backends.cudnn.benchmark = not options.deterministic
        yield
    finally:
        set_switches(before)


def row_length(steps: int, per_epoch: int) -> int:
    """How many batches a printed line stands for."""
    return max(1, min(ROW, steps // 4, per_epoch))


def rows(losses: Sequence[float], row: int, per_epoch: int) -> list[tuple[int, int, int, float]]:
    """What is printed: epoch, batch in it, batch in all, and the mean loss of the batches since the last line."""
    return [
        (first // per_epoch + 1, last - first, last, fmean(losses[last - row : last]))
        for first in range(0, len(losses), per_epoch)
        for last in range(first + row, min(first + per_epoch, len(losses)) + 1, row)
    ]


def show(out: Transcript, lines: Sequence[tuple[int, int, int, float]]) -> None:
    """Lines in the source's format."""
    with tqdm.external_write_mode():  # the progress bar gives way
        for epoch, batch, _, loss in lines:
            out.print(f"[{epoch}, {batch}] loss: {loss:.3f}")


def train(training: Training, row: int, out: Transcript, save: Save, asked: Callable[[], bool]) -> None:
    """Train to the end of a run; print a line when it is due, save now and then and on Ctrl-C."""
    for step in training.steps(out.lang):
        if ((step - 1) % training.per_epoch + 1) % row == 0:
            show(out, rows(training.losses, row, training.per_epoch)[-1:])
        if asked() or step % SAVE_EVERY == 0:
            save(training.state())
        if asked():
            raise KeyboardInterrupt


def make_runs(training: Training, settings: Mapping[str, Any], out: Transcript) -> Finished:
    """Train as often as asked, from the checkpoint where there is one: the runs, and all losses of each."""
    options, per_epoch = training.options, training.per_epoch
    row = row_length(options.steps, per_epoch)
    saved = restore(options.checkpoint, settings, out.lang)
    finished: list[dict[str, Any]] = saved.get("finished", [])
    begun = saved.get("training")

    runs = []
    with interrupt_waits() as asked:

        def save(state: Mapping[str, Any]) -> None:
            if options.checkpoint:
                whole = {"settings": settings, "finished": finished, "training": state}
                save_checkpoint(options.checkpoint, whole)
                if asked():
                    tell("cifar_cudnn.saved", whole, out.lang)

        for number in range(1, options.runs + 1):
            key = "demo.run_unseeded" if options.seed is None else "demo.run_seeded"
            out.say(key, number=number, runs=options.runs, seed=options.seed)
            out.print(f"Device: {training.device}")
            if number > len(finished):
                training.start(begun)
                begun = None
                show(out, rows(training.losses, row, per_epoch))  # those of before the interruption
                train(training, row, out, save, asked)
                finished.append(training.result())
            else:
                show(out, rows(finished[number - 1]["losses"].tolist(), row, per_epoch))
            out.print("Finished Training")
            out.print()
            runs.append(as_run(number, options.seed, finished[number - 1], row, per_epoch))
    return runs, [one["losses"] for one in finished]


def restore(path: Path | None, settings: Mapping[str, Any], lang: str) -> dict[str, Any]:
    """The checkpoint at `path`, if there is one; it must come from the same settings."""
    if path is None or not path.exists():
        return {}
    saved = load_checkpoint(path)
    others = saved.get("settings")
    if not isinstance(others, dict) or not saved.keys() >= {"finished", "training"}:
        raise InputError("checkpoint.unreadable", file=path)
    names = [name for name, value in settings.items() if others.get(name) != value]
    if names:
        raise InputError("cifar_cudnn.other_settings", file=path, names=names)
    tell("cifar_cudnn.resumed", saved, lang)
    return saved


def tell(key: str, saved: Mapping[str, Any], lang: str) -> None:
    """Say where a checkpoint was taken; not in the transcript, which is that of a run without interruption."""
    run, step = len(saved["finished"]) + 1, len(saved["training"]["losses"])
    print(text(key, lang, run=run, step=step), file=sys.stderr)


def as_run(number: int, seed: int | None, result: Mapping[str, Any], row: int, per_epoch: int) -> Run:
    """A finished run: the means that were printed, and fingerprints of every batch's loss and of the weights."""
    recorder = Recorder(f"run {number}", seed=seed)
    for _, _, step, loss in rows(result["losses"].tolist(), row, per_epoch):
        recorder.log(step=step, loss=loss)
    return recorder.finish(batch_losses=fingerprint_tensor(result["losses"]), weights=result["weights"])


def judge(out: Transcript, runs: Sequence[Run], losses: Sequence[torch.Tensor]) -> dict[str, Any]:
    """Say whether the runs agree, at which batch they part and how far; the same as numbers."""
    results: dict[str, Any] = {"runs": len(runs), "different": distinct_outcomes(runs)}
    results["batches"] = len(losses[0])
    if len(runs) == 1:
        out.say("demo.one_run")
        return results
    partings = [int(batch) + 1 for other in losses[1:] for batch in torch.nonzero(losses[0] != other)[:1]]
    divergences = [compare(runs[0], other) for other in runs[1:]]
    widest = max(divergences, key=lambda divergence: divergence.max_abs)
    results |= {"divergence": widest.summary(), "first_batch": min(partings, default=None)}
    if results["different"] == 1:
        out.say("cifar_cudnn.identical", runs=len(runs), batches=results["batches"])
    elif partings:
        told = {"runs": len(runs), "different": results["different"], "batch": min(partings)}
        out.say("cifar_cudnn.part", **told, gap=widest.max_abs, step=widest.max_abs_step)
    else:
        out.say("demo.weights_differ", runs=len(runs))
    return results


def compare_with_source(out: Transcript, losses: Sequence[float]) -> dict[str, Any]:
    """The source's table for seed 3 beside ours, to the three decimals that it prints."""
    table = [
        {"epoch": epoch, "batch": batch, "source": theirs, "here": round(here, 3)}
        for ((epoch, batch), theirs), here in zip(SOURCE_LOSSES.items(), losses, strict=True)
    ]
    for line in table:
        line["difference"] = round(line["here"] - line["source"], 3)
    out.print()
    out.say("cifar_cudnn.source_header")
    for line in table:
        out.print(
            "[{epoch}, {batch:>5}]     {source:.3f}             {here:.3f}    {difference:+.3f}".format(
                **line
            )
        )
    largest = max(abs(line["difference"]) for line in table)
    out.say("cifar_cudnn.source_verdict", largest=largest, first=table[0]["difference"])
    return {"source": table, "source_max_abs": largest}


def get_pictures(options: argparse.Namespace, out: Transcript) -> Pictures:
    """The data that the options ask for; the first line of the output says which."""
    name = options.data or ("cifar10" if options.download or has_cifar10(options.data_dir) else "synthetic")
    if name == "synthetic":
        pictures = synthetic_pictures()
        out.say("cifar_cudnn.data_synthetic", pictures=len(pictures.labels))
        return pictures
    if options.download:
        download_cifar10(options.data_dir, options.mirror)
    pictures = load_cifar10(options.data_dir, verify=not options.unverified_data)
    key = "cifar_cudnn.data_verified" if pictures.verified else "cifar_cudnn.data_unverified"
    out.say(key, pictures=len(pictures.labels))
    return pictures


def thread_count(given: str) -> int:
    """A number of threads from the command line."""
    if not given.strip().isdecimal() or not 1 <= int(given) <= MOST_THREADS:
        raise InputError("cifar_cudnn.bad_threads", given=repr(given), most=MOST_THREADS)
    return int(given)


def checkpoint_file(given: str) -> Path:
    """The path of a checkpoint: one that is there, or that can be made."""
    if not Path(given).exists():
        check_new(Path(given))
    return Path(given)


def add_options(parser: Parser) -> None:
    """What this demo takes besides the options of all demos."""
    on_or_off = argparse.BooleanOptionalAction
    parser.option("--steps", type=count, metavar="N", default=STEPS, about="cli.help_batches")
    parser.option("--full", action="store_const", dest="steps", const=FULL_STEPS)
    parser.option("--shuffle", choices=("current", "torch-1.6"), default="current")
    parser.option("--deterministic", action=on_or_off, default=True)
    parser.option("--algorithms", action="store_true")
    parser.option("--dtype", choices=DTYPES)
    parser.option("--threads", type=thread_count, metavar="N", default=1)
    parser.option("--workers", type=worker_count, metavar="N")
    parser.option("--checkpoint", type=checkpoint_file, metavar="FILE")
    parser.option("--data", choices=("cifar10", "synthetic"))
    parser.option("--data-dir", type=Path, metavar="DIR", default=DATA)
    parser.option("--download", action="store_true")
    parser.option("--mirror", metavar="URL")
    parser.option("--unverified-data", action="store_true")


def main(argv: Sequence[str] | None = None) -> Record:
    """Train as often as asked, say whether the runs agree, and return everything as a record."""
    parser = demo_parser("cifar_cudnn", argv, runs=2)
    add_options(parser)
    options = parser.parse_args(argv)
    device = choose_device(options.device)
    if options.dtype is None:
        options.dtype = "float64" if options.steps == FULL_STEPS else "float32"
    if device == "mps" and options.dtype == "float64":
        raise InputError("cifar_cudnn.no_double")
    out = Transcript(options.lang)

    pictures = get_pictures(options, out)
    fingerprint = fingerprint_state_dict({"pixels": pictures.pixels, "labels": pictures.labels})
    names = ("seed", "runs", "steps", "shuffle", "workers", "threads", "deterministic", "algorithms", "dtype")
    settings = {name: getattr(options, name) for name in names}
    settings |= {"device": device, "data": fingerprint, "torch": str(torch.__version__)}
    # A caller's generators and switches stay where they are.
    with isolate_rng(), chosen_switches(options):
        training = Training(pictures, options, device)
        runs, losses = make_runs(training, settings, out)

    results = judge(out, runs, losses)
    if options.seed == 3 and options.steps == FULL_STEPS and pictures.name == "cifar10":
        results |= compare_with_source(out, runs[0].metrics["loss"])
    key = "cifar_cudnn.cudnn_used" if device == "cuda" else "cifar_cudnn.cudnn_unused"
    out.say(key, device=device, deterministic=options.deterministic, benchmark=not options.deterministic)
    results["data"] = {
        "name": pictures.name,
        "pictures": len(pictures.labels),
        "verified": pictures.verified,
        "origin": dict(pictures.origin),
        "fingerprint": fingerprint,
    }
    if options.plot:
        from repro_tutorial.plots import plot_runs, save_figure

        save_figure(plot_runs(runs, lang=options.lang), options.plot)
    record = make_record("cifar_cudnn", argv, options, runs=runs, results=results, out=out)
    if options.checkpoint:
        options.checkpoint.unlink(missing_ok=True)  # there is nothing left to go on with
    return record


if __name__ == "__main__":
    sys.exit(run(main))

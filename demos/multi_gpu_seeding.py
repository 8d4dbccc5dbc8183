"""manual_seed_all gives every GPU the same stream; each rank needs one of its own.

Run:   python demos/multi_gpu_seeding.py --gpus 4    virtual GPUs: who draws what after which seeding
       python demos/multi_gpu_seeding.py --ddp       two real processes train with DistributedDataParallel
       torchrun --nproc-per-node 2 demos/multi_gpu_seeding.py --ddp       the same, started by hand
See:   the same four numbers and the same dropout mask on every GPU, and the seeds that keep them apart.
Needs: a CPU and a few seconds; the CUDA numbers are recomputed, so that no GPU is needed.
"""

import contextlib
import io
import os
import secrets
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record as report_errors
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

from repro_tutorial.cli import choose_device, count, demo_parser, make_record, run, without_outputs
from repro_tutorial.divergence import compare, distinct_outcomes
from repro_tutorial.fingerprint import fingerprint_state_dict, fingerprint_tensor
from repro_tutorial.messages import InputError, Transcript, render, text
from repro_tutorial.processes import run_torchrun
from repro_tutorial.rng_state import isolate_rng
from repro_tutorial.runs import Record, Recorder, Run
from repro_tutorial.seeding import derive_seed, make_generator, seed_everything
from repro_tutorial.virtual_cuda import RULES_OF, VirtualCluster, VirtualCudaGenerator, warn_of_newer_torch

SOURCE_SEED = 42  # the source document's, where none is given
LISTED = 16  # GPUs whose numbers are printed
SHOWN = 4  # GPUs whose masks are drawn
SIZE = 10  # pixels of a mask, and of a picture, along an edge
SEEDS, RANKS = 20, 16  # experiments and ranks that `seed + rank` is to keep apart
LETTER = ("#####", "#....", "###..", "#....", "#....")  # the picture that is augmented
RELEASE = ".".join(map(str, RULES_OF))  # of PyTorch: whose rules the CUDA numbers follow

PROCESSES = 2  # ranks that we start where torchrun did not
SAMPLES, TRAINED, FEATURES = 128, 96, 8
GLOBAL_BATCH = 24  # divided among the ranks
EPOCHS, LEARNING_RATE = 15, 0.1
STEPS = EPOCHS * TRAINED // GLOBAL_BATCH
METHODS = ("none", "same", "own", "same_then_own")


# Virtual GPUs -----------------------------------------------------------------------------------------------


def nothing(cuda: VirtualCluster, seed: int) -> None:
    """No line at all."""


def all_gpus(cuda: VirtualCluster, seed: int) -> None:
    cuda.manual_seed_all(seed)


def first_gpu(cuda: VirtualCluster, seed: int) -> None:
    cuda.manual_seed(seed)  # the current device: GPU 0


def cpu_only(cuda: VirtualCluster, seed: int) -> None:
    torch.default_generator.manual_seed(seed)


def everything(cuda: VirtualCluster, seed: int) -> None:
    torch.manual_seed(seed)
    cuda.manual_seed_all(seed)  # torch.manual_seed does this by itself, on real GPUs


def inside_if(cuda: VirtualCluster, seed: int) -> None:
    if torch.cuda.is_available():  # of the machine that this runs on
        torch.manual_seed(seed)
        cuda.manual_seed_all(seed)


def own_seeds(cuda: VirtualCluster, seed: int) -> None:
    torch.manual_seed(seed)
    for rank in range(len(cuda)):
        cuda.manual_seed(derive_seed(seed, rank), device=rank)


SEEDINGS = (nothing, all_gpus, first_gpu, cpu_only, everything, inside_if, own_seeds)


def start_unseeded(gpus: int, gpu: str) -> VirtualCluster:
    """A fresh process: every generator starts from the operating system's entropy, each from its own."""
    torch.seed()
    cuda = VirtualCluster(gpus, gpu)
    for generator in cuda:
        generator.seed()
    return cuda


def tensors(seeding: Callable[..., None], seed: int, gpus: int, gpu: str) -> list[list[float]]:
    """torch.rand(2, 2) on every GPU, then on the CPU, in a fresh process that is seeded so."""
    cuda = start_unseeded(gpus, gpu)
    seeding(cuda, seed)
    return [generator.rand(2, 2).ravel().tolist() for generator in cuda] + [torch.rand(2, 2).ravel().tolist()]


def what_repeats(seeding: Callable[..., None], seed: int, gpus: int, gpu: str) -> dict[str, int]:
    """Two fresh processes: how many tensors the GPUs have among them, and who has the same in both."""
    first, second = (tensors(seeding, seed, gpus, gpu) for _ in range(2))
    repeats = [a == b for a, b in zip(first, second, strict=True)]
    different = len({tuple(numbers) for numbers in first[:-1]})
    return {"different": different, "repeat": sum(repeats[:-1]), "cpu": int(repeats[-1])}


def mask_and_picture(generator: VirtualCudaGenerator) -> tuple[list[int], list[int]]:
    """What a GPU draws in a step: a dropout mask, then shift and flip of a picture; pixels row by row."""
    mask = generator.dropout_mask(0.5, (SIZE, SIZE))
    picture = np.zeros((SIZE, SIZE), dtype=int)
    picture[3:8, 3:8] = [[dot == "#" for dot in row] for row in LETTER]
    picture = np.roll(picture, generator.randint(-2, 3, (2,)), axis=(0, 1))
    picture = picture[:, ::-1] if generator.rand(1) < 0.5 else picture
    return mask.astype(int).ravel().tolist(), picture.ravel().tolist()


def distinct_seeds(derive: Callable[[int, int], int]) -> int:
    """How many seeds `derive` makes for all ranks of all experiments."""
    return len({derive(seed, rank) for seed in range(SEEDS) for rank in range(RANKS)})


def gpu_main(argv: Sequence[str] | None, options: Any, device: str) -> Record:
    """The source's experiment on virtual GPUs: numbers, who repeats, masks, seeds for ranks."""
    seed, gpus, gpu, out = options.seed, options.gpus, options.gpu, Transcript(options.lang)
    runs = []
    for number in range(1, options.runs + 1):
        recorder = Recorder(f"run {number}", seed=seed)
        drawn = tensors(all_gpus, seed, gpus, gpu)[:-1]  # manual_seed_all leaves the CPU alone
        for numbers in zip(*drawn, strict=True):
            recorder.log(**{f"gpu_{place}": value for place, value in enumerate(numbers)})
        runs.append(recorder.finish())
    list_numbers(out, drawn, seed)
    cpu = tensors(everything, seed, 1, gpu)[-1]
    out.print("CPU".ljust(8) + " ".join(f"{value:.4f}" for value in cpu))
    check_device(out, device, options, drawn[0])

    out.say("multi_gpu_seeding.head")
    repeats = {}
    for seeding in SEEDINGS:
        label = {"key": f"multi_gpu_seeding.seeded_{seeding.__name__}", "values": {"seed": seed}}
        facts = repeats[seeding.__name__] = what_repeats(seeding, seed, gpus, gpu)
        yes_or_no = {"key": "demo.yes" if facts["cpu"] else "demo.no"}
        out.say("multi_gpu_seeding.row", **facts | {"cpu": yes_or_no}, label=label)
    out.print()

    pictures, streams = [], []
    for seeding in (all_gpus, own_seeds):
        cuda = start_unseeded(gpus, gpu)
        seeding(cuda, seed)
        masks, augmented = zip(*map(mask_and_picture, list(cuda)[:SHOWN]), strict=True)
        for kind, images in (("masks", masks), ("augmented", augmented)):
            label = {"key": f"multi_gpu_seeding.shown_{kind}_{seeding.__name__}", "values": {"seed": seed}}
            pictures.append({"label": label, "images": list(images)})
            show(out, label, images)
        for place, numbers in enumerate(tensors(seeding, seed, gpus, gpu)[: min(gpus, 2)]):
            label = {"key": f"multi_gpu_seeding.stream_{seeding.__name__}", "values": {"gpu": place}}
            streams.append({"label": label, "numbers": numbers})
    collisions = {
        "all": SEEDS * RANKS,
        "sum": distinct_seeds(lambda seed, rank: seed + rank),
        "derived": distinct_seeds(derive_seed),
    }
    out.say("multi_gpu_seeding.collisions", seeds=SEEDS, ranks=RANKS, **collisions)
    different = distinct_outcomes(runs)
    if len(runs) == 1:
        out.say("demo.one_run")
    else:
        key = "demo.identical" if different == 1 else "multi_gpu_seeding.not_identical"
        out.say(key, runs=len(runs), different=different)
    results = {
        "runs": len(runs),
        "different": different,
        "gpus": gpus,
        "gpu": gpu,
        "release": RELEASE,
        "cpu": cpu,
    }
    results |= {"repeats": repeats, "collisions": collisions, "pictures": pictures, "streams": streams}
    if options.plot:
        from repro_tutorial.plots import plot_pictures, save_figure

        save_figure(plot_pictures(pictures, lang=options.lang), options.plot)
    return make_record("multi_gpu_seeding", argv, options, runs=runs, results=results, out=out)


def list_numbers(out: Transcript, drawn: Sequence[list[float]], seed: int) -> None:
    """What the first GPUs drew, a line for each."""
    out.print(f"torch.cuda.manual_seed_all({seed}); torch.rand(2, 2)")
    for place, numbers in enumerate(drawn[:LISTED]):
        out.print(f"GPU {place}*".ljust(8) + " ".join(f"{value:.4f}" for value in numbers))
    if len(drawn) > LISTED:
        out.say("multi_gpu_seeding.more", more=len(drawn) - LISTED, same=drawn[LISTED:].count(drawn[0]))


def check_device(out: Transcript, device: str, options: Any, numbers: Sequence[float]) -> None:
    """Say by which rules the CUDA numbers were made; where there are CUDA devices, whether they draw them too."""
    out.say("multi_gpu_seeding.recomputed", gpus=options.gpus, gpu=options.gpu, release=RELEASE)
    if device == "cuda":
        torch.cuda.manual_seed_all(options.seed)
        for place in range(torch.cuda.device_count()):
            agree = torch.rand(2, 2, device=f"cuda:{place}").ravel().tolist() == numbers
            key = "multi_gpu_seeding.agrees" if agree else "multi_gpu_seeding.disagrees"
            out.say(key, place=place, name=torch.cuda.get_device_name(place))
    else:
        out.say("demo.no_device")
    out.print()


def show(out: Transcript, label: Any, images: Sequence[Sequence[int]]) -> None:
    """One image per GPU, side by side."""
    out.say("multi_gpu_seeding.images", label=label, gpus=len(images), different=len(set(map(tuple, images))))
    for row in range(SIZE):
        dots = ["".join(".#"[dot] for dot in image[row * SIZE : (row + 1) * SIZE]) for image in images]
        out.print("  ".join(dots))
    out.print()


# Real processes ---------------------------------------------------------------------------------------------


def start(method: str, seed: int, rank: int) -> tuple[torch.nn.Sequential, list[int]]:
    """Seed this rank, split the samples, make the model: the order is the method."""
    if method == "none":
        seed_everything(secrets.randbits(32))
    elif method == "own":
        seed_everything(derive_seed(seed, rank))
    else:
        seed_everything(seed)  # equal on all ranks: the split and the initial weights
    order = torch.randperm(SAMPLES).tolist()
    model = torch.nn.Sequential(
        torch.nn.Linear(FEATURES, 32), torch.nn.Tanh(), torch.nn.Dropout(0.5), torch.nn.Linear(32, 1)
    )
    if method == "same_then_own":
        seed_everything(derive_seed(seed, rank))  # different on each: dropout and augmentation
    return model, order


def train(
    method: str, seed: int, device: str, *, group: Any = None, random: bool = True, sync: bool = True
) -> dict[str, Any]:
    """One training, as this rank sees it: the loss of all samples after each step, and what was drawn."""
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    model, order = start(method, seed, rank)
    model.to(device).train(random)  # without dropout, if not random
    masks: list[str] = []
    model[2].register_forward_hook(
        lambda layer, inputs, output: (
            masks.append(fingerprint_tensor(output != 0)) if layer.training else None
        )
    )
    initial = fingerprint_state_dict(model.state_dict())
    parallel = DistributedDataParallel(
        model, process_group=group, init_sync=sync
    )  # sends rank 0's weights to all

    x = torch.randn(SAMPLES, FEATURES, generator=make_generator(0))
    data = TensorDataset(x, x[:, :2].sum(1, keepdim=True).tanh())
    mine = Subset(data, order[:TRAINED])
    # Equal on all ranks, each of which takes its part; left out, it is 0, whatever else is seeded.
    sampler = DistributedSampler(mine, world, rank, seed=0 if method == "none" else seed)
    loader = DataLoader(mine, GLOBAL_BATCH // world, sampler=sampler)
    losses, noises, orders = [], [], []
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        orders.append([order[place] for place in sampler])
        for inputs, target in loader:
            noise = (
                0.1 * torch.randn(inputs.shape, device=device) if random else torch.zeros(1, device=device)
            )
            noises.append(fingerprint_tensor(noise))
            model.zero_grad()
            torch.nn.functional.mse_loss(parallel(inputs.to(device) + noise), target.to(device)).backward()
            with torch.no_grad():
                for weight in model.parameters():  # SGD
                    weight -= LEARNING_RATE * weight.grad
            losses.append(loss_of_all(model, data))
    return {
        "losses": losses,
        "trained": set(order[:TRAINED]),
        "validated": set(order[TRAINED:]),
        "initial": initial,
        "masks": masks,
        "noises": noises,
        "orders": orders,
        "final": fingerprint_state_dict(model.state_dict()),
    }


def loss_of_all(model: torch.nn.Module, data: TensorDataset) -> float:
    """The loss of all samples without dropout: it depends on nothing but the weights."""
    device, training = next(model.parameters()).device, model.training
    x, target = (part.to(device) for part in data.tensors)
    with torch.no_grad():
        loss = torch.nn.functional.mse_loss(model.eval()(x), target).item()
    model.train(training)
    return loss


def gather(facts: dict[str, Any], seed: int | None, name: str) -> tuple[list[Run], dict[str, Any]]:
    """A training's run on each rank, and what the ranks had in common."""
    ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, facts)
    runs = []
    for of in ranks:
        recorder = Recorder(name, seed=seed)
        for loss in of["losses"]:
            recorder.log(loss=loss)
        runs.append(recorder.finish(weights=of["final"]))
    common = {
        "initial": len({of["initial"] for of in ranks}),
        "final": len({of["final"] for of in ranks}),
        "leaked": len(
            set.union(*(of["trained"] for of in ranks)) & set.union(*(of["validated"] for of in ranks))
        ),
        "masks": sum(len(set(step)) == 1 for step in zip(*(of["masks"] for of in ranks), strict=True)),
        "noises": sum(len(set(step)) == 1 for step in zip(*(of["noises"] for of in ranks), strict=True)),
        "steps": len(ranks[0]["losses"]),
        "same_places": sum(a == b for a, b in zip(*ranks[0]["orders"][:2], strict=True)),
        "taken_twice": TRAINED - len({sample for of in ranks for sample in of["orders"][0]}),
        "weights": ranks[0]["final"][:8],
    }
    return runs, common


def same_places(set_epoch: bool, seed: int) -> int:
    """How many samples of rank 0 stand at the same place in the second epoch as in the first."""
    sampler = DistributedSampler(range(TRAINED), PROCESSES, 0, seed=seed)
    first = list(sampler)
    sampler.set_epoch(int(set_epoch))
    return sum(a == b for a, b in zip(first, sampler, strict=True))


def train_all(argv: Sequence[str] | None, options: Any, device: str) -> Record:
    """Every method as often as asked, then three trainings that show one thing each; said, and recorded."""
    seed, world, out = options.seed, dist.get_world_size(), Transcript(options.lang)
    out.say("multi_gpu_seeding.ddp", ranks=world, backend=dist.get_backend(), device=device, steps=STEPS)
    out.print()
    out.say("multi_gpu_seeding.ddp_head")
    runs, methods = [], {}
    for method in METHODS:
        label = {"key": f"multi_gpu_seeding.method_{method}", "values": {"seed": seed}}
        known = None if method == "none" else seed
        made = [gather(train(method, seed, device), known, f"run {n}") for n in range(1, options.runs + 1)]
        repeated = [of for of, _ in made]
        runs += [of[0] for of in repeated]
        different = max(distinct_outcomes(of) for of in zip(*repeated, strict=True))
        methods[method] = made[0][1] | {"different": different}
        out.say("multi_gpu_seeding.ddp_row", **methods[method], label=label)
    out.print()

    apart = gather(train("none", seed, device, sync=False), None, "rank")[0]
    ranks = [replace(of, name=f"rank {number}") for number, of in enumerate(apart)]
    alone_group = [dist.new_group([rank]) for rank in range(world)][dist.get_rank()]
    alone = gather(train("same", seed, device, group=alone_group, random=False), seed, "world size 1")[0][0]
    together = gather(train("same", seed, device, random=False), seed, f"world size {world}")[0][0]
    runs += [ranks[0], ranks[-1], alone, together]
    results = {
        "ranks": world,
        "methods": methods,
        "unsynced": compare(ranks[0], ranks[-1]).summary(),
        "world": compare(alone, together).summary() | {"final": together.metrics["loss"][-1]},
        "sampler": {"drawn": TRAINED // PROCESSES} | {f"epoch_{on}": same_places(on, seed) for on in (0, 1)},
        "runs": options.runs,
        "different": distinct_outcomes(runs),
    }
    out.say("multi_gpu_seeding.unsynced", last=world - 1, **results["unsynced"])
    out.say("multi_gpu_seeding.sampler", **results["sampler"])
    out.say("multi_gpu_seeding.world", ranks=world, **results["world"])
    parted = [method for method in METHODS if methods[method]["different"] > 1]
    if options.runs == 1:
        out.say("demo.one_run")
    elif parted == ["none"]:
        out.say("multi_gpu_seeding.ddp_expected", runs=options.runs)
    else:
        out.say("multi_gpu_seeding.ddp_unexpected", runs=options.runs, parted=parted)
    if options.plot and dist.get_rank() == 0:
        from repro_tutorial.plots import plot_divergence, save_figure

        save_figure(plot_divergence(compare(alone, together), lang=options.lang), options.plot)
    options.json = options.json if dist.get_rank() == 0 else None
    return make_record("multi_gpu_seeding", argv, options, runs=runs, results=results, out=out)


@report_errors  # so that what a rank raises reaches torchrun, and through it whoever started it
def rank_main(argv: Sequence[str] | None, options: Any) -> Record:
    """What each process does that torchrun has started. Rank 0 alone prints and writes."""
    here, local_rank = (int(os.environ[name]) for name in ("LOCAL_WORLD_SIZE", "LOCAL_RANK"))
    on_gpus = options.device in ("auto", "cuda") and torch.cuda.device_count() >= here
    if options.device == "cuda" and not on_gpus:
        raise InputError("multi_gpu_seeding.few_gpus", ranks=here, gpus=torch.cuda.device_count())
    if on_gpus:
        torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl" if on_gpus else "gloo", timeout=timedelta(seconds=60))
    try:
        if GLOBAL_BATCH % dist.get_world_size():
            raise InputError("multi_gpu_seeding.bad_ranks", ranks=dist.get_world_size(), batch=GLOBAL_BATCH)
        with contextlib.redirect_stdout(io.StringIO() if dist.get_rank() else sys.stdout):
            return train_all(argv, options, "cuda" if on_gpus else "cpu")
    finally:
        dist.destroy_process_group()


def launch(argv: Sequence[str] | None, options: Any) -> Record:
    """Under plain Python: start the ranks by torchrun, print what rank 0 would have, and return its record."""
    print(text("multi_gpu_seeding.launching", options.lang, ranks=PROCESSES), file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "record.json")
        arguments = [*without_outputs(argv), "--lang", options.lang, "--json", str(path)]
        if options.plot:
            arguments += ["--plot", str(options.plot)]
        run_torchrun(Path(__file__), arguments, ranks=PROCESSES, port=options.port)
        record = Record.load(path)
    for line in record.transcript:
        print(render(line, options.lang))
    if options.json:
        record.save(options.json)
    return record


def main(argv: Sequence[str] | None = None) -> Record:
    """The experiment on virtual GPUs, or with ``--ddp`` the one in real processes."""
    parser = demo_parser("multi_gpu_seeding", argv, runs=2, seed=SOURCE_SEED)
    parser.option("--gpus", type=count, metavar="N", default=2)
    parser.option("--gpu", metavar="NAME", default="A100")
    parser.option("--ddp", action="store_true")
    parser.option("--port", type=count, metavar="N")
    options = parser.parse_args(argv)
    VirtualCluster(options.gpus, options.gpu)  # bad values are told before any work
    device = choose_device(options.device)
    if options.ddp:
        if device == "mps":
            raise InputError("multi_gpu_seeding.no_mps")
        return rank_main(argv, options) if dist.is_torchelastic_launched() else launch(argv, options)
    warn_of_newer_torch()
    with isolate_rng():  # a caller's generators stay where they are
        return gpu_main(argv, options, device)


if __name__ == "__main__":
    sys.exit(run(main))

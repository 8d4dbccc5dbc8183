"""A checkpoint is whole or not there, a training state is loaded whole or not at all; Ctrl-C waits in the block."""

import copy
import itertools
import json
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler

from repro_tutorial.checkpoint import (
    ResumableLoader,
    _new_partial,
    interrupt_waits,
    load_checkpoint,
    load_training_state,
    save_checkpoint,
    save_training_state,
)
from repro_tutorial.fingerprint import fingerprint_state_dict
from repro_tutorial.messages import InputError
from repro_tutorial.rng_state import advanced_generators, get_rng_state, isolate_rng, set_rng_state
from repro_tutorial.seeding import make_generator

KILLS, KILL_SEED = 200, 11


# Files ------------------------------------------------------------------------------------------------------


def test_what_is_saved_comes_back(tmp_path):
    path = tmp_path / "a.pt"
    save_checkpoint(path, {"step": 1, "weights": torch.ones(2)})
    save_checkpoint(path, {"step": 2, "weights": torch.zeros(2)})
    state = load_checkpoint(path)
    assert state["step"] == 2
    assert torch.equal(state["weights"], torch.zeros(2))
    assert list(tmp_path.iterdir()) == [path]


def test_a_failure_leaves_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "a.pt"
    save_checkpoint(path, {"step": 1})

    def full(*given):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(InputError, match="the disk is full"):
        save_checkpoint(path, {"step": 2})
    monkeypatch.undo()
    assert load_checkpoint(path) == {"step": 1}
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork and SIGKILL")
def test_kills_lose_nothing(tmp_path):
    """200 processes killed while they save; then one at each of some bytes, and around each call that reaches the disk.

    To see that the kills do hit: the same ones, of a save that writes in place, lose states.
    """
    script = Path(__file__).with_name("killed_saves.py")
    command = [sys.executable, script, tmp_path, str(KILLS), str(KILL_SEED)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["random"]["lost"] == []
    assert facts["random"]["halves"] > KILLS / 20, "the kills came at other moments than those of writing"
    assert facts["random"]["steps"] > 10
    assert facts["bytes"]["lost"] == []
    assert facts["bytes"]["halves"] > 10
    assert facts["calls"] == {
        **dict.fromkeys(["before fsync", "after fsync", "before replace"], 1),
        **dict.fromkeys(["after replace", "before unlink", "after unlink", "before glob", "after glob"], 2),
    }
    assert facts["random"]["left"] == facts["bytes"]["left"] == 0, "leftovers of killed processes stay"
    assert facts["in_place"]["lost"], "this test cannot fail"


def test_a_leftover_is_removed_and_a_file_in_work_is_not(tmp_path):
    path = tmp_path / "a[1].pt"  # brackets mean something to glob
    leftover, others = tmp_path / ".a[1].pt.123.partial", tmp_path / ".b.pt.123.partial"
    leftover.touch()
    others.touch()
    partial, file = _new_partial(path)
    with file:
        save_checkpoint(path, {"step": 1})
        assert sorted(tmp_path.iterdir()) == sorted([path, partial, others])
    save_checkpoint(path, {"step": 2})
    assert sorted(tmp_path.iterdir()) == sorted([path, others])


def test_what_no_safe_load_would_read_is_refused_before_it_replaces_anything(tmp_path):
    path = tmp_path / "a.pt"
    save_checkpoint(path, {"step": 1})
    with pytest.raises(InputError) as caught:
        save_checkpoint(path, {"step": np.float64(2)})
    assert str(caught.value) == (
        f"cannot save {path}: a part's state holds a numpy._core.multiarray.scalar, which no safe load would"
        " read; let its state_dict return tensors and plain data"
    )
    assert load_checkpoint(path) == {"step": 1}
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("cut", [0, 1, 100, -1], ids=["empty", "a byte", "some bytes", "all but a byte"])
def test_a_file_cut_short_is_refused(cut, tmp_path):
    path = tmp_path / "a.pt"
    save_checkpoint(path, {"step": 1, "weights": torch.ones(100)})
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(InputError, match="it is no whole checkpoint; remove it to start again"):
        load_checkpoint(path)


# The state of a training ------------------------------------------------------------------------------------


def make_parts(width=3, **others):
    model = torch.nn.Sequential(torch.nn.Linear(2, width), torch.nn.Dropout(0.5), torch.nn.Linear(width, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    loader = ResumableLoader(
        DataLoader(torch.eye(2).repeat(5, 1), 3, shuffle=True, generator=make_generator(5))
    )
    noise = np.random.default_rng(7)
    return {
        "model": model,
        "optimizer": optimizer,
        "scheduler": scheduler,
        "loader": loader,
        "noise": noise,
    } | others


def losses_of(parts):
    """The losses of a training without an end, one by one."""
    while True:
        for batch in parts["loader"]:
            parts["optimizer"].zero_grad()
            shift = random.random() + np.random.rand() + parts["noise"].random()
            loss = (parts["model"](batch) - shift).square().mean()
            loss.backward()
            parts["optimizer"].step()
            parts["scheduler"].step()
            yield loss.item()


def train(parts, steps):
    return list(itertools.islice(losses_of(parts), steps))


def facts_of(parts):
    """All that a load changes, to be compared."""
    dicts = {name: part.state_dict() for name, part in parts.items() if name != "noise"}
    rng = get_rng_state(noise=parts["noise"], loader=parts["loader"].loader.generator)
    return copy.deepcopy((dicts["optimizer"], dicts["scheduler"], rng)), fingerprint_state_dict(
        dicts["model"]
    )


@pytest.fixture
def saved(tmp_path):
    """A file of a training after 6 steps, in the middle of its second epoch, and the losses that follow."""
    with isolate_rng():
        torch.manual_seed(3)
        parts = make_parts()
        losses = losses_of(parts)
        assert len([next(losses) for _ in range(6)]) == 6
        save_training_state(tmp_path / "run.pt", step=6, **parts)
        rest = [next(losses) for _ in range(9)]
    return tmp_path / "run.pt", rest


def test_a_training_goes_on_where_it_was_saved(saved):
    path, rest = saved
    with isolate_rng():
        torch.manual_seed(4)
        parts = make_parts()
        assert load_training_state(path, **parts) == 6
        assert train(parts, 9) == rest


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            lambda parts: parts.pop("scheduler"),
            "it holds loader, model, noise, optimizer, scheduler, but was asked for loader, model, noise, optimizer;"
            " give the same parts under the same names",
        ),
        (
            lambda parts: parts.pop("noise"),
            "but was asked for loader, model, optimizer, scheduler;",
        ),
        (
            lambda parts: parts.update(noise=random.Random(1)),
            "cannot restore generator 'noise': the state was saved from a numpy.random.PCG64, this one is a Random;",
        ),
        (
            lambda parts: parts.update(noise=torch.nn.Linear(1, 1)),
            "cannot load noise: it was saved from a generator, this one is a Module; make the same as then",
        ),
        (
            lambda parts: parts.update(model=make_parts(4)["model"]),
            "cannot load model: 0.weight was saved as (3, 2) float32, here it is (4, 2) float32; make the same model",
        ),
        (
            lambda parts: parts.update(model=parts["model"].double()),
            "cannot load model: 0.weight was saved as (3, 2) float32, here it is (3, 2) float64;",
        ),
        (
            lambda parts: parts.update(model=parts["model"][:2]),
            "cannot load model: 2.weight was saved as (1, 3) float32, here it is absent;",
        ),
        (
            lambda parts: parts.update(optimizer=torch.optim.AdamW(parts["model"].parameters())),
            "cannot load optimizer: it was saved from a SGD, this one is a AdamW; make the same as then",
        ),
        (
            lambda parts: parts["optimizer"].add_param_group({"params": [torch.zeros(1)]}),
            "cannot load optimizer: its state does not fit (loaded state dict has a different number of parameter"
            " groups); make it as the first time",
        ),
        (
            lambda parts: parts.update(
                loader=ResumableLoader(DataLoader(torch.eye(2).repeat(9, 1), 3, generator=make_generator(5)))
            ),
            "cannot go on in the data: batches was 4, here it is 6; make the loader as the first time",
        ),
        (
            lambda parts: parts.update(loader=DataLoader(torch.eye(2))),
            "cannot save or load loader: a DataLoader does not know its position; wrap it, ResumableLoader(loader), or",
        ),
        (
            lambda parts: parts.update(noise=None),
            "cannot save or load noise: a NoneType has no state_dict and load_state_dict; leave it out, or",
        ),
    ],
    ids=[
        "a name fewer",
        "a generator fewer",
        "another generator",
        "a generator for a part",
        "another width",
        "another dtype",
        "a layer fewer",
        "another optimizer",
        "another group",
        "another loader",
        "a plain loader",
        "nothing",
    ],
)
def test_what_does_not_fit_changes_nothing(saved, change, line):
    with isolate_rng():
        parts = make_parts()
        whole = dict(parts)
        change(parts)
        watched = whole | {name: of for name, of in parts.items() if type(of) is type(whole[name])}
        before = facts_of(watched)
        with pytest.raises(InputError) as caught:
            load_training_state(saved[0], **parts)
        assert line in str(caught.value)
        assert "\n" not in str(caught.value)
        assert_same(facts_of(watched), before)


def assert_same(a, b):
    (optimizer, scheduler, rng), weights = a
    (other_optimizer, other_scheduler, other_rng), other_weights = b
    assert weights == other_weights
    assert str(optimizer) == str(other_optimizer)
    assert scheduler == other_scheduler
    assert advanced_generators(rng, other_rng) == ()


@pytest.mark.parametrize("fault", [KeyboardInterrupt, RuntimeError], ids=["Ctrl-C", "an error"])
def test_a_fault_in_the_last_part_puts_the_first_ones_back(fault, saved):
    class Failing:
        def __init__(self):
            self.loads = 0

        def state_dict(self):
            return {}

        def load_state_dict(self, state):
            self.loads += 1
            if self.loads == 1:
                random.random()  # as some loaders do
                raise fault("no")

    path, _ = saved
    state = load_checkpoint(path)
    state["parts"]["last"] = {"kind": "Failing", "state": {}}
    save_checkpoint(path, state)
    with isolate_rng():
        parts = make_parts()
        before = facts_of(parts)
        with pytest.raises(KeyboardInterrupt if fault is KeyboardInterrupt else InputError, match="no"):
            load_training_state(path, last=Failing(), **parts)
        assert_same(facts_of(parts), before)


@pytest.mark.parametrize(
    "content", [{"step": 1}, {"format_version": 2, "step": 1, "parts": {}, "generators": {}}]
)
def test_another_file_is_no_training_state(content, tmp_path):
    save_checkpoint(tmp_path / "a.pt", content)
    with isolate_rng(), pytest.raises(InputError, match="it is no training state that this package writes"):
        load_training_state(tmp_path / "a.pt", **make_parts())


def test_another_release_of_torch_is_told_and_loaded(saved):
    path, rest = saved
    save_checkpoint(path, load_checkpoint(path) | {"torch": "2.9.0"})
    with isolate_rng():
        parts = make_parts()
        with pytest.warns(UserWarning, match=r"was saved with PyTorch 2\.9\.0, and .* is installed"):
            load_training_state(path, **parts)
        assert train(parts, 9) == rest


def test_a_generator_without_a_state_is_told(saved):
    """As of a CUDA device: here the state is made to hold one more than the process has."""
    path, _ = saved
    state = load_checkpoint(path)
    if state["generators"]["torch_mps"] is not None:
        pytest.skip("MPS is in use")
    state["generators"]["torch_mps"] = torch.zeros(16, dtype=torch.uint8)
    save_checkpoint(path, state)
    with isolate_rng(), pytest.warns(UserWarning, match="does not put back torch_mps: it was saved where"):
        load_training_state(path, **make_parts())


def test_averaged_weights_and_a_scaler_are_parts_like_others(tmp_path):
    def make():
        parts = make_parts()
        average = torch.optim.swa_utils.AveragedModel(parts["model"])
        return parts, average, torch.amp.GradScaler("cpu")

    with isolate_rng():
        parts, average, scaler = make()
        train(parts, 3)
        average.update_parameters(parts["model"])
        save_training_state(tmp_path / "a.pt", step=3, average=average, scaler=scaler, **parts)
        others, other_average, other_scaler = make()
        load_training_state(tmp_path / "a.pt", average=other_average, scaler=other_scaler, **others)
    assert fingerprint_state_dict(average.state_dict()) == fingerprint_state_dict(other_average.state_dict())
    assert scaler.state_dict() == other_scaler.state_dict()


# The loader -------------------------------------------------------------------------------------------------


class Drawing(torch.utils.data.Dataset):
    """Each sample has its place and numbers from three generators: drawn here, or in a worker."""

    def __len__(self):
        return 20

    def __getitem__(self, place):
        return torch.tensor([place, random.random(), np.random.rand(), torch.rand(1).item()])


def loaders(kind, workers):
    if kind == "own":
        return DataLoader(Drawing(), 3, shuffle=True, generator=make_generator(5), num_workers=workers)
    if kind == "default":
        return DataLoader(Drawing(), 3, shuffle=True, num_workers=workers)
    if kind == "two":
        sampler = RandomSampler(Drawing(), replacement=True, num_samples=50, generator=make_generator(6))
        return DataLoader(Drawing(), 3, sampler=sampler, generator=make_generator(5), num_workers=workers)
    sampler = DistributedSampler(Drawing(), num_replicas=2, rank=1)
    return DataLoader(Drawing(), 3, sampler=sampler, num_workers=workers)


def given(loader, epochs):
    """The batches of some epochs, and `None` between two."""
    for _ in range(epochs):
        for batch in loader:
            torch.rand(1)  # the training draws too
            yield batch.tolist()
        yield None


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["own", "default", "two", "distributed"])
def test_a_loader_goes_on_at_every_batch_and_between_epochs(kind, workers, recwarn):
    def start():
        random.seed(1), np.random.seed(1), torch.manual_seed(1)
        return ResumableLoader(loaders(kind, workers))

    with isolate_rng():
        loader = start()
        epoch = len(loader) + 1
        states, batches = [], []
        for batch in given(loader, 3):
            batches.append(batch)
            states.append((loader.state_dict(), get_rng_state()))
        assert loader.epoch == 3
        stops = range(1, 2 * epoch + 2) if not workers else (2, epoch - 1, epoch, epoch + 2)
        for stop in stops:
            again = start()
            state, now = states[stop - 1]
            before = get_rng_state()
            again.load_state_dict(copy.deepcopy(state))
            assert advanced_generators(before, get_rng_state()) == ()
            set_rng_state(now)
            rest = list(itertools.islice(given(again, 4), len(batches) - stop))
            assert rest == batches[stop:], stop
    assert not recwarn.list


def test_a_plain_loader_does_not_go_on():
    """What the class is for."""
    with isolate_rng():
        loader = loaders("own", 0)
        batches = [[row[0] for row in batch] for batch in given(loader, 2) if batch]
        state = get_rng_state(order=loader.generator)
        iterator = iter(loaders("own", 0))
        next(iterator)
        loader = loaders("own", 0)
        set_rng_state(state, order=loader.generator)
        assert [batch[:, 0].tolist() for batch in loader] != batches[1:8]


def test_epochs_are_counted_also_when_broken_off():
    loader = ResumableLoader(DataLoader(range(4), generator=make_generator(5)))
    assert (loader.epoch, len(list(loader)), loader.epoch) == (0, 4, 1)
    next(iter(loader))
    assert loader.epoch == 1
    next(iter(loader))
    assert (loader.epoch, len(list(loader)), loader.epoch) == (2, 4, 4)


def test_a_sampler_is_told_the_epoch():
    loader = ResumableLoader(loaders("distributed", 0))
    with isolate_rng():
        first, second = ([batch[:, 0].tolist() for batch in loader] for _ in range(2))
    assert first != second


def test_another_number_of_workers_is_told():
    with isolate_rng():
        loader = ResumableLoader(loaders("own", 0))
        next(iter(loader))
        line = "the data was loaded by 0 workers, here by 1: whatever workers draw at random will be other numbers"
        with pytest.warns(UserWarning, match=line):
            ResumableLoader(loaders("own", 1)).load_state_dict(loader.state_dict())


def test_workers_that_stay_alive_are_refused():
    with pytest.raises(InputError, match="cannot resume a loader with persistent_workers=True"):
        ResumableLoader(DataLoader(range(4), num_workers=1, persistent_workers=True))


class Stream(torch.utils.data.IterableDataset):
    def __init__(self, length):
        self.length = length

    def __iter__(self):
        return iter(range(self.length))


def test_a_stream_goes_on_and_a_shorter_one_is_refused():
    loader = ResumableLoader(DataLoader(Stream(9), 2, generator=make_generator(5)))
    for batch in loader:
        if batch[0] == 4:
            break
    state = loader.state_dict()
    again = ResumableLoader(DataLoader(Stream(9), 2, generator=make_generator(5)))
    again.load_state_dict(state)
    assert [batch.tolist() for batch in again] == [[6, 7], [8]]
    short = ResumableLoader(DataLoader(Stream(3), 2, generator=make_generator(5)))
    with pytest.raises(InputError, match="batches was 3, here it is 2; make the loader as the first time"):
        short.load_state_dict(state)
    assert (short.epoch, len(list(short))) == (0, 2)


# Ctrl-C -----------------------------------------------------------------------------------------------------


def test_an_interrupt_waits_and_the_handler_comes_back():
    before = signal.getsignal(signal.SIGINT)
    with interrupt_waits() as asked:
        assert not asked()
        signal.raise_signal(signal.SIGINT)
        assert asked()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
    with pytest.raises(ZeroDivisionError), interrupt_waits():
        raise ZeroDivisionError
    assert signal.getsignal(signal.SIGINT) is before

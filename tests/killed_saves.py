"""Saves that are killed, at random moments and at chosen places; prints as JSON what the kills left behind.

A program of its own: it has PyTorch and one thread, and forks a child for each kill.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

from repro_tutorial import checkpoint
from repro_tutorial.checkpoint import load_training_state, save_checkpoint, save_training_state
from repro_tutorial.messages import InputError

SIZE = 256  # the weights are 256 KB


class Numbered:
    """A part whose state is the number of the step that it belongs to, in a tensor."""

    def __init__(self, shape=()):
        self.number = torch.zeros(shape, dtype=torch.int32)

    def state_dict(self):
        return {"number": self.number}

    def load_state_dict(self, state):
        self.number.copy_(state["number"])


def make_parts():
    return {
        "model": Numbered((SIZE, SIZE)),
        "optimizer": Numbered(),
        "scheduler": Numbered(),
        "noise": torch.Generator(),
    }


def save(path, step):
    parts = make_parts()
    for part in parts.values():
        if isinstance(part, Numbered):
            part.number.fill_(step)
        else:
            part.manual_seed(step)
    random.seed(step)
    save_training_state(path, step=step, **parts)


def load(path):
    """The step of the state in the file, if it is whole: every part of that step, and the generators."""
    parts = make_parts()
    step = load_training_state(path, **parts)
    numbered = [part for part in parts.values() if isinstance(part, Numbered)]
    assert all((part.number == step).all() for part in numbered), "parts of two steps"
    assert parts["noise"].initial_seed() == step, "a private generator of another step"
    assert random.random() == random.Random(step).random(), "Python's generator of another step"
    return step


def save_in_place(path, state):
    """The usual fault: open the file for writing, and write."""
    with path.open("wb") as file:
        torch.save(dict(state), file)


def child(work):
    """Run `work` in a forked process that ends with it; its number."""
    pid = os.fork()
    if pid:
        return pid
    try:
        work()
    finally:
        os._exit(0)


def kill_at_random(path, kills, seed):
    """Kill saves in a loop; what was lost, and how many kills left a file half written."""
    moments, told, halves = random.Random(seed), [], set()
    save(path, 1)
    started = time.perf_counter()
    save(path, 1)
    takes = time.perf_counter() - started
    least = 1
    for number in range(kills):
        reading, writing = os.pipe()

        def work(least=least, writing=writing):
            for step in range(least + 1, least + 1000):
                save(path, step)
                os.write(writing, step.to_bytes(4, "big"))  # only now is it promised

        pid = child(work)
        moment = moments.uniform(0, 3 * takes)
        time.sleep(moment)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(writing)
        promised = os.read(reading, 4096)[-4:]
        os.close(reading)
        halves |= set(path.parent.glob(".*.partial"))
        least = int.from_bytes(promised, "big") if promised else least
        try:
            step = load(path)
        except (InputError, AssertionError) as error:
            told.append(f"kill {number} after {moment:.4f} s: {error}")
            save(path, least)
            continue
        if not least <= step <= least + 1:
            told.append(f"kill {number} after {moment:.4f} s: step {step}, promised was {least}")
        least = step
    save(path, least + 1)
    return {"lost": told, "halves": len(halves), "left": leftovers(path), "steps": least}


def leftovers(path):
    """How many files lie beside the one that was saved."""
    return len(list(path.parent.iterdir())) - 1


def die(*ignored, **also):
    os.kill(os.getpid(), signal.SIGKILL)


class Dying:
    """A file whose writer is killed at a byte."""

    def __init__(self, file, at):
        self.file, self.at = file, at

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.file.close()

    def __getattr__(self, name):
        return getattr(self.file, name)

    def write(self, data):
        data = bytes(data)
        if self.file.tell() + len(data) > self.at:
            self.file.write(data[: self.at - self.file.tell()])
            self.file.flush()
            die()
        return self.file.write(data)


def kill_at_bytes(path, count):
    """Kill a save at so many bytes spread over the file; what was lost."""
    told = []
    save(path, 1)
    size = path.stat().st_size
    for at in sorted({0, 1, size - 1, *(size * place // count for place in range(count))}):

        def work(at=at):
            new = checkpoint._new_partial
            checkpoint._new_partial = lambda path: (lambda made: (made[0], Dying(made[1], at)))(new(path))
            save(path, 2)

        os.waitpid(child(work), 0)
        try:
            step = load(path)
        except (InputError, AssertionError) as error:
            told.append(f"byte {at}: {error}")
            continue
        if step != 1:
            told.append(f"byte {at}: step {step}")
    halves = leftovers(path)
    save(path, 2)
    return {"lost": told, "halves": halves, "left": leftovers(path)}


def kill_at_calls(path):
    """Kill a save before and after each call that reaches the disk; the step that was left, by call."""
    steps = {}
    for owner, name in ((os, "fsync"), (Path, "replace"), (Path, "unlink"), (Path, "glob")):
        for after in (False, True):
            save(path, 1)

            def work(owner=owner, name=name, after=after):
                real = getattr(owner, name)

                def call(*given, **more):
                    if after:
                        real(*given, **more)
                    die()

                setattr(owner, name, call)
                save(path, 2)

            os.waitpid(child(work), 0)
            steps[f"{'after' if after else 'before'} {name}"] = load(path)
    return steps


if __name__ == "__main__":
    folder, kills, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    facts = {}
    for name in ("random", "bytes", "calls", "in_place"):
        (folder / name).mkdir()
    facts["random"] = kill_at_random(folder / "random" / "run.pt", kills, seed)
    facts["bytes"] = kill_at_bytes(folder / "bytes" / "run.pt", 12)
    facts["calls"] = kill_at_calls(folder / "calls" / "run.pt")
    checkpoint.save_checkpoint = save_in_place
    facts["in_place"] = kill_at_random(folder / "in_place" / "run.pt", 20, seed)
    checkpoint.save_checkpoint = save_checkpoint
    print(json.dumps(facts))

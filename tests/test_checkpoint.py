"""A checkpoint is whole or not there; Ctrl-C waits in the block and acts as before after it."""

import signal

import pytest
import torch

from repro_tutorial.checkpoint import interrupt_waits, load_checkpoint, save_checkpoint
from repro_tutorial.messages import InputError


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

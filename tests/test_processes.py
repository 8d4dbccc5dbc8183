"""torchrun from inside: what ranks raise arrives in one line, and nothing of ours stays running."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from repro_tutorial.messages import InputError
from repro_tutorial.processes import run_torchrun

SCRIPT = """
import os, signal, sys, time
from pathlib import Path
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    rank = os.environ["RANK"]
    Path(sys.argv[2], rank).write_text(str(os.getpid()))
    if rank == "1" and sys.argv[1] == "raise":
        raise ValueError("no such\\nthing")
    if rank == "1" and sys.argv[1] == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if sys.argv[1] != "end":
        time.sleep(120)

main()
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "ranks.py"
    path.write_text(SCRIPT)
    return path


def started(folder: Path) -> list[int]:
    return [int(path.read_text()) for path in folder.iterdir() if path.name.isdecimal()]


def running(pid: int) -> bool:
    """Whether the process lives; one that ended and waits for its parent does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc, which Linux has")


def test_ranks_run_and_end(script, tmp_path):
    run_torchrun(script, ["end", str(tmp_path)], ranks=2)
    assert len(started(tmp_path)) == 2


@needs_proc
@pytest.mark.parametrize(
    ("what", "line"),
    [
        ("raise", "rank 1 raised ValueError: no such thing"),
        ("die", "rank 1 died with exit code -9"),
    ],
)
def test_a_rank_that_fails_is_named_and_the_others_are_stopped(what, line, script, tmp_path):
    with pytest.raises(InputError) as caught:
        run_torchrun(script, [what, str(tmp_path)], ranks=2)
    assert str(caught.value) == f"cannot finish ranks.py in 2 processes: {line}; all were stopped"
    assert not any(map(running, started(tmp_path)))


@needs_proc
def test_the_time_limit_stops_all(script, tmp_path):
    with pytest.raises(InputError, match="3 seconds are over, and all were stopped"):
        run_torchrun(script, ["sleep", str(tmp_path)], ranks=2, limit=3)
    assert not any(map(running, started(tmp_path)))


@needs_proc
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda one: one.name)
def test_an_interrupt_stops_all_and_leaves_nothing(number, script, tmp_path):
    """Ctrl-C, a request to end, a closed terminal; the first goes to the whole group, as from a terminal."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    code = f"""
from pathlib import Path
from repro_tutorial.processes import run_torchrun
run_torchrun(Path({str(script)!r}), ["sleep", {str(tmp_path)!r}], ranks=2)
"""
    ours = subprocess.Popen(
        [sys.executable, "-c", code],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"TMPDIR": str(temporary)},
    )
    deadline = time.monotonic() + 60
    while len(started(tmp_path)) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    ranks = started(tmp_path)
    assert len(ranks) == 2
    assert all(map(running, ranks))
    os.killpg(ours.pid, number)
    _, errors = ours.communicate(timeout=60)
    assert ("KeyboardInterrupt" in errors) == (number == signal.SIGINT)
    assert ours.returncode != 0
    assert not any(map(running, ranks))
    assert list(temporary.iterdir()) == []


def test_a_script_that_is_not_there_is_told(tmp_path):
    with pytest.raises(
        InputError, match=r"cannot finish gone\.py in 2 processes: rank \d died with exit code 2;"
    ):
        run_torchrun(tmp_path / "gone.py", [], ranks=2)


@pytest.mark.parametrize("port", [70_000, "in use"])
def test_a_port_that_cannot_be_had_is_told_before_anything_starts(port, script, tmp_path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1] if port == "in use" else port
        with pytest.raises(
            InputError, match=f"cannot start processes that meet at port {port}: it is in use"
        ):
            run_torchrun(script, ["end", str(tmp_path)], ranks=2, port=port)
    assert started(tmp_path) == []


def test_port_and_variables_are_the_callers(monkeypatch, script, tmp_path):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    script.write_text(
        "import os, sys; open(sys.argv[1], 'w').write(' '.join(map(os.environ.get, sys.argv[2:])))"
    )
    file = tmp_path / "seen"
    run_torchrun(script, [str(file), "MASTER_PORT", "OMP_NUM_THREADS"], ranks=1, port=port)
    assert file.read_text() == f"{port} 2"
    assert "TORCHELASTIC_ERROR_FILE" not in os.environ

"""What ranks and runs raise arrives in one line, and nothing of ours stays running."""

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from repro_tutorial.messages import InputError
from repro_tutorial.processes import map_in_processes, run_torchrun

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
    """The processes that have written their number; a file may be there and its number not yet."""
    written = [path.read_text() for path in folder.iterdir() if path.name.isdecimal()]
    return [int(number) for number in written if number]


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
from repro_tutorial.processes import map_in_processes, run_torchrun
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


# Runs spread over the cores -----------------------------------------------------------------------------

SPREAD = """
import os, signal, sys, time
from pathlib import Path
from repro_tutorial.cli import run
from repro_tutorial.processes import map_in_processes

def work(number, what="square", folder=None):
    import torch
    if folder:
        Path(folder, str(number)).write_text(str(os.getpid()))
    if number == 2 and what == "raise":
        raise ValueError("no such\\nthing")
    if number == 2 and what == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "sleep":
        time.sleep(120)
    return number**2, torch.get_num_threads()

def main(argv):
    calls = [{"number": number, "what": what, "folder": sys.argv[1]} for number, what in enumerate(("square", "sleep"))]
    print(list(map_in_processes(work, calls, processes=2)))

if __name__ == "__main__":
    sys.exit(run(main))
"""


@pytest.fixture
def spread(tmp_path):
    """The script, and the function in it as a module that no process could import by name."""
    path = tmp_path / "spread.py"
    path.write_text(SPREAD)
    spec = importlib.util.spec_from_file_location("spread", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def mapped(work, what: str, processes: int) -> list:
    calls = [{"number": number, "what": what} for number in range(5)]
    return list(map_in_processes(work, calls, processes=processes))


def test_results_come_in_order_with_one_thread_each_whatever_the_number_of_processes(spread):
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        here = mapped(spread.work, "square", 1)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert here == mapped(spread.work, "square", 2) == [(number**2, 1) for number in range(5)]


def test_calls_are_made_in_so_many_processes(spread, tmp_path):
    folder = tmp_path / "pids"
    folder.mkdir()
    calls = [{"number": number, "folder": str(folder)} for number in range(2)]
    list(map_in_processes(spread.work, calls, processes=1))
    assert set(started(folder)) == {os.getpid()}


@pytest.mark.parametrize("processes", [1, 2])
def test_a_call_that_raises_is_told_in_one_line(processes, spread):
    with pytest.raises(InputError) as caught:
        mapped(spread.work, "raise", processes)
    assert str(caught.value) == (
        "cannot finish run 3 of 5: it raised ValueError: no such thing; all were stopped"
    )


def test_a_process_that_is_killed_is_told_in_one_line(spread):
    with pytest.raises(
        InputError, match=r"cannot finish run \d of 5: a process was killed, perhaps for want"
    ):
        mapped(spread.work, "die", 2)


@needs_proc
@pytest.mark.parametrize("kind", ["SIGINT", "SIGTERM", "SIGKILL"])
def test_nothing_stays_when_the_parent_is_stopped(kind, spread, tmp_path):
    """Ctrl-C reaches every process of the terminal; SIGTERM and SIGKILL reach the one they are sent to."""
    script = tmp_path / "spread.py"
    parent = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"LC_ALL": "C.UTF-8"},
    )
    while len(started(tmp_path)) < 2 and parent.poll() is None:
        time.sleep(0.05)
    (os.killpg if kind == "SIGINT" else os.kill)(parent.pid, getattr(signal, kind))
    _, told = parent.communicate(timeout=60)
    codes = {"SIGINT": 130, "SIGTERM": 128 + signal.SIGTERM, "SIGKILL": -signal.SIGKILL}
    assert parent.returncode == codes[kind], told
    if kind != "SIGKILL":  # then it is multiprocessing's own cleaner that speaks
        assert told == ("\nspread.py: interrupted\n" if kind == "SIGINT" else "")
    until = time.monotonic() + 10
    while any(map(running, started(tmp_path))) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(map(running, started(tmp_path)))

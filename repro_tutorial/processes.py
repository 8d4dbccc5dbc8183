"""Start processes that end when we do: PyTorch's launcher, with a time limit, stopped after whatever can be noticed."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

from repro_tutorial.messages import InputError, Line

GRACE = 15  # seconds that torchrun has to stop its ranks before it is killed
LOOPBACK = ("lo", "lo0")  # as Linux and macOS call it


def run_torchrun(
    script: Path, arguments: Sequence[str], *, ranks: int, port: int | None = None, limit: float = 300
) -> None:
    """Run `script` in `ranks` processes on this machine, started by ``torchrun``, and wait for their end.

    They meet at `port` of this machine, a free one where none is given, and what they print is not shown.
    All of them are stopped when `limit` (seconds) is over, when one of them fails, and when this process is
    interrupted or asked to end; not when it is killed, which no process notices.

    Raises:
        InputError: the port is in use, a rank raised or died (the line says which, and of what), or the time
            limit is over.

    Source: PyTorch's documentation of torchrun; what a rank raised comes through TORCHELASTIC_ERROR_FILE.

    Lesson: multi_gpu_seeding
    """
    with tempfile.TemporaryDirectory() as folder:
        failure, errors = Path(folder, "failure.json"), Path(folder, "errors.txt")
        command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}"]
        command += ["--master-addr=127.0.0.1", f"--master-port={_free_port(port)}", f"--log-dir={folder}"]
        command += [str(script), *arguments]
        # One thread for each rank, since they share the cores: torchrun would set that too, with a warning.
        environment = {"OMP_NUM_THREADS": "1"} | os.environ | {"TORCHELASTIC_ERROR_FILE": str(failure)}
        for (
            name
        ) in LOOPBACK:  # gloo would look for an interface by the name of the host, which may not resolve
            if name in (found for _, found in socket.if_nameindex()):
                environment.setdefault("GLOO_SOCKET_IFNAME", name)
        with errors.open("wb") as stream, _ended_by_signals():
            # A session of its own: Ctrl-C reaches this process alone, which then stops the others in order.
            launcher = subprocess.Popen(
                command,
                stdout=subprocess.DEVNULL,
                stderr=stream,
                env=environment,
                start_new_session=True,
            )
            try:
                code = launcher.wait(limit)
            except subprocess.TimeoutExpired as error:
                values = {"script": script.name, "ranks": ranks, "limit": f"{limit:g}"}
                raise InputError("processes.too_long", **values) from error
            finally:
                stop(launcher)
        if code:
            problem = _problem(failure, errors.read_text("utf-8", errors="replace"), code)
            raise InputError("processes.failed", script=script.name, ranks=ranks, problem=problem)


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """In the block, a request to end (SIGTERM) and a closed terminal (SIGHUP) raise, so that ``finally`` is run.

    Outside the main thread, where Python lets nobody handle signals, they act as always.
    """

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kinds = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {kind: signal.signal(kind, leave) for kind in kinds}
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


def stop(process: "subprocess.Popen[bytes]") -> None:
    """End `process`, if it still runs: asked first, so that it can end its own children, and killed after a while."""
    process.terminate()
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _free_port(port: int | None) -> int:
    """`port`, if nobody listens there; where none is given, any that is free.

    Raises:
        InputError: it is in use, or no number that a port can have.
    """
    try:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port or 0))
            free: int = probe.getsockname()[1]
    except (OSError, OverflowError) as error:
        raise InputError("processes.bad_port", port=port) from error
    return free


def _problem(failure: Path, errors: str, code: int) -> Line:
    """What stopped the ranks: what the first of them to fail raised, or how it died."""
    first = re.search(r"Root Cause.*?\n *rank *: (\d+).*?\n *exitcode *: (-?\d+)", errors, re.DOTALL)
    if first is None:  # it was torchrun itself
        return (errors.strip().splitlines() or [f"torchrun: {code}"])[-1].strip()
    try:
        raised = json.loads(failure.read_text("utf-8"))["message"]["message"]
    except (OSError, ValueError, KeyError, TypeError):
        return {"key": "processes.died", "values": {"rank": first[1], "code": first[2]}}
    values = {"rank": first[1], "problem": " ".join(raised.split())}
    return {"key": "processes.raised", "values": values}

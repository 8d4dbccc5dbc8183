"""Start processes that end when we do: PyTorch's launcher, and runs spread over the cores."""

import contextlib
import functools
import importlib.util
import json
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, TypeVar

from repro_tutorial.messages import InputError, Line

GRACE = 15  # seconds that torchrun has to stop its ranks before it is killed
LOOPBACK = ("lo", "lo0")  # as Linux and macOS call it

T = TypeVar("T")


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
        with errors.open("wb") as stream, ended_by_signals():
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
def ended_by_signals() -> Iterator[None]:
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


# Runs spread over the cores -----------------------------------------------------------------------------


def cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):  # Linux, where a process can be held to some of them
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def map_in_processes(
    function: Callable[..., T], calls: Sequence[Mapping[str, Any]], *, processes: int
) -> Iterator[T]:
    """The results of ``function(**call)`` for each of `calls`, in their order, each as soon as it is there.

    The calls are spread over so many `processes`, or made here if that is 1. Each computes with one thread,
    so that the results have the same bits whatever the number of processes, as long as `function` draws
    from generators that it makes itself and not from those that it finds. `function` stands at the top of a
    module or script, which every process loads again; what it takes and returns can be pickled without that
    module: numbers, text, arrays, classes of a package.

    When a call fails, when the caller stops asking, and when this process is interrupted or asked to end,
    all of them end at once; when it is killed, each ends by itself.

    Raises:
        InputError: a call raised (its own InputError as it is, any other error in one line), or a process
            was killed.

    >>> [round(root, 2) for root in map_in_processes(pow, [{"base": 2, "exp": 0.5}], processes=1)]
    [1.41]

    Lesson: seed_variance
    """
    if processes == 1:
        from repro_tutorial.determinism import one_thread

        for number, call in enumerate(calls, start=1):
            with _told(number, len(calls)), one_thread():
                result = function(**call)
            yield result
        return
    others, waiting = set(multiprocessing.active_children()), []
    # Fresh processes: a copy of this one would inherit its threads' locks, and PyTorch has threads.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(processes, len(calls)), context, initializer=_begin_worker)
    with ended_by_signals():
        try:
            with _without_ctrl_c():
                for call in calls:
                    named = (function.__code__.co_filename, function.__name__, dict(call))
                    waiting.append(pool.submit(_call, *named))
            for number, future in enumerate(waiting, start=1):
                with _told(number, len(calls)):
                    result = future.result()
                yield result
        finally:
            if not all(future.done() for future in waiting):
                for worker in set(multiprocessing.active_children()) - others:
                    worker.kill()
            pool.shutdown(cancel_futures=True)


def _call(file: str, name: str, call: Mapping[str, Any]) -> Any:
    return getattr(_loaded(Path(file)), name)(**call)


def load_file(file: Path) -> ModuleType:
    """The module in `file`, run anew; for demos, which lie outside the package, so that no name finds them.

    Lesson: seed_variance
    """
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_loaded = functools.cache(load_file)  # once in each worker


def _begin_worker() -> None:
    """In a worker, before its first call: one thread, and someone who notices when the parent is gone."""
    import torch

    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


@contextlib.contextmanager
def _told(number: int, runs: int) -> Iterator[None]:
    """What goes wrong in the block is told in one line: it is call `number` of `runs`."""
    try:
        yield
    except InputError:
        raise
    except BrokenProcessPool as error:
        raise InputError("processes.killed", number=number, runs=runs) from error
    except Exception as error:
        problem = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise InputError("processes.run_raised", number=number, runs=runs, problem=problem) from error


@contextlib.contextmanager
def _without_ctrl_c() -> Iterator[None]:
    """Processes started in the block never see Ctrl-C, which a terminal sends to all: we alone act on it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)

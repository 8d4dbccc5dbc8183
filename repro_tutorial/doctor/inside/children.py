"""Threads and child processes: each gets a name that is the same in every run, and its own book.

On request they run one after the other (`serial`), or begin late by chance (`hold`), which tells whether a
result depends on who comes first.
"""

import multiprocessing.process
import os
import random
import subprocess
import sys
import threading
import time
from concurrent import futures
from typing import Any

from repro_tutorial.doctor.inside.process import here

PATIENCE = 20.0  # seconds that a child may take while others wait for it

_sleep = time.sleep


def begin() -> None:
    """Watch how threads and processes are started."""
    _threads()
    _processes()
    _futures()


def _hold() -> None:
    """On request, a pause of a random length."""
    longest = here.settings.get("hold", 0)
    if longest:
        _sleep(random.SystemRandom().random() * longest)


def _threads() -> None:
    start = threading.Thread.start

    def watched_start(self: threading.Thread) -> None:
        here.threads += 1
        self._doctor_role = str(here.threads)  # type: ignore[attr-defined]
        site = here.places.site(2)
        if site and not here.busy():
            here.book().note("thread", site, here.threads)
        wrapped = self.run

        def watched_run() -> None:
            if site:
                _hold()
                if "torch" in sys.modules and here.settings.get("record", True):
                    from repro_tutorial.doctor.inside import recorder

                    recorder.push()
            wrapped()

        self.run = watched_run  # type: ignore[method-assign]
        start(self)
        if site and here.settings.get("serial") and not self.daemon:
            self.join(PATIENCE)

    threading.Thread.start = watched_start  # type: ignore[method-assign]


def _processes() -> None:
    start, popen = multiprocessing.process.BaseProcess.start, subprocess.Popen.__init__

    def watched_start(self: Any) -> None:
        site = here.places.site(2)
        here.book().note("child", site, here.children + 1)
        role = here.next_child()
        here.children -= 1  # a fork counts itself
        before = os.environ.get("REPRO_DOCTOR_ROLE", "")
        os.environ["REPRO_DOCTOR_ROLE"] = role
        count = here.children
        try:
            start(self)
        finally:
            here.children = count + 1
            os.environ["REPRO_DOCTOR_ROLE"] = before
        if site and here.settings.get("serial") and not self.daemon:
            self.join(PATIENCE)

    def watched_popen(self: Any, *given: Any, **named: Any) -> None:
        role = here.next_child()
        here.book().note("child", here.places.site(2), here.children)
        environment = dict(os.environ if named.get("env") is None else named["env"])
        if isinstance(next(iter(environment), ""), str):
            named["env"] = environment | {"REPRO_DOCTOR_ROLE": role}
        popen(self, *given, **named)

    multiprocessing.process.BaseProcess.start = watched_start  # type: ignore[method-assign]
    subprocess.Popen.__init__ = watched_popen  # type: ignore[method-assign]


def _futures() -> None:
    """Executors: a task may be held up, or waited for at once."""
    submit, completed = futures.ThreadPoolExecutor.submit, futures.as_completed

    def watched_submit(self: Any, fn: Any, /, *given: Any, **named: Any) -> Any:
        site = here.places.site(2)
        if not site:
            return submit(self, fn, *given, **named)

        def task() -> Any:
            _hold()
            return fn(*given, **named)

        here.book().note("thread", site, -1)
        future = submit(self, task)
        if here.settings.get("serial"):
            futures.wait([future], PATIENCE)
        return future

    def in_order(fs: Any, timeout: float | None = None) -> Any:
        if not here.settings.get("serial"):
            yield from completed(fs, timeout)
            return
        for future in list(fs):
            futures.wait([future], timeout)
            yield future

    futures.ThreadPoolExecutor.submit = watched_submit  # type: ignore[method-assign]
    futures.as_completed = futures._base.as_completed = in_order

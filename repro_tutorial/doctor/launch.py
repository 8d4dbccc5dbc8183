"""Run the unmodified program once, in a private view of its folders, and keep what it did."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from repro_tutorial.doctor.enter import NO_VIEW
from repro_tutorial.messages import InputError

BOOT = Path(__file__).parent / "boot"
MOST_PRINTED = 64 << 20  # bytes of output that a run may print
MOST_WRITTEN = 4 << 30  # bytes that a run may write into its folders
MOST_COPIED = 1 << 30  # bytes of a folder that is copied where no private view can be made
LOOK = 0.1  # seconds between two looks at a run


@dataclass(frozen=True)
class Program:
    """What to run: a script or a module, its arguments, how many ranks."""

    target: tuple[str, ...]  # ("train.py",) or ("-m", "pkg.train")
    arguments: tuple[str, ...]
    folder: Path
    ranks: int | None = None

    def command(self) -> list[str]:
        """The command line, with this interpreter."""
        launcher = [] if self.ranks is None else self._torchrun()
        return [sys.executable, *launcher, *self.target, *self.arguments]

    def _torchrun(self) -> list[str]:
        return ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={self.ranks}"]

    def shown(self) -> str:
        """The program as its user calls it."""
        return " ".join([*self.target, *self.arguments])

    def roots(self) -> list[str]:
        """The folders whose files are the program's own: its working folder, and the script's."""
        roots = [str(self.folder)]
        if self.target[0] != "-m":
            roots.append(str((self.folder / self.target[0]).resolve().parent))
        return list(dict.fromkeys(roots))


@dataclass
class Outcome:
    """A run that has ended."""

    folder: Path  # where its records lie
    state: tuple[Path, ...]  # what it left in the overlaid folders
    code: int
    out: str
    err: str
    seconds: float
    ended_by: str = ""  # "time", "output", "disk" or "stop" if it was ended from here
    settings: Mapping[str, Any] = field(default_factory=dict)


class Workshop:
    """A folder for all that is made while a program is examined; it vanishes at the end of the block."""

    def __init__(self, program: Program, *, timeout: float, steps: int | None = None) -> None:
        self.program, self.timeout, self.steps = program, timeout, steps
        self.number = 0
        self._copies = False

    def __enter__(self) -> "Workshop":
        folder = self.program.folder.resolve()
        # Where it lies is not overlaid itself: not in the program's folder, and rather not in /tmp.
        places = [
            p
            for p in (Path("/var/tmp"), Path(tempfile.gettempdir()))
            if p.is_dir() and p not in folder.parents
        ]
        self.place = Path(
            tempfile.mkdtemp(prefix=f"repro_doctor_{os.getpid()}_", dir=places[0] if places else None)
        )
        self.overlaid = self._folders(folder)
        index, home = next(
            (i, one) for i, one in enumerate(self.overlaid) if one in (folder, *folder.parents)
        )
        # Where the program's folder lies in the state that a run leaves.
        self.inside = f"{index}/{folder.relative_to(home).as_posix()}"
        return self

    def __exit__(self, *error: object) -> None:
        for folder in self.place.glob("run*/upper*/work/work"):
            folder.chmod(0o700)
        shutil.rmtree(self.place, ignore_errors=True)

    def _folders(self, folder: Path) -> list[Path]:
        """The folders to give a private view of: the program's, the home folder's and the temporary files'."""
        wanted = [folder, Path.home().resolve(), Path(tempfile.gettempdir()).resolve()]
        root = Path("/")
        wanted = [one for one in wanted if one != root and one.is_dir() and one not in self.place.parents]
        outermost = [one for one in wanted if not any(other in one.parents for other in wanted)]
        return list(dict.fromkeys(outermost))

    def run(
        self,
        settings: Mapping[str, Any] | None = None,
        *,
        after: Outcome | None = None,
        watch: Callable[[Path], bool] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Outcome:
        """Run the program once.

        Args:
            settings: what `inside` is asked to do.
            after: begin with what this run left behind, instead of the user's own state.
            watch: looked at while it runs, with its folder; the run is stopped once it says so.
            environment: variables to set.

        Raises:
            InputError: no private view can be made, and the folder is too large to be copied.
        """
        self.number += 1
        here = self.place / f"run{self.number:03}"
        records = here / "records"
        records.mkdir(parents=True)
        asked = {"folder": str(records), "roots": self.program.roots(), "record": True, "steps": self.steps}
        asked |= dict(settings or {})
        begun = time.monotonic()
        asked["begun"] = begun
        (here / "settings").write_text(json.dumps(asked))
        variables = dict(os.environ) | {"REPRO_DOCTOR": str(here / "settings")}
        variables |= {"PYTHONPATH": os.pathsep.join(filter(None, [str(BOOT), os.environ.get("PYTHONPATH")]))}
        variables |= {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"}
        variables |= dict(environment or {})
        if not asked.get("watched", True):
            del variables["REPRO_DOCTOR"]
        state = after.state if after is not None else ()
        overlays, uppers = self._overlays(here, state)
        request = {
            "overlays": overlays,
            "folder": str(self.program.folder),
            "command": self.program.command(),
            "plain_addresses": bool(asked.get("plain_addresses")),
        }
        command = [sys.executable, "-ISB", str(Path(__file__).with_name("enter.py")), json.dumps(request)]
        ended = self._wait(command, variables, here, watch)
        if ended.code == NO_VIEW and not any(records.iterdir()):
            raise InputError("doctor.no_view", folder=self.program.folder, problem=ended.err.strip())
        ended.folder, ended.state = records, (*uppers, *state)
        ended.seconds, ended.settings = time.monotonic() - begun, asked
        return ended

    def _overlays(self, here: Path, state: tuple[Path, ...]) -> tuple[list[dict[str, str]], list[Path]]:
        overlays, uppers = [], []
        upper_root = here / "upper"
        for index, folder in enumerate(self.overlaid):
            upper, work = upper_root / str(index), here / f"upperwork/{index}"
            upper.mkdir(parents=True)
            work.mkdir(parents=True)
            shutil.copystat(folder, upper)
            below = [str(one / str(index)) for one in state]
            lower = ":".join([*below, str(folder)])
            overlays.append({"folder": str(folder), "lower": lower, "upper": str(upper), "work": str(work)})
        uppers.append(upper_root)
        return overlays, uppers

    def _wait(
        self,
        command: list[str],
        variables: Mapping[str, str],
        here: Path,
        watch: Callable[[Path], bool] | None,
    ) -> Outcome:
        begun = time.monotonic()
        with (here / "out").open("wb") as out, (here / "err").open("wb") as err:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=variables,
                start_new_session=True,
            )
            ended_by, disk_due = "", begun + 2
            try:
                while True:
                    try:
                        process.wait(LOOK)
                        break
                    except subprocess.TimeoutExpired:
                        pass
                    now = time.monotonic()
                    if now - begun > self.timeout:
                        ended_by = "time"
                    elif os.fstat(out.fileno()).st_size + os.fstat(err.fileno()).st_size > MOST_PRINTED:
                        ended_by = "output"
                    elif watch is not None and watch(here / "records"):
                        ended_by = "stop"
                    elif now > disk_due:
                        disk_due = now + 2
                        if _size(here) > MOST_WRITTEN:
                            ended_by = "disk"
                    if ended_by:
                        break
            finally:
                if process.poll() is None:
                    process.send_signal(signal.SIGTERM)
                    try:
                        process.wait(10)
                    except subprocess.TimeoutExpired:
                        process.kill()
                        process.wait()
        out_text, err_text = (
            (here / name).read_bytes()[:MOST_PRINTED].decode("utf-8", "replace") for name in ("out", "err")
        )
        return Outcome(here, (), process.returncode, out_text, err_text, 0.0, ended_by)


def check_program(program: Program) -> None:
    """Complain of what cannot be examined before anything is run.

    Raises:
        InputError: there is no such script, it is a notebook, torchrun or the doctor started this process, or this
            is not Linux.
    """
    target = program.target[-1]
    if sys.platform != "linux":
        raise InputError("doctor.linux_only", system=sys.platform)
    if "REPRO_DOCTOR" in os.environ:
        raise InputError("doctor.inside_doctor")
    if "TORCHELASTIC_RUN_ID" in os.environ:
        raise InputError("doctor.under_torchrun")
    if target.endswith(".ipynb"):
        raise InputError("doctor.notebook", target=target)
    if program.target[0] != "-m" and not (program.folder / target).is_file():
        raise InputError("doctor.no_program", target=target, folder=program.folder)


def _size(folder: Path) -> int:
    return sum(size for _, size in written(folder))


def written(folder: Path) -> Iterator[tuple[Path, int]]:
    """The files under `folder` with their sizes in bytes."""
    for parent, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(OSError):
                path = Path(parent, name)
                yield path, path.lstat().st_size

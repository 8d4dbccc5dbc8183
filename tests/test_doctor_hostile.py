"""Scripts that break, cheat or misbehave: one clear line, exit code 2, nothing left running or lying about."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the private view is Linux's")

TRAIN = """
import torch
torch.manual_seed(0)
net = torch.nn.Linear(2, 1)
loss = net(torch.ones(4, 2)).square().mean()
loss.backward()
"""
PRINT = 'print(f"loss {loss.item():.6f}")\n'

UNKNOWN = {
    "syntax_error": ("def f(:\n    pass\n", "SyntaxError"),
    "missing_import": ("import no_such_module_anywhere\n", "no_such_module_anywhere"),
    "missing_argument": (
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--data', required=True)\np.parse_args()\n",
        "--data",
    ),
    "kills_itself": ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n", "signal 9"),
    "leaves_at_once_with_an_error": ("import os\nos._exit(3)\n", "exit code 3"),
    "reads_standard_input": ("name = input('who? ')\n", "standard input"),
    "needs_a_gpu": ("import torch\ntorch.zeros(1, device='cuda')\n", "GPU"),
    "never_ends": ("while True:\n    pass\n", "--timeout"),
    "deletes_its_own_folder": (
        "import pathlib\nfor path in pathlib.Path('.').iterdir():\n    path.unlink()\n",
        "deletes its own files",
    ),
    "prints_gigabytes": ("line = 'x' * 1_000_000\nwhile True:\n    print(line)\n", "MiB"),
}

REPRODUCES = {
    "leaves_at_once": TRAIN + PRINT + "import sys, os\nsys.stdout.flush()\nos._exit(0)\n",
    "forks": TRAIN + PRINT + "import os\nif os.fork() == 0:\n    os._exit(0)\nos.wait()\n",
    "replaces_stdout": "import io, sys\nsys.stdout = io.StringIO()\n" + TRAIN + PRINT,
    "changes_directory": "import os\nos.mkdir('sub')\nos.chdir('sub')\n"
    + TRAIN
    + PRINT
    + "open('x', 'w').write('1')\nos.chdir('..')\nimport shutil\nshutil.rmtree('sub')\n",
    "own_dispatch_mode": """
from torch.utils._python_dispatch import TorchDispatchMode
class Mine(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))
with Mine():
"""
    + "".join(f"    {line}\n" for line in TRAIN.strip().splitlines())
    + PRINT,
    "leaves_a_process_behind": "import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
    + TRAIN
    + PRINT,
}


def start(folder: Path, *arguments: str, **variables: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "repro_tutorial", "doctor", "--lang", "en", *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, cwd=folder, stdout=pipe, stderr=pipe, text=True, env=os.environ | variables
    )


def doctor(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The doctor's answer; neither a folder of its own nor a process that works in `folder` is left."""
    process = start(folder, *arguments, **variables)
    out, err = process.communicate(timeout=300)
    assert workshops(process.pid) == []
    assert in_folder(folder) == []
    return subprocess.CompletedProcess(arguments, process.returncode, out, err)


def workshops(pid: int) -> list[Path]:
    places = (Path("/var/tmp"), Path(tempfile.gettempdir()))
    return [path for place in places for path in place.glob(f"repro_doctor_{pid}_*")]


def in_folder(folder: Path) -> list[str]:
    """Processes whose working directory is `folder`."""
    found = []
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if process.name.isdigit() and (process / "cwd").readlink() == folder:
                found.append(process.name)
    return found


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_broken_script_gets_one_clear_line(name, tmp_path):
    script, told = UNKNOWN[name]
    (tmp_path / "train.py").write_text(script)

    done = doctor(tmp_path, "--timeout", "8", "train.py")

    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert told in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


OFTEN = ("leaves_a_process_behind",)  # the others are examined by make slow


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in OFTEN else [pytest.mark.slow]) for name in REPRODUCES]
)
def test_an_unusual_script_is_examined_all_the_same(name, tmp_path):
    (tmp_path / "train.py").write_text(REPRODUCES[name])

    done = doctor(tmp_path, "train.py")

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("REPRODUCES")
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


@pytest.mark.slow
def test_the_sitecustomize_that_was_there_is_still_run(tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("import builtins\nbuiltins.from_site = 0\n")
    (tmp_path / "train.py").write_text(
        "import torch\ntorch.manual_seed(from_site)\nprint(torch.rand(1).item())\n"
    )

    done = doctor(tmp_path, "train.py", PYTHONPATH=str(tmp_path / "site"))

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("nothing.py",), "nothing.py"),
        (("lesson.ipynb",), "nbconvert"),
        ((), "needs a script"),
        (("--timeout", "0", "train.py"), "seconds"),
    ],
)
def test_what_cannot_be_examined_is_refused_before_anything_runs(arguments, told, tmp_path):
    (tmp_path / "train.py").write_text(PRINT)

    done = doctor(tmp_path, *arguments)

    assert done.returncode == 2
    assert told in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_torchrun_is_told_to_step_back(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)

    done = doctor(tmp_path, "train.py", TORCHELASTIC_RUN_ID="1")

    assert done.returncode == 2
    assert "--nproc-per-node" in done.stderr


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_doctor_leaves_nothing(kind, tmp_path):
    (tmp_path / "train.py").write_text("open('marker', 'w')\nimport time\ntime.sleep(600)\n")
    process = start(tmp_path, "train.py")
    deadline = time.monotonic() + 60
    while not in_folder(tmp_path)[1:] and time.monotonic() < deadline:
        time.sleep(0.1)

    process.send_signal(kind)
    process.communicate(timeout=60)

    assert process.returncode != 0
    assert workshops(process.pid) == []
    assert in_folder(tmp_path) == []
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]

"""Runs one command in a private view of some folders: what it writes there, only it sees. Linux.

Called by `launch` as a program of its own: ``python enter.py JSON``, with the keys ``overlays`` (folder, lower
folders, upper, work), ``folder`` (where to run), ``command``, ``plain_addresses``. Its exit code is the command's;
`NO_VIEW` if the view could not be made. Whatever the command leaves running is killed.
"""

import contextlib
import ctypes
import json
import os
import signal
import sys
from pathlib import Path

NO_VIEW = 97
_NEWNS, _NEWUSER = 0x00020000, 0x10000000  # of unshare(2)
_PRIVATE, _RECURSIVE = 1 << 18, 1 << 14  # of mount(2)
_DEATH_SIGNAL, _SUBREAPER = 1, 36  # of prctl(2)
_NO_RANDOM_ADDRESSES = 0x0040000  # of personality(2)


def main() -> int:
    """Make the view, run the command in it, and leave nothing running."""
    asked = json.loads(sys.argv[1])
    system = ctypes.CDLL(None, use_errno=True)
    system.prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    system.prctl(_SUBREAPER, 1, 0, 0, 0)
    if asked["overlays"]:
        try:
            _own_mounts(system)
            for overlay in asked["overlays"]:
                _mount(system, overlay)
        except OSError as error:
            print(f"{error.strerror}", file=sys.stderr)
            return NO_VIEW
    os.chdir(asked["folder"])
    if asked["plain_addresses"]:
        system.personality(_NO_RANDOM_ADDRESSES)
    child = os.fork()
    if child == 0:
        os.setsid()
        system.prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        os.execvpe(asked["command"][0], asked["command"], os.environ)
    for kind in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(kind, lambda number, frame: _kill_all(child))
    _, status = os.waitpid(child, 0)
    _kill_all(child)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code  # as a shell says it


def _own_mounts(system: ctypes.CDLL) -> None:
    user, group = os.getuid(), os.getgid()
    if system.unshare(_NEWNS) != 0:
        _check(system.unshare(_NEWNS | _NEWUSER))
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    _check(system.mount(b"none", b"/", None, _PRIVATE | _RECURSIVE, None))


def _mount(system: ctypes.CDLL, overlay: dict[str, str]) -> None:
    escaped = {name: path.replace("\\", "\\\\").replace(",", "\\,") for name, path in overlay.items()}
    options = f"lowerdir={escaped['lower']},upperdir={escaped['upper']},workdir={escaped['work']}"
    if os.getuid() != 0:
        options += ",userxattr"
    _check(system.mount(b"overlay", os.fsencode(overlay["folder"]), b"overlay", 0, os.fsencode(options)))


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _kill_all(first: int) -> None:
    """Kill everything that descends from us; orphans have come to us, since we are their reaper."""
    for _ in range(100):
        found = _children(os.getpid())
        if not found:
            return
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        signal.sigtimedwait([], 0.01)


def _children(parent: int) -> list[int]:
    """All that descend from `parent`."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
    found: list[int] = []
    level = {parent}
    while level := {pid for pid, above in parents.items() if above in level}:
        found += level
    return found


if __name__ == "__main__":
    sys.exit(main())

"""The site, built once for every test that looks at it, and copies of its sources to break."""

import functools
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
LANGUAGES = ("en", "zh")
PAGES = sorted(path.relative_to(ROOT / "docs/en").as_posix() for path in (ROOT / "docs/en").rglob("*.md"))
PREFIX = "/repro/"  # the folder of the server that the site is tested in


def load_hooks() -> ModuleType:
    """docs/hooks.py, which is no part of a package."""
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "docs/hooks.py")
    assert spec and spec.loader
    hooks = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = hooks  # dataclasses look themselves up there
    spec.loader.exec_module(hooks)
    return hooks


def build(root: Path, to: Path) -> subprocess.CompletedProcess[str]:
    """Build the site under `root` as CI does, in a folder of its own."""
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", root / "mkdocs.yml", "-d", to],
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1", "SITE_URL": f"https://example.org{PREFIX}"},
        capture_output=True,
        text=True,
        encoding="utf-8",
    )


def copy_sources(to: Path) -> Path:
    """Copy what the build reads, so that a test may break it."""
    shutil.copytree(ROOT / "docs", to / "docs")
    shutil.copytree(ROOT / "demos", to / "demos")
    shutil.copytree(ROOT / "repro_tutorial", to / "repro_tutorial")  # pages quote its code
    shutil.copytree(ROOT / "tests" / "planted", to / "tests" / "planted")  # and shows programs from here
    shutil.copy(ROOT / "mkdocs.yml", to)
    return to


def build_once(factory: pytest.TempPathFactory) -> Path:
    """The built site, the same for all tests of a session."""
    return _build_into(factory.getbasetemp() / "site")


@functools.cache
def _build_into(site: Path) -> Path:
    result = build(ROOT, site)
    assert result.returncode == 0, f"mkdocs build --strict failed:\n{result.stdout}{result.stderr}"
    return site

"""What holds the parts together: layout, imports one way, cheap and silent import, documented public names."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import repro_tutorial
from repro_tutorial.lessons import load_lessons

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "repro_tutorial"

# Bottom to top: a module imports from earlier lines alone.
ORDER = [
    ["messages"],
    ["determinism", "rng_state", "fingerprint", "virtual_cuda", "datasets"],
    ["seeding", "environment", "processes", "checkpoint"],  # checkpoint saves the states that rng_state reads
    ["runs"],
    ["divergence", "lessons"],
    ["panels"],
    ["plots"],
    ["site_figures"],
    ["doctor"],
    ["cli"],
    ["__main__"],
]


def imported(path: Path) -> set[str]:
    """The modules of ours that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "repro_tutorial":
            rest = node.module.split(".")[1:]
            found |= {rest[0]} if rest else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("repro_tutorial.")}
    return found


def test_imports_point_one_way():
    level = {name: height for height, names in enumerate(ORDER) for name in names}
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if name == "__init__":
            continue
        assert name in level, "name the new module's place in ORDER"
        for other in imported(path) - ({name} if path.parent != PACKAGE else set()):
            assert level[other] < level[name], f"{path.name} imports {other}"


# Bottom to top, as above, within the doctor; what runs inside the program imports nothing else of ours.
DOCTOR = [
    ["enter", "kinds"],
    ["launch"],
    ["compare"],
    ["experiments"],
    ["diagnose"],
    ["report"],
    ["page", "testing"],
    ["evidence", "plugin"],
]


def test_the_doctors_imports_point_one_way():
    level = {name: height for height, names in enumerate(DOCTOR) for name in names}
    for name in {path.stem for path in (PACKAGE / "doctor").glob("*.py")} - {"__init__"}:
        source = (PACKAGE / "doctor" / f"{name}.py").read_text(encoding="utf-8")
        for other in re.findall(r"from repro_tutorial\.doctor\.(\w+) import", source):
            assert level[other] < level[name], f"{name} imports {other}"
        for other in re.findall(r"from repro_tutorial\.doctor import (\w+)", source):
            assert level[other] < level[name], f"{name} imports {other}"


def test_what_runs_inside_a_watched_program_imports_nothing_else_of_ours():
    for path in (PACKAGE / "doctor" / "inside").glob("*.py"):
        ours = re.findall(r"from repro_tutorial[.\w]* import", path.read_text(encoding="utf-8"))
        assert all(line.startswith("from repro_tutorial.doctor.inside") for line in ours), path.name


def test_the_wheel_has_every_package():
    packages = {path.parent for path in PACKAGE.rglob("*.py")} - {PACKAGE / "doctor" / "boot"}
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"][
        "packages"
    ]
    assert {".".join(path.relative_to(ROOT).parts) for path in packages} == set(listed)


def test_no_module_is_a_drawer():
    """A drawer (utils, helpers) collects unrelated ideas until nobody finds them."""
    drawers = {"utils", "helpers", "common", "misc", "core", "base", "types"}
    assert not drawers & {path.stem for path in ROOT.glob("*/**/*.py") if "venv" not in str(path)}


def python(code: str, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ | variables
    )
    return done.stdout.strip()


LOADED = "print(sorted({'torch', 'torchvision', 'matplotlib', 'numpy'} & set(sys.modules)))"


def test_importing_the_package_loads_nothing_heavy():
    assert python(f"import sys, repro_tutorial; {LOADED}") == "[]"


@pytest.mark.parametrize("module", ["messages", "runs", "lessons", "cli"])
def test_what_only_reads_records_loads_nothing_heavy(module):
    assert python(f"import sys, repro_tutorial.{module}; {LOADED}") == "[]"


def test_importing_every_name_leaves_matplotlib_and_torchvision_out():
    assert python(f"import sys; from repro_tutorial import *; {LOADED}") == "['numpy', 'torch']"


def test_the_import_check_can_fail():
    assert python(f"import sys, matplotlib; {LOADED}") == "['matplotlib', 'numpy']"


def test_importing_every_name_changes_no_state():
    code = """
import os, random
import numpy, torch
state = lambda: (random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist(),
                 dict(os.environ), torch.get_num_threads(), torch.are_deterministic_algorithms_enabled(),
                 torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark)
before = state()
from repro_tutorial import *
print(state() == before)
"""
    assert python(code) == "True"


def test_the_two_lists_of_public_names_agree():
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    (guarded,) = [node for node in tree.body if isinstance(node, ast.If)]
    typed = {
        alias.name: node.module.removeprefix("repro_tutorial.")
        for node in guarded.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert typed == repro_tutorial._HOME
    assert repro_tutorial.__all__ == sorted(typed)


@pytest.mark.parametrize("name", repro_tutorial.__all__)
def test_every_public_name_is_documented_and_names_a_lesson_that_exists(name):
    thing = getattr(repro_tutorial, name)
    assert thing.__doc__
    slugs = {lesson.slug for lesson in load_lessons(ROOT)}
    if not isinstance(thing, type):
        (lesson,) = re.findall(r"Lesson: (\w+)", thing.__doc__)
        assert lesson in slugs


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = repro_tutorial.nothing


def test_one_version_everywhere():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert repro_tutorial.__version__ == project["version"]
    assert f"version: {project['version']}\n" in citation


def test_every_dependency_is_justified_and_pinned():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = {
        re.split(r"[\[=<>]", requirement)[0]
        for requirement in project["dependencies"] + extras["docs"] + extras["test"]
    } - {"repro-tutorial"}
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    pinned = dict(
        line.split("==")
        for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        if line and not line.startswith("#")
    )
    assert all(name in contributing for name in wanted)
    assert wanted <= pinned.keys()


def test_files_hold_no_machine_paths():
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout
    home = re.compile(r"(?<![\w.])/(home|root|Users)/\w")
    for name in tracked.splitlines():
        path = ROOT / name
        if path.suffix in (".py", ".md", ".toml", ".json", ".txt", ".yml", ".cff", ".css", ".js"):
            assert not home.search(path.read_text(encoding="utf-8")), name

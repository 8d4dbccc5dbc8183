"""The lesson's claims: what the calls set, what none of them reaches, and that the published table says so."""

import importlib.util
import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from demo_runs import lines, run_demo

from demos import frameworks
from repro_tutorial.determinism import one_thread
from repro_tutorial.divergence import distinct_outcomes
from repro_tutorial.messages import LANGUAGES, InputError
from repro_tutorial.rng_state import isolate_rng
from repro_tutorial.runs import load_experiments

ROOT = Path(__file__).parent.parent
demo = partial(run_demo, "frameworks")
NEVER = {"default_rng", "random_random", "early_layer", "worker_held", "hash_here", "hash_children"}
GLOBAL = {"python", "numpy", "torch_cpu", "torch_cuda", "worker_draws"}


@pytest.fixture(scope="module")
def published():
    return load_experiments(ROOT / "docs/assets/records/frameworks.cpu.json")["table"].results


@pytest.fixture(scope="module", params=["torch", "repro_tutorial", "lightning", "transformers", "accelerate"])
def probed(request):
    """A framework, and what is found of it here, in a process of its own."""
    if importlib.util.find_spec(request.param) is None:
        pytest.skip(f"{request.param} is not installed; the extra [frameworks] installs it")
    found = frameworks.measure(request.param, 7)
    assert "problem" not in found, found
    return request.param, found["table"]


# What the calls set -----------------------------------------------------------------------------------------


def test_without_a_call_nothing_is_set(probed):
    """The probes can say no: two fresh processes draw otherwise, and every switch stands where it was put."""
    _, table = probed
    assert not any(table[""].values())


def test_after_a_call_the_global_generators_repeat_and_the_others_do_not(probed):
    name, table = probed
    for label, row in table.items():
        if label:
            set_ = {key for key, value in row.items() if value}
            assert set_ >= (GLOBAL if name != "torch" else GLOBAL - {"python", "numpy"}), label
            assert not set_ & NEVER, label


def test_determinism_is_asked_for_apart_from_seeds(probed):
    name, table = probed
    for label, row in table.items():
        asked = "determinis" in label
        assert row["algorithms"] is asked, f"{name} {label}"
        assert row["fill"] is asked
    if name in ("repro_tutorial", "lightning"):
        assert list(table.values())[-1]["cublas"]


def test_what_is_published_is_what_is_found_here(probed, published):
    """Another version of a framework may set something else: then the record has to be made anew."""
    name, table = probed
    assert table == published["frameworks"][name]["table"]


def test_the_table_covers_all_frameworks_and_every_cell_is_probed(published):
    assert published["frameworks"].keys() == frameworks.CALLS.keys()
    assert published["probes"] == len(frameworks.PROBES) >= 14
    for name, of in published["frameworks"].items():
        assert of.get("recorded") is None, "measured, not copied from an older record"
        assert of["version"]
        assert of["table"].keys() == {"", *frameworks.CALLS[name]}
        assert all(row.keys() == set(frameworks.PROBES) for row in of["table"].values())
    assert set(published["none"]) >= NEVER


# Two trainings ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [3, 8])
def test_a_generator_that_no_call_reaches_parts_the_trainings_until_it_has_a_seed(seed):
    with isolate_rng(), one_thread():
        plain = [frameworks.train(f"run {number}", seed, cure=False) for number in (1, 2)]
        cured = [frameworks.train(f"run {number}", seed, cure=True) for number in (1, 2)]
    assert distinct_outcomes(plain) == 2
    assert distinct_outcomes(cured) == 1


@pytest.mark.parametrize("lang", LANGUAGES)
def test_the_cure_alone(lang, tmp_path):
    kept, plot = tmp_path / "a.json", tmp_path / "a.svg"
    record = frameworks.main(["--cure", "--lang", lang, "--json", str(kept), "--plot", str(plot)])
    said = lines(record, lang)
    assert said[-1] == ("2 runs: identical bit for bit" if lang == "en" else "2 次运行：逐位相同")
    assert json.loads(kept.read_text("utf-8"))["results"]["different"] == 1
    assert plot.read_text("utf-8").startswith("<?xml")


# What is not installed --------------------------------------------------------------------------------------


def test_a_framework_that_is_not_installed_is_named_and_shown_from_the_record(monkeypatch, published):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    record = frameworks.main(["--only", "lightning", "--lang", "en"])
    said = lines(record)
    assert said[0] == 'lightning is not installed: pip install -e ".[frameworks]" installs it'
    version = published["frameworks"]["lightning"]["version"]
    assert said[1] == f"lightning {version}, from the published record"
    assert said[2] == "  A  seed_everything(s)"
    assert record.results["frameworks"]["lightning"]["recorded"]


def test_without_a_record_it_is_only_named(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(frameworks, "find_root", lambda: tmp_path)
    record = frameworks.main(["--only", "accelerate", "--lang", "en"])
    assert lines(record)[0].startswith("accelerate is not installed")
    assert record.results["calls"] == 0


def test_a_framework_that_cannot_be_imported_is_one_line(monkeypatch, tmp_path):
    (tmp_path / "lightning").mkdir()
    (tmp_path / "lightning" / "__init__.py").write_text("raise ImportError('needs a newer torch')\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    problem = frameworks.measure("lightning", 3)["problem"]["values"]
    assert problem == {"name": "lightning", "problem": "ImportError: needs a newer torch"}


@pytest.mark.parametrize("lang", LANGUAGES)
def test_the_sources_snippet_runs_with_its_new_import(lang):
    if importlib.util.find_spec("lightning") is None:
        pytest.skip("lightning is not installed; the extra [frameworks] installs it")
    page = (ROOT / f"docs/{lang}/lessons/frameworks.md").read_text("utf-8")
    code = page.split("```python\n")[1].split("```")[0] + "\nimport torch\nprint(torch.initial_seed())\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("42")


# Bad input --------------------------------------------------------------------------------------------------

BAD = [
    (["--only", "keras"], "argument --only: invalid choice: 'keras'"),
    (["--seed", "x"], "cannot seed with 'x'"),
    (["--device", "mps"], "cannot compute on mps: PyTorch finds no such device here"),
]


@pytest.mark.parametrize(("arguments", "problem"), BAD, ids=["only", "seed", "device"])
def test_bad_input_is_one_clear_line(arguments, problem):
    with pytest.raises(InputError) as caught:
        frameworks.main([*arguments, "--lang", "en"])
    assert problem in str(caught.value)


def test_bad_input_ends_the_program_with_2():
    done = demo("--only", "keras", "--lang", "zh")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "无效的值" in done.stderr

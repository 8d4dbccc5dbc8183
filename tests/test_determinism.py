"""Every switch is read, set and put back exactly; what looks set but is not in force is named."""

import ast
import os
import subprocess
import sys
from dataclasses import fields, replace

import pytest
import torch

from repro_tutorial.determinism import (
    Switches,
    deterministic,
    get_switches,
    ineffective_switches,
    set_switches,
)
from repro_tutorial.messages import InputError

OTHER = {
    "deterministic_algorithms": True,
    "warn_only": True,
    "fill_uninitialized_memory": False,
    "inductor_deterministic": True,
    "cudnn_deterministic": True,
    "cudnn_benchmark": True,
    "cublas_workspace_config": ":16:8",
    "threads": 1,
    "float32_matmul_precision": "medium",
    "fp32_precision": "ieee",
    "cuda_matmul_fp32_precision": "tf32",
    "cudnn_fp32_precision": "ieee",
    "cudnn_conv_fp32_precision": "ieee",
    "cudnn_rnn_fp32_precision": "ieee",
    "mkldnn_matmul_fp32_precision": "bf16",
    "mkldnn_conv_fp32_precision": "bf16",
    "mkldnn_rnn_fp32_precision": "bf16",
}


def test_the_table_of_other_values_names_every_switch():
    assert OTHER.keys() == {field.name for field in fields(Switches)}


@pytest.mark.parametrize("name", OTHER)
def test_each_switch_is_set_and_put_back(name):
    before = get_switches()
    changes = {name: OTHER[name]}
    if name == "warn_only":  # PyTorch keeps it only together with the algorithms
        changes["deterministic_algorithms"] = True
    wanted = replace(before, **changes)
    assert wanted != before

    set_switches(wanted)
    now = get_switches()
    set_switches(before)

    assert vars(now)[name] == OTHER[name]
    assert get_switches() == before


def test_deterministic_sets_and_restores_everything():
    torch.backends.cudnn.benchmark = True
    before = get_switches()
    with deterministic(threads=1):
        inside = get_switches()
    after = get_switches()
    torch.backends.cudnn.benchmark = False

    assert after == before
    assert inside == replace(
        before,
        deterministic_algorithms=True,
        inductor_deterministic=True,
        cudnn_deterministic=True,
        cudnn_benchmark=False,
        cublas_workspace_config=":4096:8",
        threads=1,
    )


def test_deterministic_restores_when_the_body_raises_and_changes_more():
    before = get_switches()
    with pytest.raises(ZeroDivisionError), deterministic(warn_only=True):
        set_switches(replace(get_switches(), **OTHER))
        _ = 1 / 0
    assert get_switches() == before


def test_restoring_leaves_a_precision_that_follows_the_general_one_following_it():
    """A backend that was not set by itself must not be pinned to the value it happened to show."""
    before = get_switches()
    with deterministic():
        torch.backends.fp32_precision = "ieee"
        torch.backends.cuda.matmul.fp32_precision = "tf32"
    torch.backends.fp32_precision = "tf32"
    followed = torch.backends.cuda.matmul.fp32_precision
    torch.backends.fp32_precision = before.fp32_precision

    assert followed == "tf32"
    assert get_switches() == before


def test_reading_survives_mixed_tf32_interfaces():
    """PyTorch refuses to read float32_matmul_precision after the newer interface was used."""
    before = get_switches()
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    with pytest.raises(RuntimeError):
        torch.get_float32_matmul_precision()
    mixed = get_switches()
    set_switches(before)

    assert mixed.float32_matmul_precision is None
    assert mixed.cuda_matmul_fp32_precision == "tf32"
    assert get_switches() == before


def test_deterministic_makes_an_accumulating_index_put_repeat():
    """Without the switch two threads add in the order in which they come, on the CPU too."""
    index = torch.zeros(1_000_000, dtype=torch.long)
    values = torch.linspace(-1, 1, 1_000_000) ** 3

    def total() -> float:
        return torch.zeros(1).index_put_((index,), values, accumulate=True).item()

    with deterministic(threads=2):
        assert len({total() for _ in range(20)}) == 1
    if torch.get_num_threads() > 1:
        assert len({total() for _ in range(40)}) > 1, "without the switch nothing would have been shown"


def test_cublas_variable_stays_once_cuda_has_started(monkeypatch):
    """To take it away would make the next block say that CUDA started without it."""
    if "CUBLAS_WORKSPACE_CONFIG" in os.environ:
        pytest.skip("the tests were started with the variable")
    with monkeypatch.context() as patch:
        with deterministic():
            patch.setattr(torch.cuda, "is_initialized", lambda: True)
        with deterministic():
            assert get_switches().cublas_workspace_config == ":4096:8"
    del os.environ["CUBLAS_WORKSPACE_CONFIG"]


@pytest.mark.parametrize("threads", [0, -1])
def test_a_bad_number_of_threads_is_refused_and_nothing_changes(threads):
    before = get_switches()
    with (
        pytest.raises(InputError, match=f"cannot compute with {threads} threads"),
        deterministic(threads=threads),
    ):
        pass
    assert get_switches() == before


def test_cublas_is_refused_when_cuda_has_started_without_it(monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(InputError) as caught, deterministic():
        pass
    assert "set CUBLAS_WORKSPACE_CONFIG=:4096:8 before the program starts" in str(caught.value)
    assert not torch.are_deterministic_algorithms_enabled()


SAY = "print([(s.name, s.shows, s.reason) for s in ineffective_switches()])"
WATCHED = ("OMP_NUM_THREADS", "ATEN_CPU_CAPABILITY", "CUBLAS_WORKSPACE_CONFIG", "PYTHONHASHSEED")

CUDNN = ("torch.backends.cudnn.deterministic", "False", "cudnn_in_force")


@pytest.mark.parametrize(
    ("code", "variables", "expected"),
    [
        ("", {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "ATEN_CPU_CAPABILITY": "default"}, []),
        (
            "os.environ |= {'PYTHONHASHSEED': '0', 'OMP_NUM_THREADS': '7', 'ATEN_CPU_CAPABILITY': 'zvector'}",
            {},
            [
                ("PYTHONHASHSEED", "0", "hash_seed"),
                ("OMP_NUM_THREADS", "7", "threads"),
                ("ATEN_CPU_CAPABILITY", "zvector", "cpu_capability"),
            ],
        ),
        (
            "os.environ['PYTHONHASHSEED'] = '1'",
            {"PYTHONHASHSEED": "0"},
            [("PYTHONHASHSEED", "1", "hash_seed")],
        ),
        ("torch.cuda.is_initialized = lambda: True", {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}, []),
        (
            "os.environ['CUBLAS_WORKSPACE_CONFIG'] = ':4096:8'; torch.cuda.is_initialized = lambda: True",
            {},
            [("CUBLAS_WORKSPACE_CONFIG", ":4096:8", "cublas_late")] if sys.platform == "linux" else [],
        ),
    ],
    ids=["in_time", "assigned_too_late", "hash_seed_changed", "cublas_in_time", "cublas_late"],
)
def test_variables_that_came_too_late_are_named(code, variables, expected):
    program = f"import os, torch\nfrom repro_tutorial import ineffective_switches\n{code}\n{SAY}"
    inherited = {name: value for name, value in os.environ.items() if name not in WATCHED}
    child = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=inherited | variables, check=True
    )
    assert ast.literal_eval(child.stdout) == expected


def test_a_value_that_cublas_does_not_know_is_named(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:2")
    assert found() == [("CUBLAS_WORKSPACE_CONFIG", ":4096:2", "cublas_value")]


def found() -> list[tuple[str, str, str]]:
    """What `ineffective_switches` says, less the variables that the test run itself was started with."""
    return [
        (one.name, one.shows, one.reason)
        for one in ineffective_switches()
        if one.name not in ("OMP_NUM_THREADS", "ATEN_CPU_CAPABILITY", "PYTHONHASHSEED")
    ]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda: None, []),
        (lambda: torch.use_deterministic_algorithms(True), [CUDNN]),
        (
            lambda: torch.use_deterministic_algorithms(True, warn_only=True),
            [("use_deterministic_algorithms", "warn_only=True", "warn_only"), CUDNN],
        ),
        (
            lambda: torch.set_deterministic_debug_mode("error"),
            [("use_deterministic_algorithms", "True", "inductor_off"), CUDNN],
        ),
        (
            lambda: (torch.use_deterministic_algorithms(True), torch.set_deterministic_debug_mode(0)),
            [("torch._inductor.config.deterministic", "True", "inductor_alone")],
        ),
        (
            lambda: setattr(torch.backends.cudnn, "deterministic", True),
            [("torch.backends.cudnn.deterministic", "True", "cudnn_unused")],
        ),
        (
            lambda: (
                torch.use_deterministic_algorithms(True),
                setattr(torch.backends.cudnn, "benchmark", True),
            ),
            [CUDNN, ("torch.backends.cudnn.benchmark", "True", "cudnn_benchmark")],
        ),
    ],
    ids=["nothing", "algorithms", "warn_only", "debug_mode", "debug_mode_off", "no_cudnn", "benchmark"],
)
def test_flags_that_say_one_thing_while_another_holds_are_named(change, expected, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    before = get_switches()
    change()
    said = found()
    set_switches(before)
    assert said == expected


def test_explanations_exist_in_both_languages():
    with deterministic(warn_only=True):
        found = ineffective_switches()
    assert found
    for one in found:
        assert one.shows in one.explain("en")
        assert one.explain("zh") != one.explain("en")


def test_a_cublas_value_that_repeats_is_kept(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    with deterministic():
        assert get_switches().cublas_workspace_config == ":16:8"


def test_threads_are_kept_where_none_are_asked_for():
    before = get_switches()
    set_switches(replace(before, threads=3))
    with deterministic():
        inside = torch.get_num_threads()
    set_switches(before)
    assert inside == 3


def test_warn_only_is_passed_on():
    with deterministic(warn_only=True):
        assert torch.is_deterministic_algorithms_warn_only_enabled()


def test_algorithms_without_the_compilers_switch():
    """PyTorch's call moves both; what was asked for is one."""
    before = get_switches()
    wanted = replace(before, deterministic_algorithms=True)
    set_switches(wanted)
    now = get_switches()
    set_switches(before)
    assert now == wanted


def test_restoring_the_old_tf32_interface_does_not_pin_the_new_one():
    """torch.set_float32_matmul_precision pins two backends, which would follow the general setting no more."""
    before = get_switches()
    torch.backends.fp32_precision = "ieee"
    with deterministic():
        torch.set_float32_matmul_precision("medium")
    torch.backends.fp32_precision = "tf32"
    followed = torch.backends.mkldnn.matmul.fp32_precision, torch.backends.cuda.matmul.fp32_precision
    torch.backends.fp32_precision = before.fp32_precision
    set_switches(before)
    assert followed == ("tf32", "tf32")


def test_cudnn_benchmark_beside_cudnn_deterministic_is_named_on_cuda(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    before = get_switches()
    set_switches(replace(before, cudnn_deterministic=True, cudnn_benchmark=True))
    said = found()
    set_switches(before)
    assert said == [("torch.backends.cudnn.benchmark", "True", "cudnn_benchmark")]


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("PYTHONHASHSEED", "random"),
        ("PYTHONHASHSEED", ""),
        ("OMP_NUM_THREADS", "{threads},2"),
        ("OMP_NUM_THREADS", " {threads}"),
        ("OMP_NUM_THREADS", ""),
        ("ATEN_CPU_CAPABILITY", ""),
    ],
)
def test_usual_settings_raise_no_alarm(variable, value, monkeypatch):
    monkeypatch.setenv(variable, value.format(threads=torch.get_num_threads()))
    assert variable not in {one.name for one in ineffective_switches()}


def test_an_embedded_interpreter_raises_no_alarm(monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    monkeypatch.setattr(sys, "executable", "")
    assert "PYTHONHASHSEED" not in {one.name for one in ineffective_switches()}

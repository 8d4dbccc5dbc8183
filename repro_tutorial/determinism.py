"""Read, set and restore the switches that decide which kernels run; say which look set but are not in force."""

import contextlib
import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from repro_tutorial.messages import InputError, text

_backends: Any = torch.backends  # sets most of its attributes at run time, unknown to a type checker
_fill: Any = torch.utils.deterministic  # likewise

CUBLAS_DETERMINISTIC = (":4096:8", ":16:8")  # the two values that NVIDIA documents as repeatable

# Where PyTorch keeps each float32 precision, the general before the particular: a part that was not set
# by itself follows its backend, and a backend follows torch.backends. torch.backends.mkldnn itself is left
# out: its fp32_precision is bound to the general one (PyTorch 2.14), so that setting it would move all.
_FP32_PRECISION: dict[str, Any] = {
    "fp32_precision": _backends,
    "cuda_matmul_fp32_precision": _backends.cuda.matmul,
    "cudnn_fp32_precision": _backends.cudnn,
    "cudnn_conv_fp32_precision": _backends.cudnn.conv,
    "cudnn_rnn_fp32_precision": _backends.cudnn.rnn,
    "mkldnn_matmul_fp32_precision": _backends.mkldnn.matmul,
    "mkldnn_conv_fp32_precision": _backends.mkldnn.conv,
    "mkldnn_rnn_fp32_precision": _backends.mkldnn.rnn,
}


@dataclass(frozen=True)
class Switches:
    """The switches that decide which kernel computes a result, under PyTorch's own names.

    `float32_matmul_precision` is ``None`` while the old and the new TF32 interface are mixed: PyTorch then
    refuses to read it. `cublas_workspace_config` is the environment variable, ``None`` where it is unset.
    """

    deterministic_algorithms: bool
    warn_only: bool
    fill_uninitialized_memory: bool
    inductor_deterministic: bool
    cudnn_deterministic: bool
    cudnn_benchmark: bool
    cublas_workspace_config: str | None
    threads: int
    float32_matmul_precision: str | None
    fp32_precision: str
    cuda_matmul_fp32_precision: str
    cudnn_fp32_precision: str
    cudnn_conv_fp32_precision: str
    cudnn_rnn_fp32_precision: str
    mkldnn_matmul_fp32_precision: str
    mkldnn_conv_fp32_precision: str
    mkldnn_rnn_fp32_precision: str


def get_switches() -> Switches:
    """The switches as they stand.

    Lesson: cifar_cudnn
    """
    try:
        matmul_precision = torch.get_float32_matmul_precision()
    except RuntimeError:  # the two TF32 interfaces were mixed
        matmul_precision = None
    return Switches(
        deterministic_algorithms=torch.are_deterministic_algorithms_enabled(),
        warn_only=torch.is_deterministic_algorithms_warn_only_enabled(),
        fill_uninitialized_memory=_fill.fill_uninitialized_memory,
        inductor_deterministic=_inductor_deterministic(),
        cudnn_deterministic=torch.backends.cudnn.deterministic,
        cudnn_benchmark=torch.backends.cudnn.benchmark,
        cublas_workspace_config=os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
        threads=torch.get_num_threads(),
        float32_matmul_precision=matmul_precision,
        **{name: str(where.fp32_precision) for name, where in _FP32_PRECISION.items()},
    )


def set_switches(switches: Switches) -> None:
    """Make the switches stand as in `switches`; those that stand so already are not touched.

    Lesson: cifar_cudnn
    """
    now = get_switches()
    algorithms = (switches.deterministic_algorithms, switches.warn_only)
    if algorithms != (now.deterministic_algorithms, now.warn_only):
        torch.use_deterministic_algorithms(algorithms[0], warn_only=algorithms[1])
    if switches.inductor_deterministic != _inductor_deterministic():  # the call above moves it
        inductor: Any = importlib.import_module("torch._inductor.config")
        inductor.deterministic = switches.inductor_deterministic
    if switches.fill_uninitialized_memory != now.fill_uninitialized_memory:
        # A property of the module, which is why this assignment reaches the C++ flag.
        _fill.fill_uninitialized_memory = switches.fill_uninitialized_memory
    if switches.cudnn_deterministic != now.cudnn_deterministic:
        torch.backends.cudnn.deterministic = switches.cudnn_deterministic
    if switches.cudnn_benchmark != now.cudnn_benchmark:
        torch.backends.cudnn.benchmark = switches.cudnn_benchmark
    if switches.threads != now.threads:
        torch.set_num_threads(switches.threads)
    if torch.cuda.is_initialized():
        pass  # cuBLAS has read the variable; to change it now would only hide what is in force
    elif switches.cublas_workspace_config is None:
        os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)
    else:
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = switches.cublas_workspace_config
    _set_float32_precision(switches, now)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """In the block PyTorch computes with one thread, and afterwards with as many as before.

    For small networks: several threads spend their time waiting for each other, and their number can change
    the last bits.

    >>> with one_thread():
    ...     torch.get_num_threads()
    1

    Lesson: float_order
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _set_float32_precision(switches: Switches, now: Switches) -> None:
    precision = switches.float32_matmul_precision
    if precision is not None and precision != now.float32_matmul_precision:
        torch.set_float32_matmul_precision(precision)
        for name in ("cuda_matmul_fp32_precision", "mkldnn_matmul_fp32_precision"):
            _FP32_PRECISION[name].fp32_precision = "none"  # the call above pins these two
    for name, where in _FP32_PRECISION.items():
        wanted = getattr(switches, name)
        if where.fp32_precision != wanted:
            where.fp32_precision = "none"  # follow the general setting again, if that is what it did
        if where.fp32_precision != wanted:
            where.fp32_precision = wanted


def _inductor_deterministic() -> bool:
    # Importing the compiler's settings takes seconds; until something did, they are at their default.
    config = sys.modules.get("torch._inductor.config")
    default = os.environ.get("TORCHINDUCTOR_DETERMINISTIC") == "1"
    return bool(getattr(config, "deterministic", default))


def set_deterministic(*, warn_only: bool = False, threads: int | None = None) -> None:
    """Switch deterministic kernels on, for good; `deterministic` does it for a while.

    ``torch.use_deterministic_algorithms(True)`` (compiled code included), cuDNN's own two switches, and
    ``CUBLAS_WORKSPACE_CONFIG`` where it is not set yet. TF32 stays as it is: it costs precision, but it
    repeats. `threads` is the number of intra-op threads, which decides the order of many sums.

    Raises:
        InputError: CUDA has started without ``CUBLAS_WORKSPACE_CONFIG``, which cuBLAS reads once, at its
            start; or `threads` is below 1.

    Lesson: nondeterministic_ops
    """
    now = get_switches()
    cublas = now.cublas_workspace_config
    if cublas not in CUBLAS_DETERMINISTIC:
        if torch.cuda.is_initialized():
            raise InputError("determinism.cublas_late", value=repr(cublas))
        cublas = CUBLAS_DETERMINISTIC[0]
    if threads is not None and threads < 1:
        raise InputError("determinism.bad_threads", threads=threads)
    set_switches(
        replace(
            now,
            deterministic_algorithms=True,
            warn_only=warn_only,
            inductor_deterministic=True,
            cudnn_deterministic=True,
            cudnn_benchmark=False,
            cublas_workspace_config=cublas,
            threads=threads or now.threads,
        )
    )


@contextlib.contextmanager
def deterministic(*, warn_only: bool = False, threads: int | None = None) -> Iterator[None]:
    """Deterministic kernels inside the block, every switch exactly as before after it, also after an error.

    One exception: if CUDA starts inside, ``CUBLAS_WORKSPACE_CONFIG`` stays, since cuBLAS has read it.

    See `set_deterministic` for what is set and for the errors.

    >>> with deterministic():
    ...     torch.are_deterministic_algorithms_enabled()
    True
    >>> torch.are_deterministic_algorithms_enabled()
    False

    Lesson: nondeterministic_ops
    """
    before = get_switches()
    try:
        set_deterministic(warn_only=warn_only, threads=threads)
        yield
    finally:
        set_switches(before)


@dataclass(frozen=True)
class IneffectiveSwitch:
    """A switch that reads `shows` while something else is in force; `explain` says what, and what to do."""

    name: str
    shows: str
    reason: str

    def explain(self, lang: str = "en") -> str:
        """One line in `lang`: what the switch shows, what is in force, what to do."""
        return text(f"ineffective.{self.reason}", lang, name=self.name, shows=self.shows)


def ineffective_switches() -> tuple[IneffectiveSwitch, ...]:
    """The switches that look set but are not in force, or are in force but do not look it.

    Lesson: frameworks
    """
    return (*_ineffective_variables(), *_ineffective_flags())


def _ineffective_variables() -> Iterator[IneffectiveSwitch]:
    """Environment variables that were read before they were assigned."""
    hash_seed = os.environ.get("PYTHONHASHSEED")
    if hash_seed not in (None, "", "random") and not _hash_seed_in_force():
        yield IneffectiveSwitch("PYTHONHASHSEED", str(hash_seed), "hash_seed")
    cublas = os.environ.get("CUBLAS_WORKSPACE_CONFIG")
    if cublas is not None and cublas not in CUBLAS_DETERMINISTIC:
        yield IneffectiveSwitch("CUBLAS_WORKSPACE_CONFIG", cublas, "cublas_value")
    elif (
        cublas is not None
        and torch.cuda.is_initialized()
        and _assigned_since_start("CUBLAS_WORKSPACE_CONFIG")
    ):
        yield IneffectiveSwitch("CUBLAS_WORKSPACE_CONFIG", cublas, "cublas_late")
    threads = os.environ.get("OMP_NUM_THREADS", "")
    outermost = threads.partition(",")[0].strip()  # a list gives the levels of nesting
    if outermost.isdecimal() and int(outermost) not in (0, torch.get_num_threads()):
        yield IneffectiveSwitch("OMP_NUM_THREADS", threads, "threads")
    capability = os.environ.get("ATEN_CPU_CAPABILITY")
    if capability and capability.lower() != torch.backends.cpu.get_cpu_capability().lower():
        yield IneffectiveSwitch("ATEN_CPU_CAPABILITY", capability, "cpu_capability")


def _ineffective_flags() -> Iterator[IneffectiveSwitch]:
    """Flags of PyTorch that say one thing while another holds."""
    switches = get_switches()
    if switches.deterministic_algorithms:
        if switches.warn_only:
            yield IneffectiveSwitch("use_deterministic_algorithms", "warn_only=True", "warn_only")
        if not switches.inductor_deterministic:
            yield IneffectiveSwitch("use_deterministic_algorithms", "True", "inductor_off")
        if not switches.cudnn_deterministic:
            yield IneffectiveSwitch("torch.backends.cudnn.deterministic", "False", "cudnn_in_force")
    elif switches.inductor_deterministic:
        yield IneffectiveSwitch("torch._inductor.config.deterministic", "True", "inductor_alone")
    if switches.cudnn_deterministic and not torch.cuda.is_available():
        yield IneffectiveSwitch("torch.backends.cudnn.deterministic", "True", "cudnn_unused")
    if switches.cudnn_benchmark and (switches.cudnn_deterministic or switches.deterministic_algorithms):
        yield IneffectiveSwitch("torch.backends.cudnn.benchmark", "True", "cudnn_benchmark")


def _hash_seed_in_force() -> bool:
    """Whether a process started with this environment hashes text as this one does."""
    if not sys.executable:  # an embedded interpreter: nothing to ask
        return True
    probe = "reproducible"
    child = subprocess.run(
        [sys.executable, "-S", "-c", f"print(hash({probe!r}))"], capture_output=True, text=True, check=False
    )
    return child.stdout.strip() == str(hash(probe))


def _assigned_since_start(variable: str) -> bool:
    """Whether the process began with another `variable` than it has now (known on Linux alone)."""
    try:
        start = Path("/proc/self/environ").read_bytes()
    except OSError:
        return False
    return f"{variable}={os.environ[variable]}".encode() not in start.split(b"\0")


def switches_as_dict() -> dict[str, bool | int | str | None]:
    """The switches as plain data, for a record."""
    return asdict(get_switches())

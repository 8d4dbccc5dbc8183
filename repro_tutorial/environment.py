"""Where a run happened: versions, threads, devices, switches. No host, user, path or address."""

import os
import platform
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from repro_tutorial.determinism import switches_as_dict

PACKAGES = ("torch", "torchvision", "numpy", "repro-tutorial")

# The environment variables that change results; no other is looked at.
VARIABLES = (
    "ATEN_CPU_CAPABILITY",
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_LAUNCH_BLOCKING",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "MKL_NUM_THREADS",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "PYTHONHASHSEED",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
)


def describe_environment() -> dict[str, Any]:
    """What may change the bits of a result on this machine, as JSON's own types.

    Versions of Python and the packages, system and processor, the instruction set that PyTorch's CPU
    kernels use (`cpu_capability`), BLAS, thread counts, devices, switches, and the environment variables
    of `VARIABLES` that are set. Numbers from two machines can be compared bit for bit only where all of
    this is equal, and not always then.

    Lesson: line_fit
    """
    return {
        "python": platform.python_version(),
        **{package: _version(package) for package in PACKAGES},
        "system": platform.system(),
        "machine": platform.machine(),
        "cpu": _cpu(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "blas": _blas(),
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "devices": _devices(),
        "cuda": torch.version.cuda if torch.cuda.is_available() else None,
        "cudnn": torch.backends.cudnn.version() if torch.cuda.is_available() else None,
        "switches": switches_as_dict(),
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
    }


def _version(package: str) -> str | None:
    if package in sys.modules:
        return str(sys.modules[package].__version__)
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu() -> str:
    """The processor's model name, or its architecture where the system does not tell."""
    try:
        model = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        model = None
    return model[1] if model else platform.processor() or platform.machine()


def _blas() -> str:
    settings = torch.__config__.show()
    name = re.search(r"BLAS_INFO=(\w+)", settings)
    version = re.search(r"(?:Math Kernel Library|OpenBLAS) Version (\S+)", settings)
    return " ".join(found[1] for found in (name, version) if found) or "unknown"


def _devices() -> list[str]:
    devices = ["cpu"]
    devices += [
        f"cuda:{index} {torch.cuda.get_device_name(index)}" for index in range(torch.cuda.device_count())
    ]
    return devices + (["mps"] if torch.backends.mps.is_available() else [])

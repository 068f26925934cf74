# SPDX-License-Identifier: Apache-2.0
"""The lines on the processor and the versions at the top of a run of tests; imports none of them."""

import os
import platform
from importlib import metadata
from pathlib import Path

# The packages that compute.
PACKAGES = ("keras", "tensorflow", "tf-keras", "jax", "jaxlib", "torch", "numpy")
# Libraries choose their kernels by these.
INSTRUCTIONS = (
    "avx",
    "avx2",
    "avx_vnni",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_bf16",
)
# These change rounding, the number of threads, or the instructions that a library uses.
VARIABLES = (
    "LD_PRELOAD",
    "OMP_NUM_THREADS",
    "ONEDNN_MAX_CPU_ISA",
    "TF_CPU_ALLOCATOR_USE_BFC",
    "TF_ENABLE_ONEDNN_OPTS",
    "TF_NUM_INTRAOP_THREADS",
    "XLA_FLAGS",
)


def processor_flags() -> list[str]:
    """Returns the features of the processor, as Linux names them; none on other systems."""
    return _cpuinfo().get("flags", "").split()


def _cpuinfo() -> dict[str, str]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return {}
    pairs = [line.split(":", 1) for line in lines if ":" in line]
    return {name.strip(): value.strip() for name, value in pairs}


def versions() -> list[str]:
    """Returns the packages that compute, with their versions, without importing them."""
    found = [f"Python {platform.python_version()}"]
    for package in PACKAGES:
        try:
            found.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            continue
    return found


def lines() -> list[str]:
    """Returns the lines of the header."""
    processor = (
        _cpuinfo().get("model name") or platform.processor() or platform.machine()
    )
    instructions = [name for name in INSTRUCTIONS if name in processor_flags()]
    hidden = (
        " (newer than avx2: hidden)"
        if "hide_instructions" in os.environ.get("LD_PRELOAD", "")
        else ""
    )
    cores = os.cpu_count()
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores
    backend = os.environ.get("KERAS_BACKEND", "tensorflow")
    variables = [
        f"{name}={os.environ[name]}" for name in VARIABLES if name in os.environ
    ]
    return [
        f"processor: {processor}, {usable} of {cores} cores",
        f"instructions: {' '.join(instructions) or 'not listed by this system'}{hidden}",
        f"versions: keras on {backend}; {', '.join(versions())}",
        f"variables: {' '.join(variables) or 'none that change rounding'}",
    ]

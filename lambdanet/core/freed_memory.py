# SPDX-License-Identifier: Apache-2.0
"""Keeps the memory of freed arrays for the next ones, instead of returning it to the system.

An array of some megabytes is returned to the system when it is freed, and the next one is made of new pages,
which the system must clear first. This costs up to half of the time of a lambda layer on large maps.
"""

import ctypes
import os
import sys

# TensorFlow reads both when it makes its first tensor. The limit of its allocator is 64 GiB otherwise.
TENSORFLOW = {"TF_CPU_ALLOCATOR_USE_BFC": "1", "TF_CPU_BFC_MEM_LIMIT_IN_MB": str(2**20)}

# The parameters of mallopt in glibc's malloc.h, and their values: never return the end of the heap, never
# map an array on its own, and one heap for all threads, as those of further threads have at most 64 MiB.
_GLIBC = {-1: -1, -4: 0, -8: 1}


def keep_for_tensorflow() -> None:
    """Makes TensorFlow keep memory, unless the user has set its variables; before its first tensor.

    TensorFlow does so by itself on processors where it uses oneDNN: those with AVX-512 VNNI, AVX-VNNI,
    bfloat16 or AMX instructions.
    """
    for name, value in TENSORFLOW.items():
        os.environ.setdefault(name, value)


def allocator(backend: str) -> str:
    """Returns the allocator of arrays that commands use on a CPU, for reports of measurements.

    Args:
      backend: the backend of Keras: "tensorflow", "jax" or "torch".
    """
    keeps = (
        backend == "tensorflow" and os.environ.get("TF_CPU_ALLOCATOR_USE_BFC") == "1"
    )
    return "memory is kept" if keeps else "default allocator"


def keep_memory() -> bool:
    """Makes this process keep the memory of freed arrays, on TensorFlow, JAX and torch on a CPU.

    Call it before the first tensor. Lambda layers on maps from 28x28 on take about half of the time on JAX
    and torch, and on TensorFlow where the processor has no VNNI instructions. The process stays as large as
    it was at its peak, about a tenth larger than without: not for a server that shares its machine. Programs
    of `lambdanet` do so for TensorFlow alone.

    Returns:
      Whether it holds for all three; False where the C library is not glibc, as on macOS and Windows. There
      it holds for TensorFlow alone.

    Example:
      >>> import lambdanet
      >>> lambdanet.keep_memory()
      True
    """
    keep_for_tensorflow()
    if not sys.platform.startswith("linux"):
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    for parameter, value in _GLIBC.items():
        library.mallopt(parameter, value)
    return True

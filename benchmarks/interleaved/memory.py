# SPDX-License-Identifier: Apache-2.0
"""Measures the peak memory of a call, on the CPU or the GPU."""

import ctypes
import re
import sys
from collections.abc import Callable
from pathlib import Path

# Environment variables that make the C library and TensorFlow return blocks of 64 KiB or more to the system
# at once, so that resident memory equals memory in use. A preloaded allocator would keep them.
ENVIRONMENT = {
    "LD_PRELOAD": "",
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "MALLOC_TRIM_THRESHOLD_": "65536",
    "TF_CPU_ALLOCATOR_USE_BFC": "0",
    "TF_ONEDNN_USE_SYSTEM_ALLOCATOR": "1",
}
_GPU = "GPU:0"
_PR_SET_THP_DISABLE = 41


def peak_bytes(run: Callable[[], object], calls: int) -> int | None:
    """Returns the peak memory of calls of `run` minus the memory in use before, in bytes; None if unknown.

    It includes results and temporary buffers, but not inputs, weights and constants. On a CPU it is resident
    memory: the high-water mark during the call, which Linux can reset, minus the size before, accurate to
    about 0.1 MiB; the process needs `ENVIRONMENT`. On a GPU it is the memory that TensorFlow has allocated.
    The function must have run before.
    """
    measure = _allocated_bytes if on_gpu() else _resident_bytes
    peaks = [measure(run) for _ in range(calls)]
    return max((peak for peak in peaks if peak is not None), default=None)


def on_gpu() -> bool:
    """Whether TensorFlow is imported and has a GPU."""
    tensorflow = sys.modules.get("tensorflow")
    return bool(tensorflow and tensorflow.config.list_physical_devices("GPU"))


def _allocated_bytes(run: Callable[[], object]) -> int:
    experimental = sys.modules["tensorflow"].config.experimental
    experimental.reset_memory_stats(_GPU)
    before = experimental.get_memory_info(_GPU)["current"]
    run()
    return experimental.get_memory_info(_GPU)["peak"] - before


def _resident_bytes(run: Callable[[], object]) -> int | None:
    if not sys.platform.startswith("linux"):
        return None
    ctypes.CDLL(None).prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0)  # avoids pages of 2 MiB
    try:
        Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
    except OSError:  # some containers forbid it
        return None
    before = _status("VmRSS")
    run()
    return _status("VmHWM") - before


def _status(field: str) -> int:
    """Returns a size from /proc/self/status in bytes."""
    found = re.search(
        rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE
    )
    assert found
    return 1024 * int(found[1])

# SPDX-License-Identifier: Apache-2.0
"""The description of the machine that a benchmark runs on."""

import importlib.metadata
import os
import platform
import re
from pathlib import Path


def describe(threads: int) -> dict[str, str | float]:
    """Returns the processor, cores, threads, load average, and versions."""
    return {
        "cpu": _cpu(),
        "cores": cores(),
        "threads": threads,
        "load_before": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "tensorflow": importlib.metadata.version("tensorflow"),
    }


def cores() -> int:
    """Returns the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu() -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine()

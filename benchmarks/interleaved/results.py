# SPDX-License-Identifier: Apache-2.0
"""Measurements of contenders, and the machine that they ran on."""

import dataclasses
import importlib.metadata
import os
import platform
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from lambdanet.core import freed_memory, which_keras

BUSY_LOAD = 0.5  # from this load average on, times are noisy
QUANTILES = {
    "ms_median": 0.5,
    "ms_min": 0,
    "ms_quartile_1": 0.25,
    "ms_quartile_3": 0.75,
    "ms_max": 1,
}

Machine = dict[str, Any]


@dataclasses.dataclass
class Measurement:
    """The measurement of a contender in a case."""

    case: Any  # of the layer or model benchmark
    contender: str
    library: str = ""  # with its version
    device: str = ""
    # Per call, a sample per turn.
    seconds: list[float] = dataclasses.field(default_factory=list)
    peak_bytes: int | None = None  # of a call; None if unknown
    note: str = ""  # what is missing, or differs from the other contenders
    reference: "Measurement | None" = None  # of the reference in the same case and run

    def milliseconds(self, quantile: float = 0.5) -> float | None:
        """Returns a quantile of the times, by default the median."""
        return (
            1000 * float(np.quantile(self.seconds, quantile)) if self.seconds else None
        )

    def mebibytes(self) -> float | None:
        """Returns the peak memory in MiB."""
        return None if self.peak_bytes is None else self.peak_bytes / 2**20

    def speed(self) -> float | None:
        """Returns the speed relative to the reference, by the medians."""
        return self._share(self.reference, self, Measurement.milliseconds)

    def add_note(self, note: str) -> None:
        """Appends a remark to the note."""
        self.note = "; ".join(filter(None, [self.note, note]))

    def note_device_mismatch(self) -> None:
        """Adds a note if the reference ran on another device, since their ratio includes the devices'."""
        other = self.reference.device if self.reference else ""
        if self.device and other and self.device != other:
            self.add_note(f"on {self.device}, not on {other}")

    def columns(self, reference: str) -> dict[str, str | int | float | None]:
        """Returns the columns of a CSV file that the benchmarks share; `reference` is in their names."""
        numbers = {
            name: self.milliseconds(quantile) for name, quantile in QUANTILES.items()
        }
        numbers[f"times_as_fast_as_{reference}"] = self.speed()
        numbers["peak_mib"] = self.mebibytes()
        numbers[f"peak_as_share_of_{reference}"] = self._share(
            self, self.reference, Measurement.mebibytes
        )
        return {
            "batch": self.case.batch,
            "dtype": self.case.dtype,
            "pass": self.case.pass_name,
            "repeats": len(self.seconds),
            **{name: round_digits(number) for name, number in numbers.items()},
            "note": self.note,
            "library": self.library,
            "device": self.device,
        }

    @staticmethod
    def _share(
        a: "Measurement | None",
        b: "Measurement | None",
        value: "Callable[[Measurement], float | None]",
    ) -> float | None:
        """Returns a value of `a` divided by that of `b`; None if either is missing or 0."""
        top = a and value(a)
        bottom = b and value(b)
        return top / bottom if top and bottom else None


def round_digits(value: float | None) -> float | None:
    """Rounds a number to five significant digits."""
    return None if value is None else float(f"{value:.5g}")


def announce(dtype: str) -> Machine:
    """Prints and returns the machine, its cores, and whether it is busy."""
    load = round(os.getloadavg()[0], 2)
    backend = which_keras.keras_3_backend()
    about: Machine = {
        "cpu": _cpu(),
        "cores": num_cores(),
        "load_before": load,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "allocator": freed_memory.allocator(backend),
        "tensorflow": importlib.metadata.version("tensorflow"),
        "backend": f"{backend} {importlib.metadata.version(backend)}",
    }
    machine = "{cpu}, {cores} cores; {backend}; {allocator}".format_map(about)
    print(machine, dtype, sep=", ")
    if load >= BUSY_LOAD:
        print(
            f"the machine is busy (load {load}): times are noisy, and too long for\n"
            "libraries whose threads wait for each other in a loop, such as PyTorch"
        )
    return about


def num_cores() -> int:
    """Returns the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu() -> str:
    try:
        found = re.search(
            r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE
        )
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine()

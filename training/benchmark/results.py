# SPDX-License-Identifier: Apache-2.0
"""Measurements of contenders, their CSV file, and the machine that they ran on."""

import dataclasses
import importlib.metadata
import os
import platform
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lambdanet.training.benchmark.cases import has_own_scope


@dataclasses.dataclass
class Measurement:
    """The measurement of a contender in a case.

    Attributes:
      case: the case of the layer or model benchmark.
      contender: the name of the contender.
      library, device: the library with its version, and the device.
      seconds: the seconds per call, a sample per turn; empty if it failed.
      peak_bytes: the peak memory of a call; None if unknown.
      note: what is missing, or differs from the other contenders.
      reference: the measurement of the reference in the same case and run.
    """

    case: Any
    contender: str
    library: str = ""
    device: str = ""
    seconds: list[float] = dataclasses.field(default_factory=list)
    peak_bytes: int | None = None
    note: str = ""
    reference: "Measurement | None" = None

    def milliseconds(self, quantile: float = 0.5) -> float | None:
        """Returns a quantile of the times, by default the median."""
        return 1000 * float(np.quantile(self.seconds, quantile)) if self.seconds else None

    def mebibytes(self) -> float | None:
        """Returns the peak memory in MiB."""
        return None if self.peak_bytes is None else self.peak_bytes / 2**20

    def advantage(self, value: "Callable[[Measurement], float | None]") -> float | None:
        """Returns a value of the reference divided by its own; None if either is missing or 0."""
        own, reference = value(self), self.reference and value(self.reference)
        return reference / own if own and reference else None

    def speed(self) -> float | None:
        """Returns the speed relative to the reference, by the medians."""
        return self.advantage(Measurement.milliseconds)

    def memory_share(self) -> float | None:
        """Returns the peak memory divided by the reference's."""
        reference = self.reference and self.reference.peak_bytes
        return self.peak_bytes / reference if self.peak_bytes is not None and reference else None

    def add_note(self, note: str) -> None:
        self.note = "; ".join(filter(None, [self.note, note]))

    def note_device_mismatch(self) -> None:
        """Adds a note if the reference ran on another device, since their ratio includes the devices'."""
        other = self.reference.device if self.reference else ""
        if self.device and other and self.device != other:
            self.add_note(f"on {self.device}, not on {other}")

    def columns(self) -> dict[str, str | int | float | None]:
        """Returns the row of the CSV file."""
        case = self.case
        return {
            "height": case.height,
            "width": case.width,
            "channels": case.channels,
            "batch": case.batch,
            "scope": "own" if has_own_scope(self.contender) else case.scope_name,
            "dtype": case.dtype,
            "contender": self.contender,
            "pass": case.pass_name,
            "repeats": len(self.seconds),
            "ms_median": round_digits(self.milliseconds()),
            "ms_min": round_digits(self.milliseconds(0)),
            "ms_quartile_1": round_digits(self.milliseconds(0.25)),
            "ms_quartile_3": round_digits(self.milliseconds(0.75)),
            "ms_max": round_digits(self.milliseconds(1)),
            "times_as_fast_as_einsum": round_digits(self.speed()),
            "peak_mib": round_digits(self.mebibytes()),
            "peak_as_share_of_einsum": round_digits(self.memory_share()),
            "note": self.note,
            "library": self.library,
            "device": self.device,
        }


def ran_on(rows: Iterable[Measurement | Mapping[str, Any]], machine: Mapping[str, str | float]) -> str:
    """Returns the devices, processor and version of TensorFlow of measurements, for the footer of a plot.

    Args:
      rows: the measurements, or their columns.
      machine: the result of `describe_machine`.
    """
    devices = [row.device if isinstance(row, Measurement) else row["device"] for row in rows]
    accelerators = [device for device in dict.fromkeys(devices) if device not in ("", "CPU")]
    where = [*accelerators, f"{machine['cpu']}, {machine['threads']} threads"]
    return f"{' with '.join(where)}, tensorflow {machine['tensorflow']}"


def round_digits(value: float | None) -> float | None:
    """Rounds a number to five significant digits."""
    return None if value is None else float(f"{value:.5g}")


def describe_machine(threads: int) -> dict[str, str | float]:
    """Returns the processor, cores, threads, load average, and versions."""
    return {
        "cpu": _cpu(),
        "cores": num_cores(),
        "threads": threads,
        "load_before": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "tensorflow": importlib.metadata.version("tensorflow"),
    }


def num_cores() -> int:
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

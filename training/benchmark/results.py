# SPDX-License-Identifier: Apache-2.0
"""Measurements of contenders, and their CSV file."""

import csv
import dataclasses
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lambdanet.files import write_output
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
            "ms_median": rounded(self.milliseconds()),
            "ms_min": rounded(self.milliseconds(0)),
            "ms_quartile_1": rounded(self.milliseconds(0.25)),
            "ms_quartile_3": rounded(self.milliseconds(0.75)),
            "ms_max": rounded(self.milliseconds(1)),
            "times_as_fast_as_einsum": rounded(self.speed()),
            "peak_mib": rounded(self.mebibytes()),
            "peak_as_share_of_einsum": rounded(self.memory_share()),
            "note": self.note,
            "library": self.library,
            "device": self.device,
        }


def ran_on(rows: Iterable[Measurement | Mapping[str, Any]], machine: Mapping[str, str | float]) -> str:
    """Returns the devices, processor and version of TensorFlow of measurements, for the footer of a plot.

    Args:
      rows: the measurements, or their columns.
      machine: the result of `machine.describe`.
    """
    devices = [row.device if isinstance(row, Measurement) else row["device"] for row in rows]
    accelerators = [device for device in dict.fromkeys(devices) if device not in ("", "CPU")]
    where = [*accelerators, f"{machine['cpu']}, {machine['threads']} threads"]
    return f"{' with '.join(where)}, tensorflow {machine['tensorflow']}"


def rounded(value: float | None) -> float | None:
    """Rounds a number to five significant digits."""
    return None if value is None else float(f"{value:.5g}")


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]], machine: Mapping[str, str | float]) -> None:
    """Writes a CSV file of the rows, each with the description of the machine.

    Raises:
      InputError: the file cannot be written.
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, [*rows[0], *machine], lineterminator="\n")
    writer.writeheader()
    writer.writerows({**row, **machine} for row in rows)
    write_output(path, text.getvalue())

# SPDX-License-Identifier: Apache-2.0
"""What was measured of a contender in a case, and the files that hold it."""

import csv
import dataclasses
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lambdanet.files import write_output
from lambdanet.training.benchmark.cases import has_own_scope


@dataclasses.dataclass
class Row:
    """One contender in one case.

    Attributes:
      case: the case, of layers or of models.
      contender: its name.
      library, device: what it ran on.
      seconds: of one call, a sample for each repeat; empty where it gave none.
      peak_bytes: the memory that a call takes at its peak; None where it is not known.
      note: why something is missing, or different from other rows.
      reference: the row that ratios are taken to, of the same case and run.
    """

    case: Any
    contender: str
    library: str = ""
    device: str = ""
    seconds: list[float] = dataclasses.field(default_factory=list)
    peak_bytes: int | None = None
    note: str = ""
    reference: "Row | None" = None

    def milliseconds(self, quantile: float = 0.5) -> float | None:
        """A quantile of the samples; the median by default."""
        return 1000 * float(np.quantile(self.seconds, quantile)) if self.seconds else None

    def speed(self) -> float | None:
        """How many times as fast as the reference it is, by the medians."""
        own, other = self.milliseconds(), self.reference and self.reference.milliseconds()
        return other / own if own and other else None

    def mebibytes(self) -> float | None:
        """Peak memory in MiB."""
        return None if self.peak_bytes is None else self.peak_bytes / 2**20

    def explain(self, note: str) -> None:
        """Adds a note."""
        self.note = "; ".join(filter(None, [self.note, note]))

    def mark_device(self) -> None:
        """Adds a note if it ran on another device than the reference: their ratio is of devices too."""
        other = self.reference.device if self.reference else ""
        if self.device and other and self.device != other:
            self.explain(f"on {self.device}, and not on {other}")

    def columns(self) -> dict[str, str | int | float | None]:
        """The row of the csv file."""
        case = self.case
        reference = self.reference.mebibytes() if self.reference else None
        own = self.mebibytes()
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
            "peak_mib": rounded(own),
            "peak_as_share_of_einsum": rounded(own / reference if own is not None and reference else None),
            "note": self.note,
            "library": self.library,
            "device": self.device,
        }


def ran_on(rows: Iterable[Row | Mapping[str, Any]], machine: Mapping[str, str | float]) -> str:
    """Returns the line that says below a picture what its rows were measured on.

    Args:
      rows: the results, or their columns.
      machine: as `machine.describe` has it.
    """
    devices = [row.device if isinstance(row, Row) else row["device"] for row in rows]
    accelerators = [device for device in dict.fromkeys(devices) if device not in ("", "CPU")]
    where = [*accelerators, f"{machine['cpu']}, {machine['threads']} threads"]
    return f"{' with '.join(where)}, tensorflow {machine['tensorflow']}"


def rounded(value: float | None) -> float | None:
    """Returns a number with five significant digits."""
    return None if value is None else float(f"{value:.5g}")


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]], machine: Mapping[str, str | float]) -> None:
    """Writes the columns of all rows, each with the description of the machine; the file appears whole.

    Raises:
      InputError: the file cannot be written.
    """
    text = io.StringIO()
    writer: csv.DictWriter[str] | None = None
    for row in rows:
        columns = {**row, **machine}
        if writer is None:
            writer = csv.DictWriter(text, list(columns), lineterminator="\n")
            writer.writeheader()
        writer.writerow(columns)
    write_output(path, text.getvalue().encode())

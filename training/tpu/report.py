# SPDX-License-Identifier: Apache-2.0
"""What the TPU compiler says of a step, by layer, as text and as JSON."""

import dataclasses
import re
from collections.abc import Collection
from typing import Any

from lambdanet import text_table
from lambdanet.training.tpu import chips
from lambdanet.training.tpu.costs import Cost, Totals

CAVEAT = (
    "an estimate by the TPU compiler for one core: no input pipeline, no collectives between cores, "
    "nothing measured"
)

# What an operation's name begins with where it is part of a gradient, or of a function that was called.
_WRAPPERS = ("call", "gradient_tape", "PartitionedCall", "StatefulPartitionedCall")
_ARGUMENTS = "XLA_Args"  # what the compiler calls weights and inputs
UNNAMED = "unnamed"


@dataclasses.dataclass(frozen=True)
class Report(Totals):
    """What the compiler says of a step on one core.

    Attributes:
      name: what was compiled.
      topology: that it was compiled for.
      num_cores: of the topology.
      batch: examples of a step on each core.
      hbm: bytes of HBM needed: `arguments`, `outputs` that are not in an argument's place, `temporaries`.
      operations: every operation, in the order in which the program runs them.
      roots: the names of the models, which the names of their layers begin with.
      open_loops: loops whose length depends on what is computed; they count as run once.
    """

    name: str
    topology: str
    num_cores: int
    batch: int
    hbm: dict[str, int]
    operations: tuple[Cost, ...]
    roots: tuple[str, ...] = ()
    open_loops: tuple[str, ...] = ()

    @property
    def chip(self) -> chips.Chip:
        """What the step runs on."""
        return chips.chip_of(self.topology)

    @property
    def hbm_needed(self) -> int:
        """Bytes of HBM of one core."""
        return sum(self.hbm.values())

    @property
    def seconds(self) -> float:
        """Of a step: the compiler's estimate of its cycles, over the clock."""
        return self.cycles / self.chip.clock

    @property
    def of_peak(self) -> float:
        """The FLOPs a second as a part of the chip's peak."""
        return self.flops / self.seconds / self.chip.peak if self.seconds else 0.0

    @property
    def examples_per_second(self) -> float:
        """Of one core."""
        return self.batch / self.seconds if self.seconds else 0.0

    def costliest(self, count: int = 10) -> list[Cost]:
        """Returns the operations that take most of the time, the longest first."""
        return sorted(self.operations, key=lambda operation: -operation.cycles)[:count]

    def layers(self) -> dict[str, Cost]:
        """Returns what each layer takes, its gradient included, the costliest first.

        `times` is then the number of its operations.
        """
        found: dict[str, list[Cost]] = {}
        for operation in self.operations:
            found.setdefault(layer_of(operation.op_name, self.roots), []).append(operation)
        sums = {layer: _sum(layer, operations) for layer, operations in found.items()}
        return dict(sorted(sums.items(), key=lambda item: -item[1].cycles))

    def to_json(self, count: int = 10) -> dict[str, Any]:
        """Returns the figures, the costliest layers and operations, as JSON has them.

        Args:
          count: how many layers and operations.
        """
        return {
            "name": self.name,
            "topology": self.topology,
            "chip": self.chip.name,
            "cores": self.num_cores,
            "batch_per_core": self.batch,
            "estimate": CAVEAT,
            "hbm_bytes": {"needed": self.hbm_needed, "available": self.chip.hbm, **self.hbm},
            "seconds": self.seconds,
            "examples_per_second": {
                "core": self.examples_per_second,
                "topology": self.examples_per_second * self.num_cores,
            },
            "flops": self.flops,
            "bytes_moved": self.bytes,
            "fraction_of_peak": self.of_peak,
            "open_loops": list(self.open_loops),
            "layers": [self._entry(cost) for cost in list(self.layers().values())[:count]],
            "operations": [
                {
                    **self._entry(cost),
                    "layer": layer_of(cost.op_name, self.roots),
                    "opcode": cost.opcode,
                    "times": cost.times,
                }
                for cost in self.costliest(count)
            ],
        }

    def _entry(self, cost: Cost) -> dict[str, Any]:
        seconds = cost.cycles / self.chip.clock
        return {"name": cost.op_name, "seconds": seconds, "flops": cost.flops, "bytes": cost.bytes}


def render(report: Report, count: int = 10) -> str:
    """Returns a report as text: what it needs, what it takes, and where the time goes.

    Args:
      report: of a step.
      count: how many layers and operations to show.
    """
    chip, per_core = report.chip, report.examples_per_second
    parts = ", ".join(f"{name} {_gib(size)}" for name, size in report.hbm.items() if size > 2**20)
    rate = report.flops / report.seconds / 1e12 if report.seconds else 0.0
    traffic = report.bytes / report.seconds / 1e9 if report.seconds else 0.0
    lines = [
        f"{report.name}, {report.batch} on each of {report.num_cores} cores of {report.topology}",
        CAVEAT,
        "",
        f"  HBM           {_gib(report.hbm_needed)} of {_gib(chip.hbm)} GiB: {parts or 'less than a MiB'}",
        f"  time          {1e3 * report.seconds:.2f} ms a step",
        f"  examples/s    {per_core:.0f} on a core, {per_core * report.num_cores:.0f} on all",
        f"  arithmetic    {report.flops / 1e12:.3f} TFLOP, {rate:.1f} TFLOP/s, {100 * report.of_peak:.1f} % "
        f"of the peak of {chip.peak / 1e12:g} of a {chip.name}",
        f"  HBM traffic   {report.bytes / 1e9:.2f} GB, {traffic:.0f} GB/s",
    ]
    if report.open_loops:
        lines.append(f"  counted once  loops of unknown length: {', '.join(report.open_loops)}")
    lines += [
        "",
        "costliest layers",
        "",
        _layers(report, count),
        "costliest operations",
        "",
        _costliest(report, count),
    ]
    return "\n".join(lines)


def layer_of(op_name: str, roots: Collection[str]) -> str:
    """Returns the layer that an operation belongs to.

    Args:
      op_name: such as "gradient_tape/resnet_50/stem_norm/mul".
      roots: names of models, which are left out.

    Example:
      >>> layer_of("gradient_tape/resnet_50/stem_norm/mul", ["resnet_50"])
      'stem_norm'
    """
    if op_name == _ARGUMENTS:
        return "weights and inputs"
    scopes = op_name.split("/")[:-1] if "/" in op_name else [op_name]
    while len(scopes) > 1 and (scopes[0].partition(".")[0] in _WRAPPERS or scopes[0] in roots):
        scopes = scopes[1:]
    compilers_own = re.fullmatch(r"[a-z-]+\.\d+(;.*)?", scopes[0])
    return UNNAMED if compilers_own or not scopes[0] else scopes[0]


def _sum(layer: str, operations: list[Cost]) -> Cost:
    totals = (sum(getattr(o, field) for o in operations) for field in ("cycles", "flops", "bytes"))
    return Cost(layer, "layer", layer, len(operations), *totals)


def _layers(report: Report, count: int) -> str:
    rows = [[*_figures(report, cost), layer] for layer, cost in list(report.layers().items())[:count]]
    return text_table.render(["ms", "%", "TFLOP/s", "GB", "layer"], rows)


def _costliest(report: Report, count: int) -> str:
    rows = [
        [
            *_figures(report, cost),
            str(cost.times),
            layer_of(cost.op_name, report.roots),
            cost.opcode,
            cost.op_name or "-",
        ]
        for cost in report.costliest(count)
    ]
    return text_table.render(["ms", "%", "TFLOP/s", "GB", "times", "layer", "as", "operation"], rows)


def _figures(report: Report, cost: Cost) -> list[str]:
    seconds = cost.cycles / report.chip.clock
    rate = cost.flops / seconds / 1e12 if seconds else 0.0
    share = 100 * seconds / report.seconds if report.seconds else 0.0
    return [f"{1e3 * seconds:.3f}", f"{share:.1f}", f"{rate:.2f}", f"{cost.bytes / 1e9:.3f}"]


def _gib(size: int) -> str:
    return f"{size / chips.GIB:.2f}"

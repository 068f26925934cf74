# SPDX-License-Identifier: Apache-2.0
"""Reports of a compiled step, by layer and operation, as text and JSON."""

import dataclasses
import re
from collections import Counter
from collections.abc import Collection
from typing import Any

from lambdanet.core import text_table
from lambdanet.tpu_estimates import chips
from lambdanet.tpu_estimates.costs import Cost

CAVEAT = (
    "an estimate by the TPU compiler for one core: no input pipeline, the time of collectives between cores "
    "apart, nothing measured"
)

# Name scopes of gradients and of called functions.
_WRAPPERS = ("call", "gradient_tape", "PartitionedCall", "StatefulPartitionedCall")
# The compiler's names of weights and inputs: TensorFlow's, and JAX's, such as "state[0][12]".
_ARGUMENTS = re.compile(r"XLA_Args|\w+(\[\d+\])+")
_GRADIENT = re.compile(r"(?:jvp|transpose)\((.*)\)")  # JAX's name scopes of gradients
_FIGURES = ("ms", "%", "TFLOP/s", "GB")  # the columns of `_figures`
_COUNTED = re.compile(r"(.*?)(_\d+)?")
UNNAMED = "unnamed"


@dataclasses.dataclass(frozen=True)
class Report:
    """The compiler's estimates for a step on one core.

    Attributes:
      name: the description of the step.
      topology: the topology that it was compiled for.
      num_cores: the number of cores in the topology.
      batch: examples per step and core, or per `model_parallel` cores.
      hbm: the required HBM in bytes: `arguments`, `outputs` (except those written over arguments) and
        `temporaries`.
      operations: the operations, in the order in which they run.
      model_names: the models in the step, to leave out of the names of their layers.
      unbounded_loops: the loops with unknown trip counts, which count once.
      model_parallel: the number of cores that compute on the same batch.
      note: why there are no operations; empty where there are.
      counts: the compiler's own counts of FLOPs and of bytes of HBM traffic, which stand for the sums where
        there are no operations.
      remark: how the program differs from what the device would run; empty if it does not.
    """

    name: str
    topology: str
    num_cores: int
    batch: int
    hbm: dict[str, int]
    operations: tuple[Cost, ...]
    model_names: tuple[str, ...] = ()
    unbounded_loops: tuple[str, ...] = ()
    model_parallel: int = 1
    note: str = ""
    counts: tuple[float, float] = (0.0, 0.0)
    remark: str = ""

    @property
    def chip(self) -> chips.Chip:
        """The chip of the topology."""
        return chips.chip_of(self.topology)

    @property
    def hbm_needed(self) -> int:
        """The HBM required on a core, in bytes."""
        return sum(self.hbm.values())

    @property
    def cycles(self) -> int:
        """The compiler's estimate of the cycles."""
        return sum(cost.cycles for cost in self.operations)

    @property
    def collectives(self) -> dict[str, int]:
        """The number of exchanges between cores, by kind; `seconds` has no time for them."""
        found: Counter[str] = Counter()
        for cost in self.operations:
            if cost.collective:
                found[cost.collective] += cost.times
        return found

    @property
    def collective_seconds(self) -> float:
        """The least time of these exchanges: what a core sends, by all of its links at once."""
        return sum(cost.exchanged for cost in self.operations) / self.chip.links

    @property
    def opcodes(self) -> dict[str, int]:
        """The number of runs of operations by opcode, such as "fusion", in descending order."""
        found: Counter[str] = Counter()
        for cost in self.operations:
            found[cost.opcode] += cost.times
        return dict(found.most_common())

    @property
    def flops(self) -> float:
        """The FLOPs of convolutions and products."""
        if self.note:
            return self.counts[0]
        return sum(cost.flops for cost in self.operations)

    @property
    def bytes(self) -> float:
        """The HBM traffic in bytes."""
        if self.note:
            return self.counts[1]
        return sum(cost.bytes for cost in self.operations)

    @property
    def seconds(self) -> float:
        """The time of a step: the estimated cycles divided by the clock; 0 where they are unknown."""
        return self.cycles / self.chip.clock

    @property
    def peak_fraction(self) -> float:
        """The FLOPs per second divided by the chip's peak."""
        return self.flops / self.seconds / self.chip.peak if self.seconds else 0.0

    @property
    def examples_per_second(self) -> float:
        """The throughput of a core."""
        if not self.seconds:
            return 0.0
        return self.batch / self.seconds / self.model_parallel

    def costliest_operations(self, count: int = 10) -> list[Cost]:
        """Returns the operations that take the most time, in descending order."""
        return sorted(self.operations, key=lambda operation: -operation.cycles)[:count]

    def layers(self) -> dict[str, Cost]:
        """Returns the cost per layer with its gradient, in descending order; `times` counts operations."""
        found: dict[str, list[Cost]] = {}
        for operation in self.operations:
            found.setdefault(layer_of(operation.op_name, self.model_names), []).append(
                operation
            )
        sums = {layer: _sum(layer, operations) for layer, operations in found.items()}
        return dict(sorted(sums.items(), key=lambda item: -item[1].cycles))

    def to_json(self, count: int = 10) -> dict[str, Any]:
        """Returns the totals and the `count` costliest layers and operations, ready for JSON."""
        return {
            "name": self.name,
            "topology": self.topology,
            "chip": self.chip.name,
            "cores": self.num_cores,
            "batch_per_core": self.batch,
            "cores_per_batch": self.model_parallel,
            "estimate": CAVEAT,
            "hbm_bytes": {
                "needed": self.hbm_needed,
                "available": self.chip.hbm,
                **self.hbm,
            },
            "seconds": self.seconds or None,
            "note": self.note,
            "remark": self.remark,
            "examples_per_second": {
                "core": self.examples_per_second,
                "topology": self.examples_per_second * self.num_cores,
            },
            "flops": self.flops,
            "bytes_moved": self.bytes,
            "fraction_of_peak": self.peak_fraction,
            "collectives": self.collectives,
            "collective_seconds": self.collective_seconds,
            "opcodes": self.opcodes,
            "open_loops": list(self.unbounded_loops),
            "layers": [
                self._entry(cost) for cost in list(self.layers().values())[:count]
            ],
            "operations": [
                {
                    **self._entry(cost),
                    "layer": layer_of(cost.op_name, self.model_names),
                    "opcode": cost.opcode,
                    "times": cost.times,
                }
                for cost in self.costliest_operations(count)
            ],
        }

    def _entry(self, cost: Cost) -> dict[str, Any]:
        seconds = cost.cycles / self.chip.clock
        return {
            "name": cost.op_name,
            "seconds": seconds,
            "flops": cost.flops,
            "bytes": cost.bytes,
        }


def render_report(report: Report, count: int = 10) -> str:
    """Returns a report as text: memory, time, and the `count` costliest layers and operations."""
    chip = report.chip
    parts = ", ".join(
        f"{name} {_gib(size)}" for name, size in report.hbm.items() if size > 2**20
    )
    lines = [
        f"{report.name}, {report.batch} on {_cores(report)} of {report.topology}",
        CAVEAT,
        "",
        f"  HBM           {_gib(report.hbm_needed)} of {_gib(chip.hbm)} GiB: {parts or 'less than 1 MiB'}",
    ]
    if report.remark:
        lines.insert(2, f"compiled {report.remark}")
    if report.note:
        lines += [
            f"  time          unknown: {report.note}",
            f"  arithmetic    {report.flops / 1e12:.3f} TFLOP; loops count once",
            f"  HBM traffic   {report.bytes / 1e9:.2f} GB; loops count once",
        ]
        return "\n".join([*lines, ""])
    lines += _times(report)
    if report.collectives:
        counts = ", ".join(
            f"{count} {kind}" for kind, count in report.collectives.items()
        )
        lines.append(
            f"  collectives   {counts} per step; at least {1e3 * report.collective_seconds:.2f} ms more, by "
            f"links of {chip.links / 1e9:g} GB/s"
        )
    if report.unbounded_loops:
        lines.append(
            f"  counted once  loops of unknown length: {', '.join(report.unbounded_loops)}"
        )
    lines += ["", "costliest layers", "", _layers(report, count)]
    lines += ["costliest operations", "", _costliest(report, count)]
    return "\n".join(lines)


def _cores(report: Report) -> str:
    if report.model_parallel == 1:
        return f"each of {report.num_cores} cores"
    return f"each {report.model_parallel} of {report.num_cores} cores"


def _times(report: Report) -> list[str]:
    chip = report.chip
    per_core = report.examples_per_second
    rate = report.flops / report.seconds / 1e12
    return [
        f"  time          {1e3 * report.seconds:.2f} ms per step",
        f"  examples/s    {per_core:.0f} per core, {per_core * report.num_cores:.0f} in total",
        f"  arithmetic    {report.flops / 1e12:.3f} TFLOP, {rate:.1f} TFLOP/s, "
        f"{100 * report.peak_fraction:.1f} % of the peak of {chip.peak / 1e12:g} of a {chip.name}",
        f"  HBM traffic   {report.bytes / 1e9:.2f} GB, {report.bytes / report.seconds / 1e9:.0f} GB/s",
    ]


def layer_of(op_name: str, model_names: Collection[str]) -> str:
    """Returns the layer of an operation.

    Args:
      op_name: the name of the operation, such as "gradient_tape/resnet_50/stem_norm/mul", in JAX
        "jit(train_step)/transpose(jvp(stem_norm))/mul".
      model_names: the scopes to leave out.

    Example:
      >>> layer_of("gradient_tape/resnet_50/stem_norm/mul", ["resnet_50"])
      'stem_norm'
    """
    if _ARGUMENTS.fullmatch(op_name):
        return "weights and inputs"
    scopes = op_name.split("/")[:-1] if "/" in op_name else [op_name]
    scopes = [
        _without_gradient(scope) for scope in scopes if not scope.startswith("jit(")
    ] or [""]
    while len(scopes) > 1:
        name, counter = _COUNTED.fullmatch(scopes[0]).groups()  # type: ignore[union-attr]
        # TensorFlow numbers the scopes of a second call
        if name in model_names and counter:
            scopes = [name, *(scope.removesuffix(counter) for scope in scopes[1:])]
        elif scopes[0].partition(".")[0] in _WRAPPERS or scopes[0] in model_names:
            scopes = scopes[1:]
        else:
            break
    # Named by the compiler.
    is_instruction = re.fullmatch(r"[a-z-]+\.\d+(;.*)?", scopes[0])
    return UNNAMED if is_instruction or not scopes[0] else scopes[0]


def _without_gradient(scope: str) -> str:
    while inner := _GRADIENT.fullmatch(scope):
        scope = inner[1]
    return scope


def _sum(layer: str, operations: list[Cost]) -> Cost:
    """Returns the cost of a layer, whose `times` is the number of its operations."""
    return Cost(
        layer,
        "layer",
        layer,
        len(operations),
        sum(cost.cycles for cost in operations),
        sum(cost.flops for cost in operations),
        sum(cost.bytes for cost in operations),
    )


def _layers(report: Report, count: int) -> str:
    rows = [
        [*_figures(report, cost), layer]
        for layer, cost in list(report.layers().items())[:count]
    ]
    return text_table.render([*_FIGURES, "layer"], rows)


def _costliest(report: Report, count: int) -> str:
    rows = []
    for cost in report.costliest_operations(count):
        layer = layer_of(cost.op_name, report.model_names)
        rows.append(
            [
                *_figures(report, cost),
                str(cost.times),
                layer,
                cost.opcode,
                cost.op_name or "-",
            ]
        )
    return text_table.render([*_FIGURES, "times", "layer", "as", "operation"], rows)


def _figures(report: Report, cost: Cost) -> list[str]:
    seconds = cost.cycles / report.chip.clock
    rate = cost.flops / seconds / 1e12 if seconds else 0.0
    share = 100 * seconds / report.seconds if report.seconds else 0.0
    return [
        f"{1e3 * seconds:.3f}",
        f"{share:.1f}",
        f"{rate:.2f}",
        f"{cost.bytes / 1e9:.3f}",
    ]


def _gib(size: int) -> str:
    return f"{size / chips.GIB:.2f}"

# SPDX-License-Identifier: Apache-2.0
"""Compares two reports of `lambdanet tpu-check --json`: time, memory, layers, operations and collectives."""

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lambdanet import text_table
from lambdanet.errors import InputError, invalid, unreadable
from lambdanet.tpu.chips import GIB

OTHERS = "other layers"
Figures = dict[str, float]


@dataclasses.dataclass(frozen=True)
class SavedReport:
    """A report that was written as JSON.

    Attributes:
      path: the file.
      title: the description of the step, the batch and the topology.
      chip: the name of the chip.
      batch: examples per step and core, or per group of cores that compute on the same batch.
      milliseconds: the time of a step without collectives; 0 where it is unknown.
      note: why the time is unknown.
      totals: the figures of the whole step, by name with unit.
      layers: the milliseconds of the layers in the report, which are the costliest ones.
      opcodes: the number of runs of operations by opcode; empty in reports of earlier versions.
      collectives: the number of exchanges between cores, by kind.
    """

    path: str
    title: str
    chip: str
    batch: int
    milliseconds: float
    note: str
    totals: Figures
    layers: Figures
    opcodes: Figures
    collectives: Figures

    @property
    def unlisted(self) -> float:
        """The milliseconds of layers that are not in the report, to the nearest nanosecond."""
        return round(self.milliseconds - sum(self.layers.values()), 6)


def read_reports(
    first: str | Path, second: str | Path
) -> tuple[SavedReport, SavedReport]:
    """Reads two reports of steps with the same batch, perhaps of different models and chips.

    Args:
      first: a file that `lambdanet tpu-check --json` wrote, to compare with.
      second: another one.

    Returns:
      Both reports, for `render_difference` and `describe_slowdown`.

    Raises:
      InputError: a file cannot be read, is no such report, or the batches differ.
    """
    before = _read(first)
    after = _read(second)
    if before.batch != after.batch:
        accepted = f"{before.batch}, as in {before.path}"
        raise invalid(f"batch_per_core of {after.path}", accepted, after.batch)
    return before, after


def describe_slowdown(
    first: SavedReport, second: SavedReport, max_slower: float
) -> str:
    """Returns a line on how much slower the second step is, or an empty text if that is allowed.

    Args:
      first: the report to compare with.
      second: the report of a step that may be slower.
      max_slower: the additional time that is allowed, in percent; collectives do not count.

    Raises:
      InputError: `max_slower` is not a number from 0 on, or the time of a step is unknown.
    """
    if not 0 <= max_slower < math.inf:
        raise invalid("max_slower", "a percentage from 0 on", max_slower)
    for report in (first, second):
        if report.note:
            raise InputError(f"{report.path!r} has no time: {report.note}")
    percent = 100 * (second.milliseconds / first.milliseconds - 1)
    if round(percent, 6) <= max_slower:
        return ""
    before, after = _layers(first, second)
    growth = {name: after[name] - before.get(name, 0.0) for name in after}
    costliest = sorted(growth, key=lambda name: -growth[name])[:3]
    slower = [f"{name} {growth[name]:+.3f}" for name in costliest if growth[name] > 0]
    return (
        f"{second.path} is {percent:.2f} % slower than {first.path}, {second.milliseconds:.3f} ms "
        f"instead of {first.milliseconds:.3f} ms: {', '.join(slower)}; allowed: {max_slower:g} %"
    )


def render_difference(first: SavedReport, second: SavedReport) -> str:
    """Returns a table of totals, and tables of layers, operations and collectives that differ."""
    lines = [f"A  {first.path}: {first.title}", f"B  {second.path}: {second.title}"]
    if first.chip != second.chip:
        lines.append(f"A is of a {first.chip}, B of a {second.chip}")
    totals = _table("", list(first.totals | second.totals), first.totals, second.totals)
    lines += ["", totals]
    before, after = _layers(first, second)
    for letter, report in (("A", first), ("B", second)):
        if report.note:
            lines.append(f"{letter} has no time: {report.note}\n")
        hidden = [name for name in report.layers if name not in before | after]
        if hidden:
            names = ", ".join(hidden)
            lines.append(f"in {OTHERS}, since only {letter} lists them: {names}\n")
    if first.note or second.note:
        return "\n".join(lines)
    lines.append(_changes("layer (ms)", before, after))
    if first.opcodes and second.opcodes:
        lines.append(_changes("operations", first.opcodes, second.opcodes, 0))
    else:
        lines.append("operations: not counted in reports of earlier versions\n")
    lines.append(_changes("collectives", first.collectives, second.collectives, 0))
    return "\n".join(lines)


def _layers(first: SavedReport, second: SavedReport) -> tuple[Figures, Figures]:
    """Returns the milliseconds of layers in both steps.

    A layer that only one report lists is one of `OTHERS` in both, unless the other report lists all of its
    layers. `OTHERS` is the time of a step without that of the layers that are returned by name.
    """
    pair = (first, second)
    names = []
    for name in first.layers | second.layers:
        if all(name in report.layers or not report.unlisted for report in pair):
            names.append(name)
    found = []
    for report in pair:
        known = {name: report.layers[name] for name in names if name in report.layers}
        if first.unlisted or second.unlisted:
            known[OTHERS] = report.milliseconds - sum(known.values())
        found.append(known)
    return found[0], found[1]


def _changes(subject: str, before: Figures, after: Figures, digits: int = 3) -> str:
    """Returns a table of the figures that differ, the largest difference first."""
    names = [name for name in before | after if before.get(name) != after.get(name)]
    names.sort(key=lambda name: -abs(after.get(name, 0) - before.get(name, 0)))
    if not names:
        return f"{subject}: no difference\n"
    return _table(subject, names, before, after, digits)


def _table(
    subject: str, names: list[str], before: Figures, after: Figures, digits: int = 3
) -> str:
    """Returns a table; its last cells have signs and are as wide as their headers."""
    rows = []
    for name in names:
        cells = [name]
        for figures in (before, after):
            cells.append(f"{figures[name]:.{digits}f}" if name in figures else "-")
        change = percent = "-"
        if name not in before:
            change = "only in B"
        elif name not in after:
            change = "only in A"
        elif more := after[name] - before[name]:
            change = f"{more:+.{digits}f}"
            percent = f"{100 * more / before[name]:+.1f}" if before[name] else "-"
        rows.append([*cells, f"{change:>10}", f"{percent:>8}"])
    return text_table.render([subject, "A", "B", "difference", f"{'%':>8}"], rows)


def _read(path: str | Path) -> SavedReport:
    """Returns the report in a file; `InputError` if it is none."""
    try:
        text = Path(path).expanduser().read_text(encoding="utf-8")
        return _parse(str(path), json.loads(text))
    except OSError as error:
        raise unreadable(path, error) from None
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        accepted = "a report of `lambdanet tpu-check --json`"
        raise InputError(f"{str(path)!r} is not {accepted}") from None


def _parse(path: str, value: Mapping[str, Any]) -> SavedReport:
    """Returns a report; raises an exception of any kind if the value is none."""
    batch = int(value["batch_per_core"])
    group = value.get("cores_per_batch", 1)
    each = "each" if group == 1 else f"each {group}"
    where = f"{each} of {value['cores']} cores of {value['topology']}"
    milliseconds = 1e3 * (value["seconds"] or 0)
    if not 0 <= milliseconds < math.inf:
        raise ValueError(milliseconds)
    totals = {"time (ms)": milliseconds} if milliseconds else {}
    for part, size in value["hbm_bytes"].items():
        totals[f"HBM {part} (GiB)"] = size / GIB
    totals["arithmetic (TFLOP)"] = value["flops"] / 1e12
    totals["HBM traffic (GB)"] = value["bytes_moved"] / 1e9
    if "collective_seconds" in value:
        totals["collectives, at least (ms)"] = 1e3 * value["collective_seconds"]
    return SavedReport(
        path,
        f"{value['name']}, {batch} on {where}",
        str(value["chip"]),
        batch,
        milliseconds,
        "" if milliseconds else str(value["note"]),
        totals,
        {layer["name"]: 1e3 * layer["seconds"] for layer in value["layers"]},
        {name: float(count) for name, count in value.get("opcodes", {}).items()},
        {name: float(count) for name, count in value["collectives"].items()},
    )

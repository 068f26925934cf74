# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks.layers`: time and memory of lambda and attention layers."""

import fnmatch
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from benchmarks import program
from benchmarks.interleaved import report, results
from benchmarks.interleaved.cases import (
    PAPER_MAPS,
    PASSES,
    PEER_PACKAGES,
    cases,
    has_own_scope,
)
from benchmarks.interleaved.comparison import Budget, Comparison
from benchmarks.interleaved.results import Measurement
from lambdanet.core import command_line, text_table
from lambdanet.core.commands import Overwrite
from lambdanet.core.errors import InputError, unknown
from lambdanet.core.files import check_new, writable_dir, write_output

# Groups of contenders that are compared: the prefixes of their names, and the reference.
GROUPS = (
    (("position/",), "position/einsum"),
    (("layer/", "attention/", "peer/"), "layer/einsum"),
)


def benchmark_layers(
    maps: Sequence[str] = PAPER_MAPS,
    scopes: Sequence[str] = ("23", "global"),
    passes: Sequence[str] = PASSES,
    contenders: Sequence[str] = ("*",),
    repeats: int = 11,
    max_seconds: float = 10.0,
    dtype: str = "float32",
    peers: bool = False,
    out: str | Path | None = None,
    overwrite: Annotated[Overwrite, "--out"] = False,
) -> list[dict[str, Any]]:
    """Measures implementations of the position lambda, lambda layers and attention layers.

    Each contender runs in its own process. Within a case (a map, scope and pass) the contenders take turns,
    so that a slowdown of the machine affects all of them; compare times as ratios to `einsum` in the same
    case. Memory is measured afterwards, in other processes; see `memory`. Prints a table per map and scope.

    Args:
      maps: height, width, channels and batch of each map, such as "14x14x256x8"; default: the papers' maps.
      scopes: the scopes of the position lambdas: odd numbers, or "global". Attention layers, which have their
        own scope, run with the first.
      passes: "forward" (inference), "both" (forward and backward, in training), or both of them.
      contenders: patterns of names, such as "position/*". The reference is always included.
      repeats: the number of turns per contender and case.
      max_seconds: the time limit of a contender's turns in a case. A slower contender gets fewer turns, but
        at least three; a single call if that takes longer; and it is stopped after six times the limit. A
        note in the table says so.
      dtype: "float32", "bfloat16" or "float16"; the latter two mean mixed precision for layers.
      peers: whether to include layers of other libraries, lucidrains' and timm's in PyTorch, on its GPU
        if it has one. One that is not installed gets a note.
      out: the folder for `layers.csv`; default: none.
      overwrite: whether to replace this file.

    Returns:
      The rows of the CSV file, without the description of the machine.

    Raises:
      InputError: an argument is not as described.

    Example:
      >>> rows = benchmark_layers(["14x14x256x8"], ["23"], contenders=["position/*"], repeats=3)
    """
    todo = cases(maps, scopes, passes, dtype)
    limits = Budget(repeats, max_seconds)
    chosen = select_contenders(contenders, peers)
    folder = None
    if out is not None:
        folder = Path(out).expanduser()
        check_new(folder / "layers.csv", overwrite)
        writable_dir(folder)
    about = results.announce(dtype)
    rows: list[Measurement] = []
    for prefixes, reference in GROUPS:
        members = [name for name in chosen if name.startswith(prefixes)]
        if not members:
            continue
        print(f"\n{report.LEGEND.format(reference=reference)}")
        with Comparison(members, limits) as comparison:
            for (_, scope), table_cases in itertools.groupby(
                todo, lambda case: (case.map, case.scope)
            ):
                names = [
                    name
                    for name in members
                    if scope == todo[0].scope or not has_own_scope(name)
                ]
                if names == [reference] and len(members) > 1:
                    continue
                found = [
                    row
                    for case in table_cases
                    for row in comparison.run(case, names, reference)
                ]
                print(f"\n{report.table(found)}")
                rows += found
                if folder:
                    columns = [{**_columns(row), **about} for row in rows]
                    write_output(folder / "layers.csv", text_table.to_csv(columns))
    return [_columns(row) for row in rows]


def _columns(row: Measurement) -> dict[str, Any]:
    """Returns the row of the CSV file."""
    case = row.case
    contender = row.contender
    scope = "own" if has_own_scope(contender) else case.scope_name
    place = {"height": case.height, "width": case.width, "channels": case.channels}
    return {**place, "scope": scope, "contender": contender, **row.columns("einsum")}


def select_contenders(patterns: Sequence[str], peers: bool) -> list[str]:
    """Returns the matching contenders and their references."""
    from benchmarks.interleaved.contenders import CONTENDERS  # starts TensorFlow

    known = [*CONTENDERS]
    if peers:
        known += PEER_PACKAGES
    if not patterns:
        raise InputError(
            "contenders must have at least one pattern, such as 'position/*'"
        )
    chosen: set[str] = set()
    for pattern in patterns:
        matching = fnmatch.filter(known, pattern)
        if not matching and fnmatch.filter(PEER_PACKAGES, pattern):
            raise InputError(
                f"contender {pattern!r} is from another library and needs --peers"
            )
        if not matching:
            raise unknown("contender", pattern, known)
        chosen.update(matching)
    for prefixes, reference in GROUPS:
        if any(name.startswith(prefixes) for name in chosen):
            chosen.add(reference)
    return [name for name in known if name in chosen]


COMMAND = program(
    "benchmarks.layers",
    benchmark_layers,
    examples=(
        "python -m benchmarks.layers --out=benchmark",
        "python -m benchmarks.layers --maps=14x14x256x8,28x28x128x8 --scopes=23 --contenders='position/*'",
        "python -m benchmarks.layers --peers --contenders='layer/*,peer/*' --passes=both",
    ),
)

if __name__ == "__main__":
    sys.exit(command_line.main(COMMAND))

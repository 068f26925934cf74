# SPDX-License-Identifier: Apache-2.0
"""`lambdanet benchmark layers`: time and memory of lambda layers, their implementations, and attention."""

import fnmatch
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lambdanet.errors import InputError, unknown
from lambdanet.files import writable_dir, write_output
from lambdanet.training.benchmark import machine, plot, report
from lambdanet.training.benchmark.cases import PAPER_MAPS, PASSES, PEER_PACKAGES, Case, cases, has_own_scope
from lambdanet.training.benchmark.compare import Budget, Comparison
from lambdanet.training.benchmark.results import Row, write_csv

# What is compared with what: the beginnings of the names of a group, and its reference.
GROUPS = ((("position/",), "position/einsum"), (("layer/", "attention/", "peer/"), "layer/einsum"))

BUSY = 0.5  # the load of a machine from which its times are not to be trusted


def benchmark_layers(
    maps: Sequence[str] = PAPER_MAPS,
    scopes: Sequence[str] = ("23", "global"),
    passes: Sequence[str] = PASSES,
    contenders: Sequence[str] = ("*",),
    repeats: int = 11,
    max_seconds: float = 10.0,
    dtype: str = "float32",
    threads: int | None = None,
    peers: bool = False,
    peers_python: str | None = None,
    out: str | Path | None = None,
) -> list[dict[str, Any]]:
    """Measures implementations of the position lambda, whole lambda layers, and attention beside them.

    Every contender has a process of its own. Within a case, which is one map, scope and pass, they take
    turns, so that a machine that becomes slower does so for all of them, and times are read as ratios to
    `einsum` in the same case. Memory is measured afterwards, in processes for that alone: see `memory`.
    Prints a table for each map and scope.

    Args:
      maps: height, width, channels and batch of each, such as "14x14x256x8"; default: those of the papers.
      scopes: of the position lambdas: odd numbers, or "global". Attention, which has a scope of its own, runs
        with the first.
      passes: "forward" (inference), "both" (forward and backward, in training) or both of them.
      contenders: patterns of names, such as "position/*". The reference is always among them.
      repeats: turns of each contender in each case.
      max_seconds: what the turns of a contender in a case may take. A slower one has fewer turns, three at
        least; if a single call takes longer, that call is all; one that takes six times as long is stopped. A
        note says so.
      dtype: "float32", "bfloat16" or "float16"; for layers the latter two mean mixed precision.
      threads: threads of a contender; default: as many as there are cores.
      peers: whether layers of other libraries take part: lucidrains' and timm's in PyTorch on the CPU, and
        kecam's halo attention. One that is not installed has a note that says so.
      peers_python: the interpreter in which they are installed; default: this one.
      out: folder for `layers.csv`, `layers_time.png` and `layers_memory.png`; default: none are written.

    Returns:
      The rows of the csv file, without the description of the machine.

    Raises:
      InputError: for arguments that are not as described.

    Example:
      >>> rows = benchmark_layers(["14x14x256x8"], ["23"], contenders=["position/*"], repeats=3)
    """
    todo = cases(maps, scopes, passes, dtype)
    limits = budget(repeats, max_seconds, threads)
    pythons = _choose(contenders, peers, _interpreter(peers_python))
    folder = None if out is None else writable_dir(Path(out).expanduser())
    about = machine.describe(limits.threads)
    announce(about, dtype)
    rows: list[Row] = []
    for prefixes, reference in GROUPS:
        members = {name: python for name, python in pythons.items() if name.startswith(prefixes)}
        if not members:
            continue
        print(f"\n{report.LEGEND.format(reference=reference)}")
        with Comparison(members, limits) as comparison:
            for together in _by_table(todo):
                # Those with a scope of their own run with the first.
                first = together[0].scope == todo[0].scope
                names = [name for name in members if first or not has_own_scope(name)]
                if names == [reference] != list(members):
                    continue
                found = [row for case in together for row in comparison.run(case, names, reference)]
                print(f"\n{report.table(found)}\n{report.summary(found)}".rstrip(), flush=True)
                rows += found
                if folder:
                    write_csv(folder / "layers.csv", [row.columns() for row in rows], about)
    if folder:
        _draw(folder, rows, about)
    return [row.columns() for row in rows]


def announce(about: Mapping[str, str | float], dtype: str) -> None:
    """Says what is measured on, and whether it is busy."""
    print(
        f"{about['cpu']}, {about['cores']} cores, {about['threads']} threads; "
        f"tensorflow {about['tensorflow']}, {dtype}"
    )
    if float(about["load_before"]) >= BUSY:
        print(
            f"other processes have been at work here (load {about['load_before']}): times are noisy then,\n"
            "and unfair to libraries whose threads wait in a loop for each other, as PyTorch's do"
        )


def budget(repeats: int, max_seconds: float, threads: int | None) -> Budget:
    """Returns how much to measure; raises `InputError` for what cannot be."""
    threads = machine.cores() if threads is None else threads
    for name, count in (("repeats", repeats), ("threads", threads)):
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise InputError(f"{name}={count!r} cannot be used; expected a whole number from 1")
    if not max_seconds > 0:
        raise InputError(f"max_seconds={max_seconds!r} cannot be used; expected a number above 0")
    return Budget(repeats, max_seconds, threads)


def _interpreter(python: str | None) -> str:
    if python is None:
        return sys.executable
    found = shutil.which(os.path.expanduser(python))
    if not found:
        raise InputError(f"peers_python {python!r} is no program; expected the path of a Python interpreter")
    return found


def _choose(patterns: Sequence[str], peers: bool, peers_python: str) -> dict[str, str]:
    """Returns the contenders that match and their references, as listed, each with its interpreter."""
    from lambdanet.training.benchmark import contenders  # here, so that other mistakes need no TensorFlow

    known = {name: sys.executable for name in contenders.CONTENDERS}
    if peers:
        known |= dict.fromkeys(PEER_PACKAGES, peers_python)
    if not patterns:
        raise InputError("no contenders given; expected one or more patterns, such as 'position/*'")
    chosen: set[str] = set()
    for pattern in patterns:
        matching = fnmatch.filter(known, pattern)
        if not matching and fnmatch.filter(PEER_PACKAGES, pattern):
            raise InputError(f"contender {pattern!r} is of another library; expected --peers beside it")
        if not matching:
            raise unknown("contender", pattern, known)
        chosen.update(matching)
    for prefixes, reference in GROUPS:
        if any(name.startswith(prefixes) for name in chosen):
            chosen.add(reference)
    return {name: python for name, python in known.items() if name in chosen}


def _by_table(todo: Sequence[Case]) -> list[list[Case]]:
    """The cases of each map and scope, which share a table."""
    tables: dict[tuple[str, str], list[Case]] = {}
    for case in todo:
        tables.setdefault((case.map, case.scope_name), []).append(case)
    return list(tables.values())


def _draw(folder: Path, rows: Sequence[Row], about: Mapping[str, str | float]) -> None:
    for name, content in plot.pictures(rows, about).items():
        write_output(folder / name, content)
        print(f"drawn in {folder / name}")

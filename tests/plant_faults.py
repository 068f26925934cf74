# SPDX-License-Identifier: Apache-2.0
"""Plants small faults in the library, one at a time, to measure which of them the tests catch.

    python tests/plant_faults.py draw --seed=65 --number=40 > tests/faults.csv
    python tests/plant_faults.py run tests/faults.csv --out=outcomes.csv

`draw` prints faults of each folder and kind in turn, at most one in a function; the same seed draws the same
ones from the same code:

    operator    + to -, * to +, // to *, == to !=, in to not in, and back
    bound       < to <=, > to >=, and back; a constant up to 3 that is one larger
    axis        axis=-1 to axis=0, shape[2] to shape[1], the last two axes of a transposition swapped
    check       without an `if ...: raise`, or a call of a `check_...`

There are none in messages, defaults and tables outside functions, nor in what only decides about speed or
looks, or compares with a threshold.

`run` plants each in a clone of the newest commit of a checkout, and runs the tests that `changed.py` names
there, the nearest first, until one fails. The outcomes are "died", with the test that failed; "survived";
"timeout", if it survived within the limit; and "gone", if the text of the fault is not in its function, or
twice. Faults that are in the file of outcomes are not run again.
"""

import argparse
import ast
import copy
import csv
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from source_tree import ROOT

FOLDERS = (
    "lambdanet/layers",
    "lambdanet/ops",
    "models",
    "training",
    "training/data",
    "training/serving",
    "detection",
)
KINDS = ("operator", "bound", "axis", "check")
OPERATORS = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
BOUNDS = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
LARGEST_BOUND = 3
CHECKS = re.compile(r"[\w.]*check_.*|if .*\n +raise .*")
MESSAGES = re.compile("invalid|unknown|Error|print|log|warn")
# In names of functions that decide about speed or looks.
UNMEASURED = re.compile(
    "cost|second|memory|time|choose|progress|speed|draw|color", re.I
)
# In operations without arithmetic: texts and lists are added, too.
TEXTS = re.compile("['\"[]")
THRESHOLDS = re.compile(r"[A-Z]{3}|\d\.\d")

CLONE = ["git", "-c", "advice.detachedHead=false", "clone", "-q", "--shared"]
# With `--seconds`, the files keep their order.
OPTIONS = "-x -q -p no:cacheprovider -p no:randomly -p no:xdist --seconds=9999"
MARKERS = "not weekly and not tpu and not browser and not engines"
# Without --strict-markers: a checkout may lack one of these.
STRICTNESS = "addopts=-ra --import-mode=importlib"
# Files that run in a process of their own, before the others, whose imports take half a minute.
NEAREST = 6
NEAR = """
import sys, changed
print(*changed.tests_near([changed.ROOT / sys.argv[1]]), sep="\\n")
"""

Fault = dict[str, str]


def draw(seed: int, number: int) -> list[Fault]:
    """Draws faults of each folder and kind in turn."""
    paths = {path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")}
    faults = [fault for path in sorted(paths) for fault in faults_of(path)]
    random.Random(seed).shuffle(faults)
    drawn: list[Fault] = []
    functions: set[tuple[str, str]] = set()
    for turn in range(number):
        cell = FOLDERS[turn % len(FOLDERS)], KINDS[turn % len(KINDS)]
        for fault in faults:
            function = fault["file"], fault["function"]
            if (fault["folder"], fault["kind"]) == cell and function not in functions:
                functions.add(function)
                drawn.append({"number": str(turn + 1), **fault})
                break
    return drawn


def faults_of(path: Path) -> Iterator[Fault]:
    """Yields the faults of a file that can be found again by their function and text."""
    source = path.read_text(encoding="utf-8")
    for name, function in _functions(ast.parse(source)):
        for node in _code(function):
            for kind, changed in _changes(node):
                fault = {
                    "folder": folder_of(path),
                    "kind": kind,
                    "file": path.relative_to(ROOT).as_posix(),
                    "function": name,
                    "line": str(node.lineno),
                    "column": str(node.col_offset + 1),
                    "before": ast.get_source_segment(source, node),
                    "after": changed,
                }
                if not UNMEASURED.search(name) and plant(source, fault):
                    yield fault


def folder_of(path: Path) -> str:
    """Returns the deepest of the folders that contain a file."""
    parents = path.resolve().relative_to(ROOT.resolve()).parents
    return next(str(parent) for parent in parents if str(parent) in FOLDERS)


def plant(source: str, fault: Fault) -> str | None:
    """Returns a source with a fault, or None if its text is not in its function once."""
    function = dict(_functions(ast.parse(source))).get(fault["function"])
    if function is None:
        return None
    lines = source.splitlines(keepends=True)
    before = "".join(lines[: function.lineno - 1])
    text = "".join(lines[function.lineno - 1 : function.end_lineno])
    if text.count(fault["before"]) != 1:
        return None
    after = "".join(lines[function.end_lineno :])
    return before + text.replace(fault["before"], fault["after"]) + after


def _functions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Yields the functions and methods that are in no other, by names such as `Layer.call`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef):
            yield prefix + child.name, child
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{prefix}{child.name}.")


def _code(node: ast.AST) -> Iterator[ast.AST]:
    """Yields the nodes in a function, without defaults and messages."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call) and MESSAGES.search(ast.unparse(child.func)):
            continue
        if isinstance(child, ast.arguments | ast.JoinedStr | ast.Raise):
            continue
        yield child
        yield from _code(child)


def _changes(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yields the faults of a node: the kind, and the text that replaces the node."""
    text = ast.unparse(node)
    if isinstance(node, ast.BinOp) and not TEXTS.search(text):
        if operator := OPERATORS.get(type(node.op)):
            yield "operator", _changed(node, op=operator())
        yield from _larger(node)
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        comparison = type(node.ops[0])
        if comparison in OPERATORS:
            yield "operator", _changed(node, ops=[OPERATORS[comparison]()])
        elif comparison in BOUNDS and not THRESHOLDS.search(text):
            yield "bound", _changed(node, ops=[BOUNDS[comparison]()])
    elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
        for kind, bounds in _larger(node.slice):
            yield kind, f"{ast.unparse(node.value)}[{bounds}]"
    elif isinstance(node, ast.Subscript | ast.keyword):
        if axis := re.fullmatch(r"(axis=|.*shape\[)(-?\d)(\]?)", text):
            step = -1 if int(axis[2]) > 0 else 1
            yield "axis", f"{axis[1]}{int(axis[2]) + step}{axis[3]}"
    elif isinstance(node, ast.Call):
        if axes := re.fullmatch(r"(.*transpose\(.*)(\d), (\d)\]\)", text):
            yield "axis", f"{axes[1]}{axes[3]}, {axes[2]}])"
    elif isinstance(node, ast.Expr | ast.If) and CHECKS.fullmatch(text):
        yield "check", "pass"


def _larger(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yields the faults in which one of the numbers of a node is larger."""
    for field, number in ast.iter_fields(node):
        value = getattr(number, "value", None)
        if type(value) is int and value <= LARGEST_BOUND:
            yield "bound", _changed(node, **{field: ast.Constant(value + 1)})


def _changed(node: ast.AST, **fields: ast.AST | list[ast.AST]) -> str:
    node = copy.copy(node)
    vars(node).update(fields)
    return ast.unparse(node)


def run(fault: Fault, tree: Path, out: Path, seconds: float) -> None:
    """Plants a fault in a clone of a checkout, runs the tests near it, and adds its outcome to a file."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        clone = Path(folder, "clone")
        subprocess.run([*CLONE, tree, clone], check=True)
        file = clone / fault["file"]
        source = file.exists() and plant(file.read_text(encoding="utf-8"), fault)
        outcome = ("gone", "")
        if source:
            file.write_text(source, encoding="utf-8")
            outcome = _test(clone, fault["file"], begin + seconds)
    row = [fault["number"], *outcome, round(time.monotonic() - begin)]
    with out.open("a", encoding="utf-8", newline="") as rows:
        csv.writer(rows, lineterminator="\n").writerow(row)


def _test(clone: Path, name: str, end: float) -> tuple[str, str]:
    """Runs the tests near a file until one fails or the time is over; returns the outcome and that test."""
    environment = {**os.environ, "PYTHONPATH": f"{clone}:{clone}/tests"}
    command = [sys.executable, "-c", NEAR, name]
    near = subprocess.check_output(command, env=environment, text=True).splitlines()
    pytest = [sys.executable, "-m", "pytest", *OPTIONS.split(), "-o", STRICTNESS]
    log = clone.with_name("log")
    for files in filter(None, (near[:NEAREST], near[NEAREST:])):
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*pytest, "-m", MARKERS, *files],
                cwd=clone,
                env=environment,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            try:
                status = process.wait(end - time.monotonic())
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                return "timeout", ""
        text = log.read_text(encoding="utf-8", errors="replace")
        if status in (3, 4):  # an error of pytest
            raise RuntimeError(text)
        if status not in (0, 5):  # passed, or without a test
            failed = re.search("^(?:FAILED|ERROR) (.*)", text, re.MULTILINE)
            return "died", failed[1] if failed else f"status {status}"
    return "survived", ""


def main() -> None:
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="command", required=True)
    drawing = commands.add_parser("draw")
    drawing.add_argument("--seed", type=int, required=True)
    drawing.add_argument("--number", type=int, required=True)
    running = commands.add_parser("run")
    running.add_argument("faults", type=Path)
    running.add_argument("--out", type=Path, required=True)
    running.add_argument("--tree", type=Path, default=ROOT)
    running.add_argument("--seconds", type=float, default=240)
    running.add_argument("--jobs", type=int, default=1)
    running.add_argument("--only-died", type=Path, help="outcomes of an earlier run")
    flags = parser.parse_args()
    if flags.command == "draw":
        drawn = draw(flags.seed, flags.number)
        writer = csv.DictWriter(sys.stdout, drawn[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(drawn)
        return
    # Tests interrupt programs, and what a shell runs in the background ignores that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if not flags.out.exists():
        flags.out.write_text("number,outcome,test,seconds\n")
    left_out = {row["number"] for row in _rows(flags.out)}
    if flags.only_died:
        before = _rows(flags.only_died)
        left_out |= {row["number"] for row in before if row["outcome"] != "died"}
    with ThreadPoolExecutor(flags.jobs) as pool:
        runs = []
        for fault in _rows(flags.faults):
            if fault["number"] not in left_out:
                arguments = fault, flags.tree.resolve(), flags.out, flags.seconds
                runs.append(pool.submit(run, *arguments))
    for finished in runs:
        finished.result()


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Records which commit and code the files of docs/results measured, in docs/results/measured.csv.

    cd docs && python -m generate.measured speed tpu.csv

records that the files of a page, or one file, measured the code of the last commit; `make results` calls it.
A page says whether the rooms have changed since, whichever clone it is written in.
"""

import ast
import csv
import hashlib
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from generate.pages import RESULTS, code, read_csv

ROOT = Path(__file__).parents[2]
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
LAYERS = ("lambdanet/backend", "lambdanet/ops", "lambdanet/layers")
MODELS = (*LAYERS, "models")
TRAINING = (*MODELS, "configs", "training/data", "training/run")
# Page of results -> file or folder of results -> the rooms that it measured.
PAGES = {
    "tables": {"tables.csv": MODELS},
    "speed": {
        "layers.csv": LAYERS,
        "models.csv": MODELS,
        "timm": MODELS,
        "operations.csv": MODELS,
        "predictions.txt": ("training/inference", "training/serving"),
        "selection.txt": ("training/pseudo_labels",),
        "streams.txt": LAYERS,
        "unets.txt": MODELS,
    },
    "libraries": {"peers.csv": LAYERS},
    "tpu": {
        "tpu.csv": MODELS,
        "tpu_check.txt": MODELS,
        "tpu_table_12.txt": MODELS,
        "tpu_table_13.txt": MODELS,
        "tpu_of_both_backends": TRAINING,
        "cost_analysis.txt": MODELS,
    },
    "accuracy": {
        "digits.txt": TRAINING,
        "digits.csv": TRAINING,
        "shapes.txt": (*MODELS, "detection"),
        "segmentation.txt": (*MODELS, "detection/data"),
    },
    "explanations": {
        "explanations.txt": (*MODELS, "lambdanet/explain", "experiments/explanations"),
        "scenes.txt": (*MODELS, "lambdanet/explain", "experiments/explanations"),
    },
    "fashion": {"fashion.csv": (*TRAINING, "experiments/fashion")},
    "arena": {
        "arena.csv": (*LAYERS, "experiments/arena"),
        "arena_memory.csv": (*LAYERS, "experiments/arena"),
    },
}


def fingerprint(sources: Iterable[str]) -> str:
    """Returns a short hash of the code of files; comments, docstrings and formatting do not count."""
    digest = hashlib.sha256()
    for source in sources:
        tree = ast.parse(source)
        for node in ast.walk(tree):
            if isinstance(node, DOCUMENTED) and ast.get_docstring(node) is not None:
                del node.body[0]
        digest.update(repr(_outline(tree)).encode())
    return digest.hexdigest()[:12]


def _outline(node: object) -> object:
    """Returns a syntax tree as tuples, without empty fields: versions of Python differ in them."""
    if isinstance(node, ast.AST):
        fields = [
            (name, _outline(value))
            for name, value in ast.iter_fields(node)
            if value not in (None, [])
        ]
        return type(node).__name__, fields
    if isinstance(node, list):
        return [_outline(part) for part in node]
    return node


def room_now(room: str) -> str:
    """Returns the fingerprint of a room's files as they are in this folder."""
    return fingerprint(
        path.read_text(encoding="utf-8") for path in sorted((ROOT / room).rglob("*.py"))
    )


def room_at(commit: str, room: str) -> str:
    """Returns the fingerprint of a room's files as they were committed."""
    names = sorted(
        _git("ls-tree", "-r", "--name-only", commit, "--", f"{room}/").splitlines(),
        key=Path,
    )
    return fingerprint(
        _git("show", f"{commit}:{name}") for name in names if name.endswith(".py")
    )


def record(name: str) -> None:
    """Writes that the files of a page of `PAGES`, or one file, measured the code of the last commit."""
    every = {file: rooms for page in PAGES.values() for file, rooms in page.items()}
    measured = PAGES.get(name) or {name: every[name]}
    commit = _git("rev-parse", "--short=7", "HEAD").strip()
    rows = [row for row in read_csv("measured.csv") if row["file"] not in measured]
    for file, rooms in measured.items():
        for room in rooms:
            found = room_at("HEAD", room)
            if found != room_now(room):
                sys.exit(
                    f"{room} has changes that are not committed: commit them, then measure"
                )
            rows.append({"file": file, "commit": commit, "room": room, "code": found})
    rows.sort(key=lambda row: row["file"])
    with (RESULTS / "measured.csv").open("w", encoding="utf-8", newline="") as output:
        writer = csv.DictWriter(
            output, ["file", "commit", "room", "code"], lineterminator="\n"
        )
        writer.writeheader()
        writer.writerows(rows)


def line(*files: str) -> str:
    """Returns a sentence on when files were measured, and what has changed since."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for file in files:
        rows = [row for row in read_csv("measured.csv") if row["file"] == file]
        changed = tuple(
            row["room"] for row in rows if row["code"] != room_now(row["room"])
        )
        groups.setdefault(changed, []).append(f"`{file}` at `{rows[0]['commit']}`")
    sentences = []
    for changed, names in groups.items():
        since = (
            f"before changes of {code(changed)}"
            if changed
            else "with the code of today"
        )
        sentences.append(f"Measured {since}: {', '.join(names)}.")
    return f"*{' '.join(sentences)}*"


def _page(name: str) -> str:
    return line(*PAGES[name])


def tables() -> str:
    """Returns the sentence of the page with the papers' tables."""
    return _page("tables")


def speed() -> str:
    """Returns the sentence of the page on speed."""
    return _page("speed")


def libraries() -> str:
    """Returns the sentence of the page on other libraries, whose times are those of the layers."""
    return line("peers.csv", "layers.csv")


def tpu() -> str:
    """Returns the sentence of the page on TPUs."""
    return _page("tpu")


def accuracy() -> str:
    """Returns the sentence of the page on accuracy."""
    return _page("accuracy")


def explanations() -> str:
    """Returns the sentence of the page on explanations."""
    return _page("explanations")


def fashion() -> str:
    """Returns the sentence of the page on Fashion-MNIST."""
    return _page("fashion")


def arena() -> str:
    """Returns the sentence of the page on operators."""
    return _page("arena")


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments],
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
        encoding="utf-8",
    ).stdout


if __name__ == "__main__":
    for name in sys.argv[1:]:
        record(name)

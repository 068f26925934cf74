# SPDX-License-Identifier: Apache-2.0
"""Says at which commit the files of docs/results were measured, by docs/results/measured.csv.

    cd docs && python -m generate.measured speed tpu.csv

records the last commit for the files of a page, or for one file; `make results` calls it.
"""

import csv
import functools
import subprocess
import sys
from pathlib import Path

from generate.pages import RESULTS, read_csv

ROOT = Path(__file__).parents[2]
# Page of results -> its files and folders.
PAGES = {
    "accuracy": ("digits.txt", "digits.csv", "shapes.txt", "segmentation.txt"),
    "libraries": ("peers.csv",),
    "speed": ("layers.csv", "models.csv", "timm"),
    "tables": ("tables.csv",),
    "tpu": (
        "tpu.csv",
        "tpu_check.txt",
        "tpu_table_12.txt",
        "tpu_table_13.txt",
        "tpu_of_both_backends",
    ),
}


def record(name: str) -> None:
    """Writes that the files of a page of `PAGES`, or one file, were measured at the last commit."""
    command = ["git", "rev-parse", "--short=7", "HEAD"]
    head = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    commits = _commits()
    for file in PAGES.get(name, (name,)):
        commits[file] = head.stdout.strip()
    path = RESULTS / "measured.csv"
    with path.open("w", encoding="utf-8", newline="") as output:
        writer = csv.writer(output, lineterminator="\n")
        writer.writerow(["file", "commit"])
        writer.writerows(sorted(commits.items()))


def line(page: str) -> str:
    """Returns the sentence that says at which commit each file of a page was measured."""
    commits = _commits()
    files: dict[str, list[str]] = {}
    for file in PAGES[page]:
        files.setdefault(commits[file], []).append(f"`{file}`")
    if len(files) == 1:
        return f"*Measured at `{next(iter(files))}`.*"
    parts = [f"`{commit}` ({', '.join(names)})" for commit, names in files.items()]
    return f"*Measured at {'; '.join(parts)}.*"


def _commits() -> dict[str, str]:
    return {row["file"]: row["commit"] for row in read_csv("measured.csv")}


# One for each page, as markers name functions without arguments.
accuracy = functools.partial(line, "accuracy")
libraries = functools.partial(line, "libraries")
speed = functools.partial(line, "speed")
tables = functools.partial(line, "tables")
tpu = functools.partial(line, "tpu")

if __name__ == "__main__":
    for name in sys.argv[1:]:
        record(name)

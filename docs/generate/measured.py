# SPDX-License-Identifier: Apache-2.0
"""Says at which commit the files of docs/results were measured, by docs/results/measured.csv.

    cd docs && python -m generate.measured speed tpu.csv

records the last commit and its date for the files of a page, or for one file, that are in measured.csv;
`make results` calls it. The column `code` has the paths that a file measures: `make lint` warns when they
have changed since.
"""

import csv
import functools
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from generate.pages import RESULTS, read_csv

ROOT = Path(__file__).parents[2]


def record(name: str) -> None:
    """Writes that the files of a page, or one file, were measured at the last commit."""
    command = ["git", "show", "--no-patch", "--abbrev=7", "--format=%h %cs"]
    head = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    commit, date = head.stdout.split()
    rows = read_csv("measured.csv")
    for row in rows:
        if name in (row["page"], row["file"]):
            row["commit"] = commit
            row["date"] = date
    path = RESULTS / "measured.csv"
    with path.open("w", encoding="utf-8", newline="") as output:
        writer = csv.DictWriter(output, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def line(page: str) -> str:
    """Returns the sentence that says at which commit each file of a page was measured, and when."""
    files: dict[str, list[str]] = {}
    for row in read_csv("measured.csv"):
        if row["page"] == page:
            commit = f"`{row['commit']}` of {row['date']}"
            files.setdefault(commit, []).append(f"`{row['file']}`")
    if len(files) == 1:
        return f"*Measured at {next(iter(files))}.*"
    parts = [f"{commit} ({', '.join(names)})" for commit, names in files.items()]
    return f"*Measured at {'; '.join(parts)}.*"


def outdated(rows: Iterable[dict[str, str]], root: Path = ROOT) -> Iterator[str]:
    """Yields each file whose code commits have changed since its own, with their number.

    Args:
      rows: those of measured.csv.
      root: the checkout. Without git, or a file's commit, as in a shallow clone, nothing is known of a file.
    """
    for row in rows:
        command = ["git", "rev-list", "--count", f"{row['commit']}..", "--"]
        command += row["code"].split()
        try:
            counted = subprocess.run(command, capture_output=True, text=True, cwd=root)
        except FileNotFoundError:
            return
        if counted.returncode == 0 and int(counted.stdout):
            yield f"{row['file']} ({int(counted.stdout)} commits)"


# One for each page, as markers name functions without arguments.
accuracy = functools.partial(line, "accuracy")
keywords = functools.partial(line, "keywords")
libraries = functools.partial(line, "libraries")
speed = functools.partial(line, "speed")
tables = functools.partial(line, "tables")
tpu = functools.partial(line, "tpu")
water = functools.partial(line, "water")

if __name__ == "__main__":
    for name in sys.argv[1:]:
        record(name)

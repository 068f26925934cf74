# SPDX-License-Identifier: Apache-2.0
"""The tests near what changed since the branch main, the nearest first; `make check` runs them."""

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

import source_tree
from source_tree import ROOT

# Near every change: they read all files.
ALWAYS = ("project/imports_test", "project/build_file_test")
# More would take longer to import than `make check` may take.
MOST = 20


def changed_files() -> list[Path]:
    """Returns new files, and those that differ from the newest commit that is on main too."""
    base = (
        _git("merge-base", "HEAD", "origin/main")
        or _git("merge-base", "HEAD", "main")
        or ["HEAD"]
    )
    names = _git("diff", "--name-only", *base) + _git(
        "ls-files", "--others", "--exclude-standard"
    )
    return [ROOT / name for name in names]


def tests_near(files: Iterable[Path]) -> list[Path]:
    """Returns `ALWAYS` and the tests near some files, the nearest first.

    These are changed tests, the test of the file's name, those of its folder and those that contain its name
    or that of one of its classes.
    """
    ranks: dict[Path, int] = {}
    for file in files:
        folders = {part.removeprefix("tests") for part in file.relative_to(ROOT).parts}
        names = [re.escape(file.stem)]
        if file.suffix == ".py" and file.exists():
            names += re.findall(r"^class (\w+)", file.read_text(), re.MULTILINE)
        pattern = re.compile(rf"\b({'|'.join(names)})\b")
        for test in source_tree.tests():
            contains = pattern.search(test.read_text())
            beside = test.parent.name in folders
            near = (
                test == file,
                test.stem == f"{file.stem}_test",
                contains and beside,
                beside,
                contains,
            )
            ranks[test] = min(
                ranks.get(test, len(near)), [*map(bool, near), True].index(True)
            )
    always = [ROOT / f"tests/{name}.py" for name in ALWAYS]
    found = sorted(
        (rank, test) for test, rank in ranks.items() if rank < 5 and test not in always
    )
    return [*always, *(test for _, test in found[:MOST])]


def _git(*arguments: str) -> list[str]:
    """Returns the lines that a git command prints, none if it fails."""
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True).stdout.splitlines()


if __name__ == "__main__":
    print(
        *(
            test.relative_to(ROOT)
            for test in tests_near(changed_files())
            if test.exists()
        )
    )

# SPDX-License-Identifier: Apache-2.0
"""The tests near what changed since the branch main, the nearest first; `make check` runs them."""

import functools
import subprocess
from collections.abc import Iterable
from pathlib import Path

import source_tree
from source_tree import FLOORS, ROOT

import lambdanet

# Near every change: they read all files.
ALWAYS = ("project/floors_test", "project/build_file_test")
ENOUGH = 3


def changed_files() -> list[Path]:
    """Returns new files, and those that differ from the newest commit that is on main too."""
    base = _git("merge-base", "HEAD", "origin/main") or _git("merge-base", "HEAD", "main") or ["HEAD"]
    names = _git("diff", "--name-only", *base) + _git("ls-files", "--others", "--exclude-standard")
    return [ROOT / name for name in names]


def tests_near(files: Iterable[Path]) -> list[Path]:
    """Returns the tests near some files: `ALWAYS`, changed tests, and others, the nearest first.

    Near a module are the tests that import it; if they are fewer than `ENOUGH`, also those that import a
    module that does, and so on; if there are none, those of its folder. Near another file are the tests that
    contain its name. The nearest have the name of the module, then that of its folder.
    """
    ranks: dict[Path, int] = {}
    for file in files:
        for test in {file} & set(source_tree.tests()) or _users(file):
            own_name = test.stem == f"{file.stem}_test"
            rank = 0 if test == file else 1 if own_name else 2 if _has_folder(file, test) else 3
            ranks[test] = min(rank, ranks.get(test, rank))
    always = [ROOT / "tests" / f"{name}.py" for name in ALWAYS]
    return [*always, *sorted(ranks.keys() - {*always}, key=lambda test: (ranks[test], test))]


def _users(file: Path) -> set[Path]:
    """Returns the tests near a file that is not a test."""
    tests, modules, found = {*source_tree.tests()}, _modules(), set[Path]()
    wave = {name for name, path in modules.items() if path.resolve() == file.resolve()}
    if not wave:
        return {test for test in tests if file.name in test.read_text() or file.stem in _imports(test)}
    seen = set(wave)
    while wave and len(found) < ENOUGH:
        users = {path for path in [*modules.values(), *tests] if wave & _imports(path)}
        found |= users & tests
        wave = {name for name, path in modules.items() if path in users} - seen
        seen |= wave
    return found or {test for test in tests if _has_folder(file, test)}


def _has_folder(file: Path, test: Path) -> bool:
    """Whether a file is in a folder of the name of the test's."""
    return test.parent.name in file.relative_to(ROOT).parts


@functools.cache
def _modules() -> dict[str, Path]:
    return {source_tree.module_of(path): path for floor in FLOORS for path in source_tree.files_of(floor)}


@functools.cache
def _imports(path: Path) -> set[str]:
    """Returns the modules that a file imports; a name of the public face counts as its module."""
    found = source_tree.imports(path) | source_tree.mentions(path)
    found = {lambdanet._MODULES.get(name.removeprefix("lambdanet."), name) for name in found}
    return {name if name in _modules() else name.rpartition(".")[0] or name for name in found}


def _git(*arguments: str) -> list[str]:
    """Returns the lines that a git command prints, none if it fails."""
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True).stdout.splitlines()


if __name__ == "__main__":
    print(*(test.relative_to(ROOT) for test in tests_near(changed_files()) if test.exists()))

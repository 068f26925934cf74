# SPDX-License-Identifier: Apache-2.0
"""BUILD: every source file is in one target, and dependencies follow the packages.

Starlark is close enough to Python to run BUILD as Python, with functions that record the calls of Bazel's.
"""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
import source_tree
from source_tree import FILES, PACKAGES, ROOT


def _glob(include: list[str], exclude: tuple[str, ...] | list[str] = ()) -> list[str]:
    """Replaces Bazel's `glob`: returns sorted names relative to the root."""
    found = {path for pattern in include for path in ROOT.glob(pattern)}
    found -= {path for pattern in exclude for path in ROOT.glob(pattern)}
    return sorted(_relative(found))


@pytest.fixture(scope="module")
def targets() -> dict[str, dict]:
    """The arguments of the targets of BUILD, by name."""
    found: dict[str, dict] = {}

    def declare(name: str, **arguments):
        assert name not in found, f"BUILD declares {name} twice"
        found[name] = arguments

    names = {"glob": _glob, "load": lambda *_: None, "package": lambda **_: None}
    names |= dict.fromkeys(("py_library", "py_test"), declare)
    exec(compile((ROOT / "BUILD").read_text(), "BUILD", "exec"), names)
    return found


def _relative(paths: Iterable[Path]) -> list[str]:
    return [path.relative_to(ROOT).as_posix() for path in paths]


def test_every_source_file_is_in_exactly_one_target(targets):
    count = Counter(
        src for target in targets.values() for src in target.get("srcs", [])
    )
    mains = {target["main"] for target in targets.values() if "main" in target}
    assert set(count) == set(_relative([*FILES, *(ROOT / "tests").glob("**/*.py")]))
    assert {src: n for src, n in count.items() if n != 1 and src not in mains} == {}


@pytest.mark.parametrize("package", PACKAGES)
def test_library_has_its_package_and_depends_on_those_below(targets, package):
    assert sorted(targets[package]["srcs"]) == _relative(source_tree.files_of(package))
    assert sorted(targets[package].get("deps", [])) == sorted(
        f":{below}" for below in PACKAGES[package]
    )

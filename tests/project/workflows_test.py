# SPDX-License-Identifier: Apache-2.0
"""Continuous integration: each command of a workflow is a target that anybody can run; none is forgotten."""

import re

import pytest
from source_tree import ROOT

MAKEFILE = (ROOT / "Makefile").read_text()
WORKFLOWS = {
    path.stem: path.read_text() for path in ROOT.glob(".github/workflows/*.yml")
}
# Windows has no make; `make release-check` runs it too
PROGRAM = "python .ci/try_packages.py dist/*.whl"


def targets(workflow: str) -> set[str]:
    """Returns the targets of make that a workflow runs, with the values of its matrices."""
    found = re.findall(
        r"(?:run: make|{target:) ([a-z][^ ,\n]*)|target: \[(.*)\]", workflow
    )
    return set(re.findall(r"[^, ]+", ", ".join(map(", ".join, found))))


@pytest.mark.parametrize("name", sorted(WORKFLOWS))
def test_each_command_is_a_target_of_the_makefile(name):
    assert set(re.findall("run: (?!make )(.*)", WORKFLOWS[name])) <= {PROGRAM}
    phony = re.search(r"\.PHONY: ((?:.*\\\n)*.*)", MAKEFILE)[1].split()
    for target in targets(WORKFLOWS[name]):
        assert target in phony
        assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE), target


def test_workflows_run_what_has_to_pass():
    assert "\t$(BIN)/python .ci/try_packages.py dist/*\n" in MAKEFILE
    run = (ROOT / ".ci/run").read_text()
    needed = set(
        re.findall(
            r'^lane "[\w-]+" (?:make|"\$\{user\[@\]\}")(?: --keep-going)? ([\w-]+)$',
            run,
            re.M,
        )
    )
    assert needed == {"demo", "lint", "test-user", "test-rest", "test-newest"}
    # `demo` is what a user does before the tests, in the same clone, and `test-user` both of these.
    needed = (needed - {"demo", "test-user"}) | {"test", "test-slow"}
    lanes = {"test-tensorflow-2.21", "coverage", "release-check"}
    assert targets(WORKFLOWS["test"]) == needed | lanes
    assert {"weekly", "test-all", "test-plain-cpu"} <= targets(WORKFLOWS["weekly"])


def test_tests_run_on_every_python():
    classifiers = re.findall(r"Python :: (3\.\d+)", (ROOT / "setup.cfg").read_text())
    tested = re.search(r"python: \[(.*)\]", WORKFLOWS["test"])[1]
    assert re.findall(r"[\d.]+", tested) == classifiers

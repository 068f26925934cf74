# SPDX-License-Identifier: Apache-2.0
"""Continuous integration: each command of a workflow is a target that anybody can run; none is forgotten."""

import configparser
import itertools
import re

import pytest
import yaml
from source_tree import ROOT

MAKEFILE = (ROOT / "Makefile").read_text()
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text()) for path in ROOT.glob(".github/workflows/*.yml")}
PROGRAM = "python .ci/try_packages.py dist/*.whl"  # Windows has no make; `make release-check` runs it too


def commands(workflow) -> set[str]:
    """Returns the commands that a workflow runs, with the values of its matrices."""
    found = set()
    for job in workflow["jobs"].values():
        matrix = dict(job.get("strategy", {}).get("matrix", {}))
        rows = [dict(zip(matrix, row, strict=True)) for row in itertools.product(*matrix.values())]
        rows = matrix.get("include") or rows
        for step in filter(None, (step.get("run") for step in job["steps"])):
            for row in rows:
                found.add(re.sub(r"\$\{\{ matrix\.(\w+) \}\}", lambda match, row=row: row[match[1]], step))
    return found


def targets(workflow) -> set[str]:
    return {command.split()[1] for command in commands(workflow) if command.startswith("make ")}


@pytest.mark.parametrize("name", sorted(WORKFLOWS))
def test_each_command_is_a_target_of_the_makefile(name):
    assert {command for command in commands(WORKFLOWS[name]) if not command.startswith("make ")} <= {PROGRAM}
    phony = re.search(r"\.PHONY: ((?:.*\\\n)*.*)", MAKEFILE)[1].split()
    for target in targets(WORKFLOWS[name]):
        assert target in phony
        assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE), target


def test_workflows_run_what_has_to_pass():
    assert "\t$(BIN)/python .ci/try_packages.py dist/*\n" in MAKEFILE
    run = (ROOT / ".ci" / "run").read_text()
    needed = set(re.findall(r"^make ([\w-]+)", run, re.MULTILINE))
    parts = set(re.search(r"^test: (test-.*)", MAKEFILE, re.MULTILINE)[1].split())
    assert needed == {"test", "test-newest", "lint"}
    lanes = {"test-tensorflow-2.21", "coverage", "release-check"}
    assert targets(WORKFLOWS["test"]) == (needed - {"test"}) | parts | lanes
    assert targets(WORKFLOWS["weekly"]) == needed
    assert (targets(WORKFLOWS["docs"]), targets(WORKFLOWS["release"])) == ({"docs"}, {"release-check"})


def test_tests_run_on_every_python():
    classifiers = re.findall(r"Python :: (3\.\d+)", (ROOT / "setup.cfg").read_text())
    assert WORKFLOWS["test"]["jobs"]["test"]["strategy"]["matrix"]["python"] == classifiers


def test_one_address_of_the_repository():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    address = re.search("Source = (.*)", config["metadata"]["project_urls"])[1]
    pages = [ROOT / "README.md", ROOT / "RELEASE.md", ROOT / "setup.cfg", *ROOT.glob("docs/**/*.md")]
    found = re.findall(r"github\.com/([\w.-]+/lambdanet)\b", "".join(page.read_text() for page in pages))
    assert set(found) == {address.removeprefix("https://github.com/")}

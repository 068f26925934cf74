# SPDX-License-Identifier: Apache-2.0
"""The drawings, tables and citation of the README and the documentation are current."""

import csv
import importlib
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from docutils.nodes import make_id
from myst_parser.slugs import github_slugify
from pages import PAGES, SETUP
from programs.run_page import BLOCK
from source_tree import ROOT

import lambdanet

README = PAGES["README.md"]
FIGURES = ROOT / "docs/figures"
LINKED = PAGES | {path.name: path.read_text() for path in ROOT.glob("*.md")}
REASONS = "docs/explanation/why_lambda_layers.md"
FIGURE = r"\d[\d.,]* (?:%|ms|[GM]i?B|M |seconds|minutes|box|mask|weights)"
# Drawings that no program writes any more.
FROZEN = {
    "arena_results.svg",
    "arena_sizes.svg",
    "arena_steps.svg",
    "colab.svg",
    "fashion_results.svg",
    "in_context_recall.svg",
    "layer.svg",
    "pointer_grid.svg",
    "recall.svg",
}


@pytest.mark.slow
@pytest.mark.weekly
def test_drawings_are_current(tmp_path):
    """`python docs/figures/plots.py` gives the files that are in the repository."""
    subprocess.run(
        [sys.executable, FIGURES / "plots.py", tmp_path],
        check=True,
        capture_output=True,
    )
    drawn = {path.name for path in tmp_path.iterdir()}
    committed = {path.name for path in FIGURES.glob("*.svg")}
    assert drawn == committed - FROZEN
    assert committed >= FROZEN
    for path in tmp_path.iterdir():
        words, numbers = _contents(path)
        committed_words, committed_numbers = _contents(FIGURES / path.name)
        assert words == committed_words, path.name
        np.testing.assert_allclose(
            numbers, committed_numbers, atol=0.5, err_msg=path.name
        )


def _contents(drawing: Path) -> tuple[list[str], list[float]]:
    """What a drawing shows: its words, and its numbers up to the choices of a version of matplotlib."""
    text = re.sub(
        r'\b(?:id|xlink:href|clip-path)="[^"]*"',
        "",
        drawing.read_text(),
    )
    pieces = re.split(r"(-?\d+(?:\.\d+)?)", text)
    return pieces[::2], [float(piece) for piece in pieces[1::2]]


def anchors_of(text: str) -> set[str]:
    """Returns the anchors of a page's headings that are the same on GitHub and of Sphinx."""
    titles = re.findall("^##+ (.*)", BLOCK.sub("", text), re.MULTILINE)
    return {*map(github_slugify, titles)} & {*map(make_id, titles)}


@pytest.mark.parametrize("page", sorted(LINKED))
def test_links_exist(page):
    """Files, headings, and tests that are named, in the README, in written pages and beside the README."""
    text = LINKED[page]
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", text):
        linked = (ROOT / page).parent / target if target else ROOT / page
        assert anchor in anchors_of(linked.read_text()), anchor
    for link in re.findall(
        r'\]\((?!https?:)([^)#]+)\)|(?:src|srcset)="(?!https?:|../_static/)([^"]+)"',
        text,
    ):
        assert (ROOT / page).parent.joinpath("".join(link)).exists(), link
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("*_test.py"))
    for name in re.findall(r"`(test_\w+)`", text):
        assert f"def {name}(" in tests, name


def test_figures_in_sentences_are_those_of_the_results():
    """Each row of sentences.csv has the text around figures, and where they are from.

    Tables are left out, but for questions ("Does ..."). The README and the page of reasons have no other
    figures.
    """
    texts = {}
    for page, text in PAGES.items():
        text = re.sub(r"^\| (?!Do).*|!\[.*?\]", "", text, flags=re.M)
        texts[page] = " ".join(text.split())
    for row in csv.DictReader((ROOT / "tests/sentences.csv").read_text().splitlines()):
        (found,) = re.finditer(row["pattern"], (ROOT / row["file"]).read_text(), re.M)
        sentence = row["text"].format(*found.groups())
        assert sentence in texts[row["page"]]
        texts[row["page"]] = texts[row["page"]].replace(sentence, "")
    assert not re.search(FIGURE, texts["README.md"] + texts[REASONS])


def test_citation_names_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == lambdanet.__version__
    assert f'version = "{lambdanet.__version__}"' in (ROOT / "MODULE.bazel").read_text()
    assert citation["preferred-citation"]["title"] in README


def test_every_dependency_has_a_reason():
    """Each requirement of setup.cfg, except those for development, is in the table of dependencies."""
    page = PAGES["docs/explanation/dependencies.md"]
    extras = {
        "": SETUP["options"]["install_requires"],
        **SETUP["options.extras_require"],
    }
    for extra, text in extras.items():
        rows = (
            "\n".join(line for line in page.splitlines() if f"`[{extra}]`" in line)
            if extra
            else page
        )
        assert rows, extra
        for package in (
            []
            if extra in ("dev", "docs", "test")
            else re.findall(r"^[\w-]+", text, re.MULTILINE)
        ):
            assert package in rows, (extra, package)


# Three commits of a file.
COMMITS = """git init --quiet
for text in 1 2 3; do
    echo $text > code
    git add code
    git -c user.name=me -c user.email=me@here commit --quiet --message=$text
done"""


def test_results_of_changed_code_are_named(tmp_path, monkeypatch):
    """Not those of other code, of unknown commits, outside of a repository, or without git."""
    monkeypatch.syspath_prepend(ROOT / "docs")
    measured = importlib.import_module("generate.measured")
    row = {"file": "a.csv", "commit": "HEAD~2", "code": "none code"}
    rows = [row, row | {"code": "none"}, row | {"commit": "0123456"}]
    assert list(measured.outdated(rows, tmp_path)) == []
    subprocess.run(COMMITS, shell=True, check=True, cwd=tmp_path)
    assert list(measured.outdated(rows, tmp_path)) == ["a.csv (2 commits)"]
    monkeypatch.setenv("PATH", "")
    assert list(measured.outdated(rows, tmp_path)) == []

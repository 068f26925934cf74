# SPDX-License-Identifier: Apache-2.0
"""The site of `make docs`: it builds without warnings, as of broken links, and the model explorer works."""

import importlib
import json
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from browsers import CHROMIUM, driven
from source_tree import ROOT

import lambdanet
from lambdanet.models.names import info, list_models, rows

REPOSITORY = runpy.run_path(str(ROOT / "docs/generate/repository.py"))
pytestmark = pytest.mark.slow  # the build

# Folders below docs that are not in the repository.
GENERATED = ("_build", "_generated", "api", "commands")


@pytest.fixture(scope="module")
def build(tmp_path_factory) -> tuple[Path, subprocess.CompletedProcess]:
    """The site, built from a copy of what is committed in docs, and the finished build."""
    checkout = tmp_path_factory.mktemp("checkout")
    for path in ROOT.iterdir():
        if path.name not in ("docs", "README.md"):
            (checkout / path.name).symlink_to(path)
    shutil.copy(ROOT / "README.md", checkout)
    shutil.copytree(
        ROOT / "docs",
        checkout / "docs",
        ignore=shutil.ignore_patterns(*GENERATED, "notebooks"),
    )
    words = ["--fail-on-warning", "--keep-going", "--quiet", "docs", "site"]
    command = [sys.executable, "-m", "sphinx", *words]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True)
    return checkout / "site", done


def test_builds_without_warnings(build):
    site, done = build
    assert done.returncode == 0, done.stderr
    assert (site / "index.html").exists()
    assert "(tutorials/streaming.html): " in (site / "llms.txt").read_text()


def test_site_loads_nothing_from_the_network(build):
    loads = set()
    for path in build[0].glob("**/*.html"):
        text = path.read_text(encoding="utf-8")
        loads.update(re.findall(r'(?:<link[^>]* href| src)="([^"]*)"', text))
    assert {urlsplit(load).scheme for load in loads} - {"data"} == {""}


@pytest.mark.weekly
def test_generated_pages_are_current():
    """Those with a table that needs TF Model Garden, too; `make lint` compares all others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "docs")
        generate = importlib.import_module("generate")
        assert list(generate.stale_pages(ROOT / "docs", skipped=())) == []


def test_tutorials_are_notebooks_too(build):
    tutorials = sorted((ROOT / "docs/tutorials").glob("*.md"))
    assert tutorials
    for page in tutorials:
        assert (
            f"{page.stem}.ipynb"
            in (build[0] / f"tutorials/{page.stem}.html").read_text()
        )
        (path,) = build[0].glob(f"_downloads/*/{page.stem}.ipynb")
        cells = json.loads(path.read_text())["cells"]
        code = [
            "".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"
        ]
        blocks = re.findall(
            r"^(?:```python|<!-- cell)\n(.*?)\n(?:```|-->)",
            page.read_text(),
            re.M | re.DOTALL,
        )
        commands = [cell for cell in code if cell.startswith("%%bash")]
        install = [cell for cell in code if "import google.colab" in cell]
        assert [cell for cell in code if cell not in commands + install] == blocks


@pytest.mark.parametrize(
    "notebook",
    sorted((ROOT / "docs/notebooks").glob("*.ipynb")),
    ids=lambda path: path.stem,
)
def test_notebooks_install_lambdanet_in_colab(notebook):
    """Each has no outputs, and its first code installs."""
    cells = json.loads(notebook.read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] or cell["execution_count"] for cell in code)
    install = "".join(code[0]["source"])
    address = REPOSITORY["address"]()
    assert (address or f"content/lambdanet-{lambdanet.__version__}") in install
    assert not any("pip install" in "".join(cell["source"]) for cell in code[1:])


# Run in the page: a person's clicks and inputs, and what is there after each.
DRIVER = """
const errors = [];
addEventListener("error", (event) => errors.push(event.message));
addEventListener("load", () => {
  const all = (selector) => [...document.querySelectorAll(`#explorer ${selector}`)];
  const names = () => all("tbody tr").map((row) => row.cells[0].textContent);
  const points = () => all(".scatterlayer .point").length;
  const header = all("thead th");
  const parameters = header.find((cell) => cell.textContent === "parameters (M)");
  const input = (id, value, type) => {
    const element = document.getElementById(id);
    element.value = value;
    element.dispatchEvent(new Event(type));
  };
  const option = (id, text) => all(`#${id} option`).find((one) => one.text === text).value;
  const found = { columns: header.map((cell) => cell.textContent), all: names() };
  parameters.querySelector("button").click();
  found.descending = [parameters.ariaSort, ...names()];
  parameters.querySelector("button").click();
  found.ascending = [parameters.ariaSort, ...names()];
  const marks = document.querySelector("#explorer .plot").data.flatMap((trace) => trace.marker.symbol);
  found.opened = [points(), marks.filter((mark) => mark === "star").length];
  found.openedTitles = all(".xtitle, .ytitle").map((title) => title.textContent);
  input("x", option("x", "pixels"), "change");
  input("y", option("y", "FLOPs (G)"), "change");
  setTimeout(() => {
    found.plotted = points();
    found.titles = all(".xtitle, .ytitle").map((title) => title.textContent);
    input("filter", "Lambda_ResNet", "input");
    found.filtered = names();
    input("family", "timm_networks", "change");
    found.family = names();
    setTimeout(() => {
      found.points = points();
      document.body.append(Object.assign(document.createElement("pre"), {
        id: "found", textContent: JSON.stringify({ ...found, errors }),
      }));
    }, 500);
  }, 500);
});
"""


@pytest.fixture(scope="module")
def explored(build, tmp_path_factory) -> dict:
    """What the driver found on the page of the explorer, opened as a file."""
    if CHROMIUM is None:
        pytest.skip("needs Chromium, such as Debian's package chromium")
    page = build[0] / "models/explorer.html"
    return driven(page, DRIVER, tmp_path_factory.mktemp("profile"))


@pytest.mark.browser
def test_explorer_sorts_filters_and_plots_models(explored):
    assert (explored["errors"], explored["console"]) == ([], [])
    assert explored["all"] == [*rows()]
    assert {"FLOPs (G)", "ImageNet (%)", "ReaL (%)"} <= set(explored["columns"])
    sizes = {name: info(name).params for name in rows()}
    by_size = sorted(sizes, key=sizes.get)
    assert explored["ascending"] == ["ascending", *by_size]
    assert explored["descending"] == ["descending", *reversed(by_size)]
    assert set(explored["filtered"]) == set(list_models("*lambda_resnet*"))
    assert set(explored["family"]) == set(
        list_models("*lambda_resnet*", pretrained=True)
    )
    # All but lambda_resnet_tiny; the star of the legend.
    shown, legend = len(sizes) - 1, 1
    assert explored["opened"] == [shown, len(list_models(pretrained=True)) + legend]
    assert explored["openedTitles"] == ["FLOPs (G)", "parameters (M)"]
    assert explored["titles"] == ["pixels", "FLOPs (G)"]
    assert (explored["plotted"], explored["points"]) == (shown, len(explored["family"]))

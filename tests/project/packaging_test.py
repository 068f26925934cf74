# SPDX-License-Identifier: Apache-2.0
"""Installs from a wheel, a source archive and in editable mode, seen from outside the checkout."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import HeaderParser
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import source_tree
from packaging.requirements import Requirement
from source_tree import PACKAGES, ROOT

import lambdanet

BUILD_INPUTS = (
    "LICENSE",
    "README.md",
    "docs",
    "pyproject.toml",
    "setup.cfg",
    "lambdanet",
)
INSTALLED = [package for package in PACKAGES if package not in source_tree.BESIDE]
DATA = {  # besides modules
    "lambdanet/py.typed",
    *(
        f"lambdanet/configs/registry/{name}.txt"
        for name in ("imagenet_classes", "published_weights")
    ),
    "lambdanet/detection/configs/shapes.yaml",
    "lambdanet/explain/page.html",
    "lambdanet/models/sizes.csv",
    "lambdanet/models/lambda_resnet18_1d_causal_mnist1d.safetensors",
    "lambdanet/models/weights/packaged/lambda_resnet_micro.fashion_mnist.safetensors",
    "lambdanet/models/weights/packaged/lambda_resnet_tiny.digits.safetensors",
}


def _run(*command: object, cwd: Path) -> str:
    """Runs a command that finds no module by way of PYTHONPATH; returns what it printed."""
    environment = {
        name: value for name, value in os.environ.items() if name != "PYTHONPATH"
    }
    words = [str(part) for part in command]
    done = subprocess.run(
        words, cwd=cwd, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{command} failed\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    """A copy of what is built, in a folder with a space in its name; the checkout itself stays clean."""
    copy = tmp_path_factory.mktemp("a checkout")
    links = [path.name for path in (ROOT / "lambdanet").iterdir() if path.is_symlink()]
    unwanted = shutil.ignore_patterns("__pycache__")
    for name in [*BUILD_INPUTS, *links]:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=unwanted)
        else:
            shutil.copy(ROOT / name, copy)
    return copy


@pytest.fixture(scope="module")
def built(checkout) -> tuple[Path, Path]:
    _run(
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        "--outdir",
        checkout / "out",
        ".",
        cwd=checkout,
    )
    (archive,) = (checkout / "out").glob("*.tar.gz")
    (wheel,) = (checkout / "out").glob("*.whl")
    return archive, wheel


def _package_files() -> set[str]:
    """The files that a complete package holds, by the path under which they are imported."""
    paths = [path for package in INSTALLED for path in source_tree.files_of(package)]
    return {path.relative_to(ROOT).as_posix() for path in paths} | DATA


def _metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (
            name for name in archive.namelist() if name.endswith(".dist-info/METADATA")
        )
        return HeaderParser().parsestr(archive.read(name).decode())


def test_the_wheel_holds_every_module_under_one_name(built):
    names = set(zipfile.ZipFile(built[1]).namelist())
    information = {name for name in names if name.split("/")[0].endswith(".dist-info")}
    assert names - information == _package_files()
    assert any(name.endswith("/licenses/LICENSE") for name in information)


def test_the_source_archive_holds_the_modules_once(built):
    with tarfile.open(built[0]) as archive:
        members = [member for member in archive.getmembers() if not member.isdir()]
    assert all(member.isfile() for member in members), "links do not unpack everywhere"
    names = [member.name.partition("/")[2] for member in members]
    assert {
        name for name in names if name.endswith(".py") or name in DATA
    } == _package_files()


def test_the_metadata(built):
    metadata = _metadata(built[1])
    assert (metadata["Name"], metadata["Version"]) == (
        "lambdanet",
        lambdanet.__version__,
    )
    assert (metadata["Requires-Python"], metadata["License-Expression"]) == (
        ">=3.11",
        "Apache-2.0",
    )
    assert (ROOT / "docs/pypi.md").read_text().strip() == metadata.get_payload().strip()


def _requirements(wheel: Path, *extras: str) -> dict[str, Requirement]:
    """Returns what the base install requires, and what these extras add, by the names of packages."""
    found = [Requirement(line) for line in _metadata(wheel).get_all("Requires-Dist")]
    environments = [{"extra": extra} for extra in ("", *extras)]
    chosen = [
        r
        for r in found
        if r.marker is None or any(map(r.marker.evaluate, environments))
    ]
    return {
        requirement.name.lower().replace("_", "-"): requirement
        for requirement in chosen
    }


def test_backends_are_extras(built):
    backends = {"tensorflow", "jax", "torch"}
    assert {"keras", "numpy"} <= _requirements(built[1]).keys()
    assert (backends | {"tf-keras"}).isdisjoint(_requirements(built[1]))
    for backend in backends:
        assert backends & _requirements(built[1], backend).keys() == {backend}
    assert _requirements(built[1], "tpu")["jax"].extras == {"tpu"}
    extras = _metadata(built[1]).get_all("Provides-Extra")
    assert [
        extra for extra in extras if "tf-keras" in _requirements(built[1], extra)
    ] == ["detection"]


@pytest.mark.parametrize("package", INSTALLED)
def test_what_a_package_imports_is_required(built, package):
    """By the base install, except that some packages may use what an extra adds, and peers."""
    extras = {
        "core": ("tensorflow",),
        "backend": ("tensorflow", "jax", "torch"),
        "models": ("tensorflow", "keras-hub", "detection"),
        "training": ("tensorflow", "jax", "demo", "train", "onnx", "detection", "beam"),
        "explain": ("tensorflow", "jax", "torch", "train"),
        "tpu_estimates": ("tpu-check-tensorflow", "tpu-check", "tensorflow", "demo"),
        "detection": ("detection",),
        "cli": ("demo",),
    }.get(package, ())
    required = {"lambdanet", *_requirements(built[1], *extras)}
    distributions = packages_distributions()
    imports = set().union(*map(source_tree.imports, source_tree.files_of(package)))
    for name in (
        {name.split(".")[0] for name in imports}
        - sys.stdlib_module_names
        - source_tree.PEERS
    ):
        providers = {
            found.lower().replace("_", "-") for found in distributions.get(name, [name])
        }
        assert providers & required, (
            f"{package} imports {name}, which the install does not require"
        )

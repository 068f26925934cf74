# SPDX-License-Identifier: Apache-2.0
"""Nothing imports upwards, and the Keras is the backend's."""

import ast
import graphlib
import sys

import pytest
import source_tree
from source_tree import FILES, PACKAGES, ROOT

# Which take tensors of tf.data.
PICTURES = ("preprocessing.py", "tensorflow_squares.py")


def test_every_folder_of_the_package_is_a_package():
    folders = {
        p.name for p in (ROOT / "lambdanet").iterdir() if (p / "__init__.py").exists()
    }
    assert folders == PACKAGES.keys() - {*source_tree.BESIDE}


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_only_packages_below(package):
    for path in source_tree.files_of(package):
        for name in source_tree.own(source_tree.imports(path)):
            below = source_tree.package_of(name)
            assert below in {package, *PACKAGES[package]}, (
                f"{path}: {package} imports {name}, which is above it"
            )


def test_folders_import_each_other_in_one_direction():
    """Inside a package too, where a file beside the folders counts as one."""
    modules = {source_tree.module_of(path): path for path in FILES}
    roots = {source_tree.files_of(package)[0].parent for package in PACKAGES}
    folders = {
        name: path if path.parent in roots else path.parent
        for name, path in modules.items()
    }
    imported: dict[object, set[object]] = {}
    for name, path in modules.items():
        names = source_tree.own(source_tree.imports(path))
        others = {
            folders.get(other, folders.get(other.rpartition(".")[0])) for other in names
        }
        imported.setdefault(folders[name], set()).update(others - {folders[name], None})
    tuple(graphlib.TopologicalSorter(imported).static_order())  # raises CycleError


@pytest.mark.parametrize(
    "package",
    [package for package in PACKAGES if package not in ("backend", "detection")],
)
def test_keras_is_that_of_the_backend(package):
    """But for `which_keras`, which imports it, and for peers, `as_tf_keras` and detection, on tf_keras."""
    for path in source_tree.files_of(package):
        for name in source_tree.imports(path):
            imported = name.partition(".")[0]
            is_free = path.name in ("which_keras.py", "peers.py", "tf_keras_model.py")
            assert imported not in ("keras", "tf_keras") or is_free, (
                f"{path}: imports {name}"
            )
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Attribute)
                and node.attr == "keras"
                and isinstance(node.value, ast.Name)
            ):
                assert node.value.id not in ("tf", "tensorflow"), (
                    f"{path}:{node.lineno}: tf.keras"
                )


@pytest.mark.parametrize("package", ["ops", "layers", "configs", "models"])
def test_only_the_backend_imports_other_packages(package):
    """So that layers and models are the same on all; models may read files, and preprocess for tf.data."""
    for path in source_tree.files_of(package):
        packages = {name.partition(".")[0] for name in source_tree.imports(path)} - {
            "lambdanet"
        }
        if package == "models":
            packages &= {"tensorflow", "tf_keras", "keras", "jax"}
        is_free = path.name in (*PICTURES, "as_tf_keras.py", "tf_keras_model.py")
        assert packages <= sys.stdlib_module_names or is_free, path


@pytest.mark.parametrize("package", ["ops", "layers"])
def test_only_the_kernel_table_names_a_device(package):
    """Operations and layers take what differs between devices from `lambdanet.ops.kernels`."""
    for path in source_tree.files_of(package):
        if path.name != "kernels.py":
            assert "lambdanet.backend.device.kind" not in source_tree.imports(path)
            for node in ast.walk(ast.parse(path.read_text())):
                assert ast.unparse(node) not in (
                    "device.kind",
                    "'CPU'",
                    "'GPU'",
                    "'TPU'",
                ), f"{path}:{node.lineno}"

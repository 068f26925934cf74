# SPDX-License-Identifier: Apache-2.0
"""The floors hold: nothing imports upwards, and there is one Keras."""

import ast
import graphlib
import subprocess
import sys

import pytest
import source_tree
from source_tree import FLOORS, PEERS, ROOT

# What each floor may import besides itself, the floors below and the standard library.
THIRD_PARTY = {
    "core": {"absl", "numpy", "tensorflow"},
    "backend": {"jax", "keras", "ml_dtypes", "numpy", "tensorflow", "tf_keras", "torch"},
    "ops": set(),
    "layers": set(),
    "configs": set(),
    # TensorFlow in `models.preprocessing` alone
    "models": {"h5py", "keras_hub", "ml_dtypes", "numpy", "tensorflow", "timm", "torch", "tqdm"}
    | {"huggingface_hub", "safetensors"},
    "training": {
        "PIL",
        "filelock",
        "numpy",
        "pyarrow",
        "sklearn",
        "tensorflow",
        "tensorflow_datasets",
        "tf_keras",
    }
    | {"ai_edge_litert", "matplotlib", "onnxruntime", "tf2onnx", "tqdm"}
    | PEERS,
    "tpu": {"jax", "jaxlib", "numpy", "scipy", "tensorflow", "tf_keras", "tqdm"},
    "detection": {
        "PIL",
        "absl",
        "matplotlib",
        "numpy",
        "official",
        "pycocotools",
        "scipy",
        "tensorflow",
        "tf_keras",
        "tqdm",
    },
    "cli": {"absl", "tqdm"},
    "benchmarks": {"PIL", "absl", "benchmarks", "numpy", "official", "tensorflow", "tf_keras"},
}


def test_every_folder_of_the_package_is_a_floor():
    folders = {p.name for p in (ROOT / "lambdanet").iterdir() if (p / "__init__.py").exists()}
    assert folders == FLOORS.keys() - {"benchmarks", "core"}


@pytest.mark.parametrize("floor", FLOORS)
def test_a_floor_imports_only_floors_below(floor):
    for path in source_tree.files_of(floor):
        for name in source_tree.own(source_tree.imports(path)):
            below = source_tree.floor_of(name)
            assert below in {floor, *FLOORS[floor]}, f"{path}: {floor} imports {name}, which is above it"


def test_rooms_import_each_other_in_one_direction():
    """Inside a floor too, where a room is a folder, or a file beside the folders."""
    modules = {source_tree.module_of(path): path for floor in FLOORS for path in source_tree.files_of(floor)}
    roots = {source_tree.files_of(floor)[0].parent for floor in FLOORS}
    rooms = {name: path if path.parent in roots else path.parent for name, path in modules.items()}
    imported: dict[object, set[object]] = {}
    for name, path in modules.items():
        names = source_tree.own(source_tree.imports(path))
        others = {rooms.get(other, rooms.get(other.rpartition(".")[0])) for other in names}
        imported.setdefault(rooms[name], set()).update(others - {rooms[name], None})
    tuple(graphlib.TopologicalSorter(imported).static_order())  # raises CycleError


@pytest.mark.parametrize("floor", FLOORS)
def test_a_floor_imports_only_its_third_parties(floor):
    accepted = THIRD_PARTY[floor] | sys.stdlib_module_names | {"lambdanet"}
    for path in source_tree.files_of(floor):
        for name in source_tree.imports(path):
            assert name.split(".")[0] in accepted, f"{path}: {floor} imports {name}"


@pytest.mark.parametrize("floor", [floor for floor in FLOORS if floor != "backend"])
def test_keras_is_tf_keras(floor):
    for path in source_tree.files_of(floor):
        for name in source_tree.imports(path):
            parts = name.split(".")
            assert parts[0] != "keras" and parts[:2] != ["tensorflow", "keras"], f"{path}: imports {name}"
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr == "keras" and isinstance(node.value, ast.Name):
                assert node.value.id not in ("tf", "tensorflow"), f"{path}:{node.lineno}: tf.keras"


@pytest.mark.parametrize("floor", ["ops", "layers", "models"])
def test_only_the_backend_imports_tensorflow_and_keras(floor):
    """So that layers and models are the same on all of them. Preprocessing is for TensorFlow's pipelines."""
    for path in source_tree.files_of(floor):
        if path.name != "preprocessing.py":
            packages = {name.partition(".")[0] for name in source_tree.imports(path)}
            assert not packages & {"tensorflow", "tf_keras", "keras", "jax"}, path


@pytest.mark.parametrize("floor", ["ops", "layers"])
def test_only_the_kernel_table_names_a_device(floor):
    """Operations and layers take what differs between devices from `lambdanet.ops.kernels`."""
    for path in source_tree.files_of(floor):
        if path.name != "kernels.py":
            assert "lambdanet.backend.device.kind" not in source_tree.imports(path)
            for node in ast.walk(ast.parse(path.read_text())):
                assert ast.unparse(node) not in ("device.kind", "'CPU'", "'GPU'", "'TPU'"), (
                    f"{path}:{node.lineno}"
                )


def test_configs_and_the_command_line_start_without_tensorflow():
    modules = ["lambdanet", "lambdanet.errors", "lambdanet.cli"]
    paths = [path.relative_to(ROOT).with_suffix("") for path in source_tree.files_of("configs")]
    modules += [".".join(path.parts).removesuffix(".__init__") for path in paths]
    program = (
        f"import importlib, sys\nfor name in {modules}: importlib.import_module(name)\n"
        "print({'tensorflow', 'tf_keras', 'keras'} & set(sys.modules) or 'none')"
    )
    shown = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert (shown.stdout.strip(), shown.stderr) == ("none", "")

# SPDX-License-Identifier: Apache-2.0
"""SECURITY.md: the tests that it names exist, and the code keeps to what it says of calls and connections."""

import ast
import re

import pytest
import source_tree
from source_tree import FILES, ROOT

# What runs, or may run, what it is given.
BUILTINS = {"eval", "exec", "compile", "__import__"}
METHODS = {"load_model", "model_from_config", "model_from_json", "unsafe_load"}
CONNECTS = {
    "aiohttp",
    "ftplib",
    "http",
    "httpx",
    "huggingface_hub",
    "requests",
    "smtplib",
    "socketserver",
}
CONNECTS |= {"urllib", "urllib3"}
# Unpickles what the process that started it writes to its stdin, and no file.
FROM_PARENT = "lambdanet/training/beam/attempt.py"
# Rebuilds a network from its configuration, in Keras's safe mode: a layer that holds code is refused.
FROM_CONFIGURATION = {
    "lambdanet/explain/exported_network.py": "keras.models.model_from_json"
}


def _calls(path):
    """Each call in a file, with the dotted name of what is called."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            yield node, ast.unparse(node.func)


def test_the_tests_that_hold_the_promises_exist():
    named = re.findall(
        r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "SECURITY.md").read_text()
    )
    assert len(named) >= 8
    for file, test in named:
        assert f"def {test}(" in (ROOT / file).read_text(), f"{file} has no {test}"


@pytest.mark.parametrize(
    "path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix()
)
def test_no_call_runs_what_it_reads(path):
    relative = path.relative_to(ROOT).as_posix()
    for node, name in _calls(path):
        if FROM_CONFIGURATION.get(relative) == name:
            continue
        arguments = {
            keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords
        }
        assert name not in BUILTINS and name.rpartition(".")[2] not in METHODS, (
            f"{path}: {name}"
        )
        if relative != FROM_PARENT:
            assert not re.fullmatch(
                r"(pickle|marshal|dill|joblib|shelve)\.\w*(load|loads|open)", name
            ), path
        assert name != "torch.load" or arguments["weights_only"] == "True", path
        assert arguments.get("allow_pickle", "False") == "False", path
        assert arguments.get("shell", "False") == "False", path


def test_few_modules_open_connections():
    clients, connecting = set(), set()
    for path in FILES:
        name = path.relative_to(ROOT).as_posix()
        imported = {module.split(".")[0] for module in source_tree.imports(path)}
        if imported & CONNECTS:
            clients.add(name)
        if "socket" in imported and "connect" in path.read_text():
            connecting.add(name)
    assert clients == {"lambdanet/models/weights/hub.py"}
    # To addresses that users give.
    assert connecting == {"lambdanet/training/run/devices.py"}

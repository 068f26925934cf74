# SPDX-License-Identifier: Apache-2.0
"""Exports of `lambdanet.backend` on every engine."""

import re
from pathlib import Path

import source_tree

from lambdanet import backend
from lambdanet.backend import compat, keras_functions, tensorflow_functions

PACKAGES = ("backend", "ops", "layers", "models", "training")


def used(pattern: str) -> set[str]:
    files = (path for package in PACKAGES for path in source_tree.files_of(package))
    return {
        name for path in files for name in re.findall(pattern, Path(path).read_text())
    }


def test_every_engine_has_the_functions():
    names = used(r"\bK\.(\w+)")
    assert names <= vars(backend).keys()
    functions = names - {"ENGINE", "Shape", "compat", "keras", "newaxis"}
    assert functions <= vars(tensorflow_functions).keys() & vars(keras_functions).keys()
    assert len(functions) > 60
    assert used(r"(?<![.])\bcompat\.(\w+)") <= vars(compat).keys()

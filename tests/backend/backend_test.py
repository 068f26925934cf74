# SPDX-License-Identifier: Apache-2.0
"""Exports of `lambdanet.backend` on every engine, and the scope in which tf_keras does not trace layers."""

import re
import threading
from pathlib import Path

import pytest
import source_tree
import tf_keras

from lambdanet import backend
from lambdanet.backend import keras_3_compat, keras_functions, tensorflow_functions, tf_keras_compat

FLOORS = ("backend", "ops", "layers", "models", "training")


def used(pattern: str) -> set[str]:
    files = (path for floor in FLOORS for path in source_tree.files_of(floor))
    return {name for path in files for name in re.findall(pattern, Path(path).read_text())}


def test_every_engine_has_the_functions():
    assert used(r"\bK\.(\w+)") <= set(backend.__all__)
    functions = set(backend.__all__) - {"KERAS", "ENGINE", "compat", "keras", "newaxis"}
    assert functions <= vars(tensorflow_functions).keys() & vars(keras_functions).keys()
    assert used(r"(?<![.])\bcompat\.(\w+)") <= vars(tf_keras_compat).keys() & vars(keras_3_compat).keys()


class Traced(tf_keras.layers.Layer):
    traces = 0

    def call(self, inputs):
        self.traces += 1
        return inputs

    def compute_output_shape(self, input_shape):
        return input_shape


def traces() -> int:
    layer = Traced()
    assert layer(tf_keras.Input([4])).shape.as_list() == [None, 4]
    return layer.traces


def test_declared_shapes_end_with_their_scope_in_each_thread():
    found, infer = [], tf_keras.layers.Layer._infer_output_signature
    inside, ended = threading.Event(), threading.Event()

    def build():
        found.append(traces())
        with tf_keras_compat.declared_shapes():
            inside.set()
            ended.wait()
            found.append(traces())

    with pytest.raises(ZeroDivisionError), tf_keras_compat.declared_shapes():
        thread = threading.Thread(target=build)
        thread.start()
        inside.wait()
        with tf_keras_compat.declared_shapes():
            assert traces() == 0
        assert traces() == 0
        raise ZeroDivisionError
    assert traces() == 1  # although the other scope goes on
    ended.set()
    thread.join()
    assert found == [1, 0] and tf_keras.layers.Layer._infer_output_signature is infer

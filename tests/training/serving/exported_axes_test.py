# SPDX-License-Identifier: Apache-2.0
"""Exported models have tensors of at most four axes, and built-in operators alone, for every compiler."""

import contextlib
import io
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter
from small_models import small_model

from lambdanet import (
    AxialAttention,
    GlobalAttention,
    HaloAttention,
    LambdaLayer,
    LinearAttention,
    LocalAttention,
)
from lambdanet.backend import device
from lambdanet.ops import IMPLEMENTATIONS
from lambdanet.training.serving import export_runtimes
from lambdanet.training.serving.export import serving_form

MAX_AXES = 4
# One of each family, and of each kind of spatial operation.
FAMILIES = {
    "resnet_50_augmented": 64,
    "resnet_50_axial_attention": 64,
    "resnet_50_global_attention": 64,
    "resnet_50_linear_attention": 64,
    "resnet_50_local_attention": 64,
    "resnet_50_llll": 64,
    "resnet_rs_50": 64,
    "lambda_resnet_50": 64,
    "mobilenet_v2_lambda": 64,
    "halonet_h0": 64,
    "halo_resnet_50": 64,
    "lambda_resnet26rpt_256": 256,
    "lamhalobotnet50ts_256": 256,
    "eca_halonext26ts": 64,
    "haloregnetz_b": 64,
    "sebotnet33ts_256": 256,
    "efficientnet_b0": 64,
}
# Layers on maps that blocks do not divide.
LAYERS = {
    "lambda": lambda: LambdaLayer(16, scope=5),
    "blocked": lambda: LambdaLayer(16, scope=5, implementation="blocked"),
    "pooled": lambda: LambdaLayer(16, scope=5, strides=2, pool_size=3),
    "multi_head": lambda: LambdaLayer(16, scope=5, multi_head=True, intra_depth=2),
    "biased": lambda: LambdaLayer(
        16, scope=None, position_bias=True, query_normalization="softmax"
    ),
    "unstructured": lambda: LambdaLayer(16, position="unstructured", intra_depth=2),
    "conv": lambda: LambdaLayer(16, scope=5, intra_depth=2, implementation="conv"),
    "depthwise_conv": lambda: LambdaLayer(
        16, scope=5, intra_depth=2, implementation="depthwise_conv"
    ),
    "halo": lambda: HaloAttention(16, block_size=4, halo_size=1),
    "local": lambda: LocalAttention(16, scope=3, block_size=4),
    "global": lambda: GlobalAttention(16),
    "axial": lambda: AxialAttention(16),
    "linear": lambda: LinearAttention(16),
    "causal": lambda: LambdaLayer(16, scope=5, causal=1),
    "causal along the second axis": lambda: LambdaLayer(
        16, scope=5, causal=2, multi_head=True, intra_depth=2
    ),
    "causal l2": lambda: LambdaLayer(
        16, scope=5, causal=1, strides=2, key_normalization="l2"
    ),
}
SEQUENCE_LAYERS = (
    "lambda",
    "blocked",
    "pooled",
    "multi_head",
    "biased",
    "causal",
    "causal l2",
)


class Layers(keras.Model):
    """A subclassed model, which has no form for inference."""

    def __init__(self, *parts):
        super().__init__()
        self.parts = parts

    def call(self, x):
        for part in self.parts:
            x = part(x)
        return x


def _function(model, size, batch=None):
    """A function of images or sequences, as it is traced for the runtimes."""
    served = serving_form(model)
    spec = tf.TensorSpec([batch, *size, 8], tf.float32, name="x")

    @tf.function(input_signature=[spec], autograph=False)
    def call(x):
        with device.assume("RUNTIME"):
            return {"y": served(x, training=False)}

    return call


def _converted(function, format):
    with export_runtimes._quiet():
        return export_runtimes.FORMATS[format].convert(function)


def _check_litert(content):
    """Checks what LiteRT's analyzer prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        tf.lite.experimental.Analyzer.analyze(model_content=content)
    shapes = re.findall(r"shape:\[([-0-9, ]*)\]", printed.getvalue())
    assert len(shapes) > 10
    assert [shape for shape in shapes if shape.count(",") >= MAX_AXES] == []
    operators = set(re.findall(r"^ *Op#\d+ (\w+)", printed.getvalue(), re.MULTILINE))
    assert operators and not {x for x in operators if x.startswith(("CUSTOM", "Flex"))}


def _check_onnx(content):
    onnx = pytest.importorskip("onnx")
    model = onnx.shape_inference.infer_shapes(onnx.load_from_string(content))
    onnx.checker.check_model(model, full_check=True)  # knows no other operators
    values = [*model.graph.value_info, *model.graph.input, *model.graph.output]
    axes = {x.name: len(x.type.tensor_type.shape.dim) for x in values}
    axes |= {x.name: len(x.dims) for x in model.graph.initializer}
    assert {name: n for name, n in axes.items() if n > MAX_AXES} == {}
    assert {name for node in model.graph.node for name in node.output} <= axes.keys()
    assert {node.domain for node in model.graph.node} <= {"", "ai.onnx"}


CHECKS = {"litert": _check_litert, "onnx": _check_onnx}
formats = pytest.mark.parametrize("format", CHECKS)


@formats
@pytest.mark.parametrize("layer", LAYERS)
def test_layer_has_four_axes(layer, format):
    images = keras.Input([10, 10, 8])
    model = keras.Model(images, LAYERS[layer]()(images))
    CHECKS[format](_converted(_function(model, [10, 10]), format))


@formats
@pytest.mark.parametrize("layer", SEQUENCE_LAYERS)
def test_layer_of_sequences_has_four_axes(layer, format):
    sequence = keras.Input([20, 8])
    model = keras.Model(sequence, LAYERS[layer]()(sequence))
    CHECKS[format](_converted(_function(model, [20]), format))


def _run_litert(content, x):
    run = Interpreter(model_content=content).get_signature_runner()
    return run(x=x)["y"]


def _run_onnx(content, x):
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"x": x})
    return y


@pytest.mark.parametrize(
    ("format", "run"), [("litert", _run_litert), ("onnx", _run_onnx)]
)
@pytest.mark.parametrize("layer", ["causal", "causal along the second axis"])
def test_causal_layer_equals_keras_in_batches_of_any_number(layer, format, run):
    images = keras.Input([6, 5, 8])
    model = keras.Model(images, LAYERS[layer]()(images))
    content = _converted(_function(model, [6, 5]), format)
    for batch in (1, 2, 7):
        x = np.random.default_rng(batch).normal(size=[batch, 6, 5, 8])
        x = x.astype("float32")
        np.testing.assert_allclose(run(content, x), model(x), atol=1e-5)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_own_export_of_keras_takes_any_batch_in_all_forms(implementation, tmp_path):
    sequence = keras.Input([20, 24])
    layer = LambdaLayer(24, scope=5, implementation=implementation)
    model = keras.Model(sequence, layer(sequence))
    path = tmp_path / "model.tflite"
    model.export(path, format="litert", verbose=False)
    run = Interpreter(str(path)).get_signature_runner()
    (name,) = run.get_input_details()
    for batch in (1, 2, 7):
        x = np.random.default_rng(batch).normal(size=[batch, 20, 24])
        x = x.astype("float32")
        (y,) = run(**{name: x}).values()
        np.testing.assert_allclose(y, model(x), atol=1e-5)


@formats
def test_subclassed_model_has_four_axes(format):
    """It is served unchanged, and the runtimes have its tables as constants all the same."""
    model = Layers(LAYERS["lambda"](), LAYERS["halo"]())
    model(keras.ops.zeros([1, 10, 10, 8]))
    CHECKS[format](_converted(_function(model, [10, 10]), format))


@formats
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.slow
def test_family_has_four_axes(name, format):
    size = FAMILIES[name]
    served = serving_form(small_model(name, input_size=size))
    classify = export_runtimes._classifier(served, size, [0.5] * 3, [0.5] * 3)
    CHECKS[format](_converted(classify, format))

# SPDX-License-Identifier: Apache-2.0
"""Exported models have tensors of at most four axes, and built-in operators alone, for every compiler."""

import contextlib
import io
import itertools
import re
from functools import partial

import keras
import pytest
import tensorflow as tf
from helpers import assert_near, images
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
from lambdanet.layers.old_arguments import translate
from lambdanet.models.preprocessing import Preprocessing
from lambdanet.training.serving import export_runtimes
from lambdanet.training.serving.export import serving_form
from lambdanet.training.serving.trained_weights import TrainedModel

MAX_AXES = 4
# One of each family, and of each kind of spatial operation.
FAMILIES = [
    "resnet_50_augmented",
    "resnet_50_axial_attention",
    "resnet_50_global_attention",
    "resnet_50_linear_attention",
    "resnet_50_local_attention",
    "resnet_50_llll",
    "resnet_rs_50",
    "lambda_resnet_50",
    "mobilenet_v2_lambda",
    "halonet_h0",
    "halo_resnet_50",
    "lambda_resnet26rpt_256",
    "lamhalobotnet50ts_256",
    "eca_halonext26ts",
    "haloregnetz_b",
    "sebotnet33ts_256",
    "efficientnet_b0",
]


def lambda_layer(**options):
    """Returns a function that creates a layer of a local scope, unless the options have another."""
    return lambda: LambdaLayer(16, **translate({"scope": 5, **options}))


LAYERS = {
    "lambda": lambda_layer(),
    "blocked": lambda_layer(implementation="blocked"),
    "pooled": lambda_layer(strides=2, pool_size=3),
    "multi_head": lambda_layer(multi_head=True, intra_depth=2),
    "biased": lambda_layer(
        scope=None, position_bias=True, query_normalization="softmax"
    ),
    "causal": lambda_layer(causal=1),
    "causal_l2": lambda_layer(causal=1, strides=2, key_normalization="l2"),
}
MAP_LAYERS = {
    "conv": lambda_layer(intra_depth=2, implementation="conv"),
    "depthwise_conv": lambda_layer(intra_depth=2, implementation="depthwise_conv"),
    "causal_along_second": lambda_layer(causal=2, multi_head=True, intra_depth=2),
}
MAP_LAYERS |= {
    "unstructured": partial(LambdaLayer, 16, position="unstructured", intra_depth=2),
    "halo": partial(HaloAttention, 16, block_size=4, halo_size=1),
    "local": partial(LocalAttention, 16, scope=3, block_size=4),
    "global": partial(GlobalAttention, 16),
    "axial": partial(AxialAttention, 16),
    "linear": partial(LinearAttention, 16),
}


class Layers(keras.Model):
    """A subclassed model, which has no form for inference: it is served unchanged."""

    def __init__(self):
        super().__init__()
        self.parts = [LAYERS["lambda"](), MAP_LAYERS["halo"]()]

    def call(self, x):
        for part in self.parts:
            x = part(x)
        return {"y": x}


def _beside_each_other(layers, size):
    inputs = keras.Input([*size, 8])
    return keras.Model(inputs, {name: make()(inputs) for name, make in layers.items()})


# On maps that blocks do not divide.
MODELS = {
    "sequences": ([20], lambda: _beside_each_other(LAYERS, [20])),
    "maps": ([6, 10], lambda: _beside_each_other(MAP_LAYERS, [6, 10])),
    "other_maps": ([6, 10], lambda: _beside_each_other(LAYERS, [6, 10])),
    "subclassed": ([6, 10], Layers),
}
# Of the largest output: the roundings of a sum over 60 positions of 16 channels.
TOLERANCE = 60 * 16 * 2**-24


def _function(model, size):
    """A function of images or sequences, as it is traced for the runtimes."""
    served = serving_form(model)
    spec = tf.TensorSpec([None, *size, 8], tf.float32, name="images")

    @tf.function(input_signature=[spec], autograph=False)
    def call(images):
        with device.assume("RUNTIME"):
            return served(images, training=False)

    return call


def _converted(function, format):
    with export_runtimes._quiet():
        return export_runtimes.FORMATS[format].convert(function, None, None)


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


def _cases(names, daily):
    """Returns each name with each format, of which some are tried each day and the others once a week."""
    cases = []
    for case in itertools.product(names, CHECKS):
        marks = [] if case in daily else [pytest.mark.weekly]
        cases.append(pytest.param(*case, marks=marks))
    return cases


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "format"),
    _cases(
        MODELS,
        [
            ("sequences", "litert"),
            ("maps", "onnx"),
            ("subclassed", "litert"),
            ("subclassed", "onnx"),
        ],
    ),
)
def test_layers_have_four_axes_and_equal_keras_in_any_batch(name, format):
    keras.utils.set_random_seed(0)
    size, make = MODELS[name]
    model = make()
    model(images(1, *size, 8))
    content = _converted(_function(model, size), format)
    CHECKS[format](content)
    run = export_runtimes.FORMATS[format].load(content)
    for batch in (1, 2, 7):
        x = images(batch, *size, 8).numpy()
        found = run(x)
        expected = model(x)
        assert found.keys() == expected.keys()
        for layer, array in expected.items():
            assert_near(found[layer], array, TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "format"),
    _cases(FAMILIES, [("lambda_resnet_50", "litert"), ("halonet_h0", "onnx")]),
)
def test_family_has_four_axes(name, format):
    size = 256 if name.endswith("_256") else 64
    served = serving_form(small_model(name, input_size=size))
    preprocessing = Preprocessing(size, (0.5,) * 3, (0.5,) * 3)
    trained = TrainedModel(served, preprocessing, ["a", "b"])
    classify = export_runtimes._classifier(trained, size)
    CHECKS[format](_converted(classify, format))
